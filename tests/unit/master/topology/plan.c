/* Which host, GPUs and ports each engine gets, and what is wrong with a plan: every finding, by line. */
#include "tests/unit/master/topology.h"

static const struct topo_engine *
engine(const struct made *m, const char *name)
{
	for (size_t i = 0; i < m->plan->nengines; i++)
		if (strcmp(m->plan->engines[i].name, name) == 0)
			return &m->plan->engines[i];
	cr_assert_fail("no engine %s", name);
	return NULL;
}

static void
expect_gpus(const struct made *m, const char *name, const char *host, const char *gpus)
{
	const struct topo_engine *e = engine(m, name);
	char list[256] = "";

	for (size_t i = 0; i < e->gpus.n; i++)
		(void)snprintf(
			list + strlen(list), sizeof(list) - strlen(list), "%u ", e->gpus.v[i]);
	cr_expect(strcmp(e->host->name, host) == 0 && strcmp(list, gpus) == 0,
		"%s: host %s GPUs %s (expected %s, %s)", name, e->host->name, list, host, gpus);
}

static void
expect_port(const struct made *m, const char *name, const char *port, uint32_t first, uint32_t n)
{
	const struct topo_engine *e = engine(m, name);

	for (size_t i = 0; i < e->ports.n; i++)
		if (strcmp(e->ports.v[i].name, port) == 0) {
			cr_expect(e->ports.v[i].first == first && e->ports.v[i].n == n,
				"%s %s: %u, %u of them", name, port, e->ports.v[i].first,
				e->ports.v[i].n);
			return;
		}
	cr_expect_fail("%s has no port %s", name, port);
}

static void
expect_found(const char *fleet, int line, const char *key, const char *word)
{
	struct made m = make(fleet);
	bool found = false;
	char buf[1024];

	for (size_t i = 0; i < m.plan->nfindings; i++) {
		const struct conf_error *f = &m.plan->findings[i];

		found = found || (f->line == line && strcmp(f->key, key) == 0 &&
					 strstr(f->what, word) != NULL);
	}
	cr_expect(found, "expected %d, %s: ..%s.., first of %zu: %s", line, key, word,
		m.plan->nfindings,
		m.plan->nfindings > 0 ? conf_error_text(&m.plan->findings[0], buf, sizeof(buf))
				      : "");
	unmake(&m);
}

Test(plan, groups_grow_towards_each_other)
{
	struct made m = make_good(
		FULL("replicas: 2, hosts: [a]", "replicas: 2, tensor_parallel: 2, hosts: [a]"));

	expect_gpus(&m, "f-prefill-0", "a", "0 ");
	expect_gpus(&m, "f-prefill-1", "a", "1 ");
	expect_gpus(&m, "f-decode-0", "a", "6 7 ");
	expect_gpus(&m, "f-decode-1", "a", "4 5 ");
	unmake(&m);
}

Test(plan, replicas_take_turns_over_hosts)
{
	struct made m = make_good(FULL("replicas: 3, tensor_parallel: 2",
		"tensor_parallel: 4, hosts: [a], overrides: [{replica: 0, gpus: [0, 1, 2, 4]}]"));

	expect_gpus(&m, "f-decode-0", "a", "0 1 2 4 ");
	expect_gpus(&m, "f-prefill-0", "a", "3 5 ");
	expect_gpus(&m, "f-prefill-1", "b", "0 1 ");
	expect_gpus(&m, "f-prefill-2", "a", "6 7 ");
	unmake(&m);
}

Test(plan, ports_depend_on_no_other_engine)
{
	struct made m = make_good(
		FULL("replicas: 3, hosts: [a]", "replicas: 2, tensor_parallel: 2, hosts: [a]"));

	expect_port(&m, "f-prefill-2", "api", 8102, 1);
	expect_port(&m, "f-prefill-2", "side", 5602, 1);
	expect_port(&m, "f-decode-0", "side", 6600, 2);
	expect_port(&m, "f-decode-1", "api", 8201, 1);
	expect_port(&m, "f-decode-1", "side", 6602, 2);
	unmake(&m);
}

static bool
has_port(const struct topo_engine *e, const char *name)
{
	for (size_t i = 0; i < e->ports.n; i++)
		if (strcmp(e->ports.v[i].name, name) == 0)
			return true;
	return false;
}

Test(plan, data_parallel_ranks)
{
	struct made m = make_good(FULL("replicas: 2, data_parallel: 3, hosts: [a]", "hosts: [b]"));
	const struct topo_engine *e = engine(&m, "f-prefill-1");

	expect_gpus(&m, "f-prefill-1", "a", "3 4 5 ");
	expect_port(&m, "f-prefill-1", "side", 5603, 3);
	expect_port(&m, "f-prefill-1", "rpc", 9501, 1);
	cr_expect_not(has_port(engine(&m, "f-decode-0"), "rpc"));
	cr_expect_str_eq(e->argv.v[e->argv.n - 3].text, "3");
	cr_expect_str_eq(e->endpoint.v[0].name, "dp_ranks");
	unmake(&m);
	expect_found(FULL("tensor_parallel: 4, data_parallel: 3", ""), 8, "prefill.replicas",
		"replica 0 does not fit: it needs 12 GPUs");
	expect_found(FULL("overrides: [{replica: 0, host: b, gpus: [1]}], data_parallel: 2", ""), 8,
		"f-prefill-0", "1 GPUs are named, but the engine has 2 ranks");
	expect_found(FLEET
		"connector: lmcache\n" HOSTS
		"prefill: {env: {CACHE: x}}\ndecode: {data_parallel: 2, env: {CACHE: x}}\n" ROUTER,
		9, "decode.data_parallel", "lmcache cannot tell data-parallel ranks apart");
}

Test(plan, ports_of_the_users)
{
	struct made m = make_good("port_offset: 1000\n" FULL(
		"replicas: 2, ports: {api: 9000}, overrides: [{replica: 1, ports: {side: 7000}}]",
		""));

	expect_port(&m, "f-prefill-0", "api", 9000, 1);
	expect_port(&m, "f-prefill-0", "side", 6600, 1);
	expect_port(&m, "f-prefill-1", "api", 9001, 1);
	expect_port(&m, "f-prefill-1", "side", 7000, 1);
	expect_port(&m, "f-decode-0", "api", 9200, 1);
	unmake(&m);
}

Test(plan, gpus)
{
	expect_found(FULL("replicas: 4, tensor_parallel: 4", "tensor_parallel: 4"), 8,
		"prefill.replicas", "replica 3 does not fit: it needs 4 GPUs");
	expect_found(FULL("hosts: [c]", ""), 8, "prefill.hosts[0]", "no host is named c");
	expect_found(FULL("overrides: [{replica: 0, host: b, gpus: [4]}]", ""), 8, "f-prefill-0",
		"host b has no GPU 4");
	expect_found(FULL("overrides: [{replica: 0, host: b, gpus: [1]}]",
			     "overrides: [{replica: 0, host: b, gpus: [1]}]"),
		9, "f-decode-0", "GPU 1 of b is asked for twice: f-prefill-0 has it");
	expect_found(FULL("overrides: [{replica: 0, host: b, gpus: [1, 2]}]", ""), 8, "f-prefill-0",
		"2 GPUs are named, but the engine has 1 ranks");
	expect_found(FULL("overrides: [{replica: 0, gpus: [1]}]", ""), 8, "f-prefill-0",
		"need its host");
	expect_found(FULL("overrides: [{replica: 0, host: c}]", ""), 8, "f-prefill-0",
		"no host is named c");
	expect_found(FULL("overrides: [{replica: 1}]", ""), 8, "prefill", "no replica 1 of 1");
	expect_found(FLEET
		"connector: nixl\nhosts: {a: {address: 10.0.0.1}}\nprefill: {}\ndecode: {}\n",
		6, "prefill.replicas", "does not fit");
}

Test(plan, ports)
{
	expect_found(FULL("hosts: [a]", "hosts: [a], ports: {api: 8100}"), 9, "decode",
		"port 8100 (api) of f-decode-0 on a is taken by f-prefill-0 (api)");
	expect_found(FULL("hosts: [a]", "hosts: [a], ports: {api: 5600}"), 9, "decode",
		"taken by f-prefill-0 (side)");
	expect_found(FULL("ports: {api: 5600}", ""), 8, "prefill", "asked for twice: api and side");
	expect_found(
		FULL("ports: {apy: 5600}", ""), 8, "prefill", "no port named apy, but api, side");
	expect_found(FULL("replicas: 2, hosts: [a], ports: {api: 65535}", ""), 8, "f-prefill-1",
		"above 65535");
	expect_found(FLEET "connector: nixl\n" HOSTS "prefill: {}\ndecode: {}\n"
			   "router: {hosts: [a], listen: [\"0.0.0.0:8100\"]}\n",
		8, "prefill", "taken by the router (listen)");
	/* the router's default is a port as well */
	expect_found(FULL("hosts: [a], ports: {api: 8000}", ""), 8, "prefill",
		"port 8000 (api) of f-prefill-0 on a is taken by the router (listen)");
	expect_found(FLEET "connector: lmcache\n" HOSTS
			   "prefill: {env: {CACHE: x}}\ndecode: {env: {CACHE: x}}\n"
			   "router: {hosts: [a], listen: [\"0.0.0.0:8000\", \"0.0.0.0:7500\"]}\n",
		10, "router.listen", "port 7500 is asked for twice: notices and listen");
	/* the same ports on two hosts are none of each other's business */
	struct made m = make_good(FULL("hosts: [a]", "hosts: [b], ports: {api: 8100}"));
	unmake(&m);
}

#define OLD_ENGINE(more)                                                                           \
	"fleet: f\nmodel: {path: m}\nengine: {kind: vllm, version: \"0.4.9\"" more "}\n" HOSTS

Test(plan, roles)
{
	expect_found(FLEET HOSTS "prefill: {}\ndecode: {}\n", 7, "connector", "is missing");
	expect_found(
		FLEET "connector: nixl\n" HOSTS "prefill: {}\n", 8, "prefill", "no decode engines");
	expect_found(FLEET "connector: nixl\n" HOSTS "engines: {}\ndecode: {}\n", 8, "engines",
		"engines, or prefill and decode");
	expect_found(FLEET HOSTS, 0, "", "no engines");
	expect_found(FULL("tensor_parallel: 4", "tensor_parallel: 2"), 9, "decode.tensor_parallel",
		"prefill has 4, decode 2");
	expect_found(FLEET "connector: orchestrated\n" HOSTS
			   "prefill: {tensor_parallel: 4}\ndecode: {tensor_parallel: 2}\n",
		9, "decode.tensor_parallel", "orchestrated needs");
	expect_found(FLEET "connector: nix\n" HOSTS "prefill: {}\ndecode: {}\n", 4, "connector",
		"no connector nix, but nixl, orchestrated, lmcache");
	expect_found("fleet: f\nmodel: {path: m}\nengine: {kind: vllm, version: \"0.14\"}\n"
		     "connector: nixl\n" HOSTS "prefill: {}\ndecode: {}\n",
		4, "connector", "vllm 0.14 has no nixl: versions 0.9 to 0.13 have it");
	expect_found("fleet: f\nmodel: {path: m}\nengine: {kind: vllm}\nconnector: nixl\n" HOSTS
		     "prefill: {}\ndecode: {}\n",
		3, "engine.version", "is missing");
	expect_found(FLEET "connector: nixl\n" HOSTS "engines: {}\n", 4, "connector",
		"only prefill and decode engines have one");
	expect_found(
		OLD_ENGINE("") "engines: {}\n", 3, "engine.version", "t.yaml is for 0.5 and later");
	struct made m = make_good(OLD_ENGINE(", command: [/bin/own]") "engines: {}\n");
	unmake(&m);
	expect_found(FLEET "connector: nixl\n" HOSTS "decode: {}\n", 4, "connector",
		"only prefill and decode engines have one");
}

#define AT(a, b)                                                                                   \
	FLEET "connector: nixl\nhosts:\n  a: {address: " a ", gpus: 2}\n  b: {address: " b         \
	      ", gpus: 2}\n"                                                                       \
	      "prefill: {}\ndecode: {}\n"

Test(plan, addresses)
{
	expect_found(AT("127.0.0.1", "10.0.0.1"), 6, "a", "is the host itself");
	expect_found(AT("localhost", "10.0.0.1"), 6, "a", "is the host itself");
	expect_found(AT("10.0.0.1", "\"::1\""), 7, "b", "is the host itself");
	expect_found(AT("10.0.0.1", "\"[fd00::1]\""), 7, "b", "neither an address nor a name");
	expect_found(AT("10.0.0.1", "10.0.0.2:8000"), 7, "b", "neither an address nor a name");
	expect_found(AT("10.0.0.1", "0.0.0.0"), 7, "b", "means all addresses");
	expect_found(AT("10.0.0.1", "10.0.0.1"), 7, "b", "is that of host a too");
	expect_found(AT("10.0.0.1", "$(hostname -i)"), 7, "b", "neither an address nor a name");
	struct made m =
		make_good(FLEET "connector: nixl\nhosts: {a: {address: 127.0.0.1, gpus: 2}}\n"
				"prefill: {}\ndecode: {}\n");
	unmake(&m);
	m = make_good(AT("localhost-1.example", "\"::1:2\""));
	unmake(&m);
}

Test(plan, texts)
{
	expect_found(FULL("", "hosts: [b], args: [\"${rdma}\"]"), 9, "",
		"${rdma} has no value for decode");
	expect_found(FULL("args: [\"${port.foo}\"]", ""), 8, "", "${port.foo} has no value");
	expect_found(FULL("env: {9A: x}", ""), 8, "", "9A cannot be the name of a variable");
	expect_found(FULL("env: {PDROUTER_FLEET_DIGEST: x}", ""), 8, "",
		"PDROUTER_FLEET_DIGEST: names with PDROUTER_FLEET_ are those of pdctl fleet");
	expect_found(FLEET "port_offset: 0\n" HOSTS "engines: {args: [\"${router.address}\"]}\n", 8,
		"", "${router.address} has no value");
	expect_found("fleet: f\nmodel: {path: m}\n"
		     "engine: {kind: vllm, version: \"0.12\", command: [engine]}\n" HOSTS
		     "engines: {}\n",
		3, "", "engine: systemd needs the full path");
	expect_found(
		"fleet: f\nmodel: {path: m}\nengine: {kind: vllm, version: \"0.12\", container: i, "
		"container_runtime: lxc}\n" HOSTS "engines: {}\n",
		3, "engine.container_runtime", "has no lxc, but podman");
	expect_found("fleet: f\nmodel: {path: m}\n"
		     "engine: {kind: vllm, version: \"0.12\", container_args: [x]}\n" HOSTS
		     "engines: {}\n",
		3, "engine.container_args", "needs engine.container");
}

Test(plan, names_and_router)
{
	expect_found(
		"fleet: \"f/g\"\nmodel: {path: m}\nengine: {kind: vllm, version: \"0.12\"}\n" HOSTS
		"engines: {}\n",
		1, "fleet", "part of a unit's name");
	expect_found(FLEET "hosts: {\"x\\e[1m\": {address: 10.0.0.1, gpus: 1}}\nengines: {}\n", 4,
		"hosts", "x?[1m cannot be a host's name");
	expect_found(FLEET "hosts: {\"../x\": {address: 10.0.0.1, gpus: 1}}\nengines: {}\n", 4,
		"hosts", "cannot be a host's name");
	expect_found(FLEET HOSTS "engines: {}\nrouter: {hosts: [c]}\n", 8, "router.hosts",
		"no host is named c");
	expect_found(
		FLEET HOSTS "engines: {}\nrouter: {hosts: []}\n", 8, "router.hosts", "is empty");
	expect_found(FLEET HOSTS "engines: {}\nrouter: {hosts: [a], pool: {retris: 1}}\n", 8,
		"router", "pools[0].retris: unknown key; did you mean retries?");
	/* what is written for a router that follows the file */
	expect_found(FLEET HOSTS
		"engines: {}\nrouter: {hosts: [a], fleet_file: /f, pool: {fleet_file: /g}}\n",
		8, "router", "pools[0].fleet_file: given twice");
	expect_found(FLEET HOSTS
		"engines: {}\nrouter: {hosts: [a], fleet_file: /f, pool: {watch: maybe}}\n",
		8, "router", "pools[0].watch: ");
	expect_found(FLEET HOSTS
		"engines: {}\nrouter: {hosts: [a], fleet_file: /f, pool: {prefill: [{url: \"http://x:1\"}]}}\n",
		8, "router", "pools[0].fleet_file: replaces prefill and decode");
	expect_found(FLEET "connector: lmcache\n" HOSTS "prefill: {}\ndecode: {}\n"
			   "router: {hosts: [a, b]}\n",
		10, "router.hosts", "report to one router only");
	expect_found(FLEET "connector: lmcache\n" HOSTS
			   "prefill: {}\ndecode: {env: {CACHE: x}}\n" ROUTER,
		8, "prefill", "lmcache needs env: {CACHE: ...}");
}

Test(plan, roles_agree)
{
	expect_found(FULL("args: [--block-size, 16]", "args: [--block-size, 32]"), 9, "decode",
		"--block-size of f-decode-0 is 32, that of f-prefill-0 is 16: nixl needs the same");
	expect_found(FULL("args: [--block_size=16]", ""), 9, "decode",
		"--block-size of f-decode-0 is not given, that of f-prefill-0 is 16");
	expect_found(FULL("replicas: 2, overrides: [{replica: 1, env: {CHUNK: 7}}]", ""), 8,
		"prefill", "CHUNK of f-prefill-1 is 7, that of f-prefill-0 is not given");
	expect_found(FULL("args: [--kv, '{\"parallel\": 2}']", "args: [--kv, '{\"parallel\": 1}']"),
		9, "decode", "--kv.parallel of f-decode-0 is 1, that of f-prefill-0 is 2");
	/* the last one counts; a flag's value may be a member of JSON */
	struct made m = make_good(FULL(
		"args: [--block-size, 16, --block-size=32, --kv.parallel, 2]",
		"args: [--block-size, 32, --kv, '{\"x\": [1], \"parallel\": 2}'], env: {OTHER: 1}"));
	unmake(&m);
}

Test(plan, all_is_found_in_the_order_of_lines)
{
	struct made m =
		make(FULL("hosts: [c], tensor_parallel: 4", "hosts: [d], tensor_parallel: 2"));

	cr_expect_eq(m.plan->nfindings, 3);
	for (size_t i = 1; i < m.plan->nfindings; i++)
		cr_expect_leq(m.plan->findings[i - 1].line, m.plan->findings[i].line);
	unmake(&m);
}

static const char *
variable(const struct made *m, const char *name, const char *variable)
{
	const struct topo_setting *s = topo_setting(&engine(m, name)->env, variable);

	return s != NULL ? s->value.text : NULL;
}

#define RUN_BY(how)                                                                                \
	"fleet: f\nmodel: {path: m}\nengine: {kind: vllm, version: \"0.12\"" how "}\n" HOSTS       \
	"engines: {}\n"

/* An engine of a venv finds the programs of the venv; a container has a PATH of its own. */
Test(plan, path_of_a_venv)
{
	struct made m = make_good(RUN_BY(", venv: /venv"));

	cr_expect_str_eq(variable(&m, "f-engines-0", "PATH"), "/venv/bin:/bin");
	unmake(&m);
	m = make_good(RUN_BY(", venv: /venv, container: image"));
	cr_expect_null(variable(&m, "f-engines-0", "PATH"));
	unmake(&m);
	m = make_good(RUN_BY(""));
	cr_expect_null(variable(&m, "f-engines-0", "PATH"));
	unmake(&m);
	m = make_good(FLEET HOSTS "engines: {env: {PATH: /own}}\n");
	cr_expect_str_eq(variable(&m, "f-engines-0", "PATH"), "/own");
	unmake(&m);
}

#define WITH(args) FULL("args: [" args "]", "")
#define ENV(env) FULL("env: {" env "}", "")

/* What the template derives from the plan has one place in the fleet file. */
Test(plan, args_and_env_cannot_overrule_the_plan)
{
	expect_found(WITH("--port, 9999"), 8, "prefill",
		"--port overrules the plan, which has ${port.api} there: write ports: {api: ...}");
	expect_found(WITH("--port=9999"), 8, "prefill", "write ports: {api: ...}");
	expect_found(WITH("-p, 9999"), 8, "prefill", "-p overrules the plan");
	expect_found(WITH("--model, other"), 8, "prefill", "write model.path");
	expect_found(FULL("data_parallel: 2, args: [--ranks, 8]", "data_parallel: 2"), 8, "prefill",
		"write data_parallel");
	expect_found(
		ENV("GPUS: \"0,1\""), 8, "prefill", "GPUS overrules the plan, which has ${gpus}");
	expect_found(ENV("SIDE: \"${address}:1\""), 8, "prefill", "write ports: {side: ...}");
	expect_found(FULL("", "replicas: 2, overrides: [{replica: 1, args: [--port, 1]}]"), 9,
		"decode", "--port overrules the plan");
	expect_found(FULL("", "replicas: 2,\n  overrides: [{replica: 1,\n  env: {GPUS: all}}]"), 11,
		"decode", "write gpus of hosts or overrides");
}

/* The same name in the user's text, and what the plan does not decide. */
Test(plan, args_and_env_beside_the_plan)
{
	struct made m = make_good(
		FULL("args: [--port, \"${port.api}\", --ports, 7, --ranks, 1, --kv, '{\"a\": 1}'],"
		     "env: {SIDE: \"${address}:${port.side}\", NET: all, GPU: 1}",
			"env: {PATH: /bin}"));

	unmake(&m);
	m = make_good("fleet: f\nmodel: {path: m}\n"
		      "engine: {kind: vllm, version: \"0.12\", command: [/bin/own]}\n" HOSTS
		      "engines: {args: [--port, 1]}\n");
	unmake(&m);
}

#define CONFIG(prefill, config)                                                                    \
	FLEET "connector: nixl\n" HOSTS "prefill: {" prefill "}\ndecode: {hosts: [b]}\n"           \
	      "router: {hosts: [a], config: {" config "}}\n"

Test(plan, ports_of_router_config)
{
	expect_found(CONFIG("hosts: [a]", "admin: {listen: [\"10.0.0.1:8100\"]}"), 8, "prefill",
		"port 8100 (api) of f-prefill-0 on a is taken by the router (admin.listen): "
		"write ports: {api: ...} or port_offset");
	expect_found(CONFIG("hosts: [a]", "announce: {listen: \"tcp://*:5600\"}"), 8, "prefill",
		"port 5600 (side) of f-prefill-0 on a is taken by the router (announce.listen)");
	expect_found(CONFIG("hosts: [a]", "lmcache: {listen: \"tcp://*:8100\"}"), 8, "prefill",
		"taken by the router (lmcache.listen)");
	struct made m = make_good(CONFIG("hosts: [b]", "admin: {listen: [\"10.0.0.1:8100\"]}"));
	unmake(&m);
	m = make_good(FLEET "connector: lmcache\n" HOSTS
			    "prefill: {env: {CACHE: x}}\ndecode: {hosts: [b], env: {CACHE: x}}\n"
			    "router: {hosts: [a]}\n");
	unmake(&m);
}

/* One mistake, one finding. */
Test(plan, a_port_without_a_name_of_the_template_is_one_finding)
{
	struct made m =
		make(FULL("ports: {apy: 5600}, hosts: [a]", "ports: {apy: 8100}, hosts: [a]"));

	cr_expect_eq(m.plan->nfindings, 2);
	unmake(&m);
}

#define VERSION(v)                                                                                 \
	"fleet: f\nmodel: {path: m}\nengine: {kind: vllm, version: \"" v                           \
	"\"}\nconnector: nixl\n" HOSTS "prefill: {}\ndecode: {}\n"

Test(plan, a_version_begins_with_a_number)
{
	struct made m = make(VERSION("v0.12.0"));

	cr_expect_eq(m.plan->nfindings, 1);
	cr_expect_str_eq(
		m.plan->findings[0].what, "v0.12.0 does not begin with a number: write \"0.12.0\"");
	unmake(&m);
	expect_found(VERSION("latest"), 3, "engine.version", "write one such as");
}

/* The template's command needs a venv: that is a mistake of the fleet file. */
Test(plan, what_starts_the_engine)
{
	struct topo_template *template = NULL;
	struct made m = make_good(FLEET HOSTS "engines: {}\n");
	const char *text = "command: [\"${venv}/bin/x\"]\nengines: {ports: {api: 1}}\n";
	struct conf_error err;
	struct topo_plan *p;

	cr_assert_eq(topo_template_parse("t.yaml", text, strlen(text), &template, &err), 0);
	p = topo_plan_make(m.t, template);
	cr_expect_eq(p->nfindings, 1);
	cr_expect(strcmp(p->findings[0].file, "f.yaml") == 0 && p->findings[0].line == 3);
	cr_expect_str_eq(p->findings[0].key, "engine");
	cr_expect_str_eq(
		p->findings[0].what, "venv, container or command is needed: what starts vllm?");
	topo_plan_free(&p);
	topo_template_free(&template);
	unmake(&m);
}
