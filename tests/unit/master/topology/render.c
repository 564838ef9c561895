/* The files of a host, byte for byte, and systemd's quoting. */
#include "tests/unit/master/topology.h"

#include <stdlib.h>

#include "master/topology/render.h"
#include "master/topology/text.h"

#define HEAD "# Written by pdctl fleet for the fleet f: change the fleet file instead.\n"

static void
expect_quoted(void (*quote)(struct membuf *, const char *), const char *text, const char *want)
{
	struct membuf b = {.p = NULL};

	quote(&b, text);
	cr_expect(b.n == strlen(want) && memcmp(b.p, want, b.n) == 0, "%.*s (expected %s)",
		(int)b.n, b.p, want);
	membuf_free(&b);
}

Test(render, quoting)
{
	expect_quoted(topo_add_exec, "", "\"\"");
	expect_quoted(topo_add_exec, "a b;", "\"a b;\"");
	expect_quoted(topo_add_exec, "{\"a\":\"\\\"}", "\"{\\\"a\\\":\\\"\\\\\\\"}\"");
	expect_quoted(topo_add_exec, "50% $HOME ${x} 'y'", "\"50%% $$HOME $${x} 'y'\"");
	expect_quoted(topo_add_env, "50% $HOME `id` \"\\'", "\"50% \\$HOME \\`id\\` \\\"\\\\'\"");
}

static const struct topo_file *
file(const struct topo_files *f, const char *path)
{
	for (size_t i = 0; i < f->n; i++)
		if (strcmp(f->v[i].path, path) == 0)
			return &f->v[i];
	cr_assert_fail("no file %s", path);
	return NULL;
}

static void
expect_file(const struct topo_files *f, const char *path, const char *want)
{
	const struct topo_file *have = file(f, path);

	cr_expect(have->n == strlen(want) && memcmp(have->bytes, want, have->n) == 0,
		"%s:\n%.*s\nexpected:\n%s", path, (int)have->n, have->bytes, want);
}

static void
expect_word(const struct topo_files *f, const char *path, const char *word)
{
	const struct topo_file *have = file(f, path);

	cr_expect_not_null(
		memmem(have->bytes, have->n, word, strlen(word)), "%s has no %s", path, word);
}

Test(render, one_host)
{
	struct made m =
		make_good(FULL("hosts: [a], args: [--max, \"50%\"], env: {LEVEL: INFO, NET: all}",
			"hosts: [b], tensor_parallel: 2"));
	struct topo_files f = topo_render(m.plan, topo_host(m.t, "a"));

	cr_expect_eq(f.n, 3);
	/* an environment may hold keys */
	cr_expect_eq(file(&f, "etc/pdrouter/fleet/f-prefill-0.env")->mode, 0600u);
	expect_file(&f, "etc/pdrouter/fleet/f-prefill-0.env",
		HEAD
		"GPUS=\"0\"\nSIDE=\"10.0.0.1:5600\"\nNET=\"all\"\nLEVEL=\"INFO\"\n"
		"PDROUTER_FLEET_URL=\"http://10.0.0.1:8100\"\nPDROUTER_FLEET_DIGEST=\"50ebbe06c274d2bc\"\n");
	expect_file(&f, "etc/systemd/system/pdrouter-engine@f-prefill-0.service.d/engine.conf",
		HEAD
		"[Unit]\nDescription=prefill engine 0 of the fleet f\n\n[Service]\n"
		"EnvironmentFile=/etc/pdrouter/fleet/f-prefill-0.env\n"
		"ExecStart=\"/bin/engine\" \"0.0.0.0\" \"--model\" \"m\" \"--port\" \"8100\" \"--kv\" "
		"\"{\\\"a\\\":\\\"b\\\"}\" \"--max\" \"50%%\"\n"
		"Environment=\"PDROUTER_FLEET_UNIT=50ebbe06c274d2bc\"\n");
	expect_file(&f, "etc/pdrouter/pdrouter.yaml",
		HEAD
		"listen: [\"0.0.0.0:8000\"]\nhealth_timeout: 20s\npools:\n  - name: \"f\"\n    models: [\"m\"]\n"
		"    connector: nixl\n    retries: 1\n"
		"    prefill:\n      - {url: \"http://10.0.0.1:8100\", group: \"rack-1\"}\n"
		"    decode:\n      - {url: \"http://10.0.0.2:8200\"}\n");
	topo_files_free(&f);
	unmake(&m);
}

Test(render, a_file_of_its_own)
{
	struct made m = make_good(
		FLEET "connector: lmcache\n" HOSTS "prefill: {hosts: [a], env: {CACHE: x}}\n"
		      "decode: {hosts: [b], tensor_parallel: 2, env: {CACHE: x}}\n" ROUTER);
	struct topo_files a = topo_render(m.plan, topo_host(m.t, "a"));
	struct topo_files b = topo_render(m.plan, topo_host(m.t, "b"));

	expect_file(&b, "etc/pdrouter/fleet/f-decode-0.yaml", HEAD "ports: [7300, 7301]\n");
	expect_file(&b, "etc/pdrouter/fleet/f-decode-0.env",
		HEAD
		"GPUS=\"2,3\"\nFILE=\"/etc/pdrouter/fleet/f-decode-0.yaml\"\nTO=\"10.0.0.1:7500\"\n"
		"CACHE=\"x\"\nPDROUTER_FLEET_URL=\"http://10.0.0.2:8200\"\nPDROUTER_FLEET_DIGEST=\"6bd9cc6858f3862d\"\n");
	expect_file(&a, "etc/pdrouter/pdrouter.yaml",
		HEAD
		"listen: [\"0.0.0.0:8000\"]\nhealth_timeout: 20s\nlmcache: {listen: \"tcp://*:7500\"}\n"
		"pools:\n  - name: \"f\"\n    models: [\"m\"]\n    connector: lmcache\n    retries: 1\n"
		"    prefill:\n      - {url: \"http://10.0.0.1:8100\", group: \"rack-1\"}\n"
		"    decode:\n      - {url: \"http://10.0.0.2:8200\", receiver_init_port: [7300, 7301], "
		"receiver_alloc_port: [7300, 7301]}\n");
	topo_files_free(&a);
	topo_files_free(&b);
	unmake(&m);
}

Test(render, a_container)
{
	struct made m = make_good(
		"fleet: f\nmodel: {path: /m}\n"
		"engine: {kind: vllm, version: \"0.12\", container: \"i:1\", container_args: [-x]}\n" HOSTS
		"engines: {hosts: [a], args: [--max, 1], env: {LEVEL: INFO}}\n");
	struct topo_files f = topo_render(m.plan, topo_host(m.t, "a"));

	expect_file(&f, "etc/systemd/system/pdrouter-engine@f-engines-0.service.d/engine.conf",
		HEAD "[Unit]\nDescription=engines engine 0 of the fleet f\n\n[Service]\n"
		     "EnvironmentFile=/etc/pdrouter/fleet/f-engines-0.env\n"
		     "ExecStart=\"/bin/podman\" \"--name\" \"f-engines-0\" \"--gpu\" \"--rdma\" "
		     "\"-v/m\" \"--env=GPUS\" \"--env=LEVEL\" \"-x\" \"engine\" \"i:1\" "
		     "\"0.0.0.0\" \"--model\" \"/m\" \"--port\" \"8300\" \"--max\" \"1\"\n"
		     "ExecStartPre=-\"/bin/podman\" \"rm\" \"f-engines-0\"\n"
		     "ExecStopPost=-\"/bin/podman\" \"rm\" \"f-engines-0\"\n"
		     "Delegate=yes\nEnvironment=\"PDROUTER_FLEET_UNIT=b18185d06bc5f788\"\n");
	topo_files_free(&f);
	unmake(&m);
}

Test(render, without_disaggregation_no_prompt_is_split)
{
	struct made m = make_good(
		"fleet: f\nmodel: {path: m}\n"
		"engine: {kind: vllm, version: \"0.12\", command: [/bin/x, \"${all_addresses}\", \"${port.api}\"]}\n"
		"hosts: {a: {address: \"fd00::1\"}}\nengines: {replicas: 2}\n"
		"router: {hosts: [a], listen: [\"127.0.0.1:1\"], config: {workers: 1, limits: {max_body: 1MiB}},\n"
		"         pool: {session_header: X-A, timeouts: {connect: 3s}}}\n");
	struct topo_files f = topo_render(m.plan, topo_host(m.t, "a"));

	expect_file(&f, "etc/pdrouter/pdrouter.yaml",
		HEAD
		"listen: [\"127.0.0.1:1\"]\nhealth_timeout: 20s\nworkers: 1\nlimits: {max_body: 1MiB}\n"
		"pools:\n  - name: \"f\"\n    models: [\"m\"]\n    connector: shared_storage\n"
		"    routing_threshold: 1000000000\n"
		"    session_header: X-A\n    timeouts: {connect: 3s}\n"
		"    prefill:\n      - {url: \"http://[fd00::1]:8300\"}\n"
		"      - {url: \"http://[fd00::1]:8301\"}\n"
		"    decode:\n      - {url: \"http://[fd00::1]:8300\"}\n"
		"      - {url: \"http://[fd00::1]:8301\"}\n");
	/* no GPUs are named: the engine has all of them, and listens where its address is */
	expect_file(&f, "etc/pdrouter/fleet/f-engines-0.env",
		HEAD
		"PDROUTER_FLEET_URL=\"http://[fd00::1]:8300\"\nPDROUTER_FLEET_DIGEST=\"07ab11ef11250e98\"\n");
	expect_word(&f, "etc/systemd/system/pdrouter-engine@f-engines-0.service.d/engine.conf",
		"\"::\"");
	topo_files_free(&f);
	unmake(&m);
}

/* Which bytes, other tests say: here only when it changes. */
Test(render, the_digest_is_of_all_files_of_one_engine)
{
	struct made m = make_good(FULL("hosts: [a], replicas: 2", "hosts: [b]"));
	struct made args = make_good(FULL("hosts: [a], replicas: 2, args: [--x]", "hosts: [b]"));
	const struct topo_plan *const plans[] = {m.plan, m.plan, args.plan};
	char *digest[3];

	for (size_t i = 0; i < 3; i++) {
		struct topo_files f = topo_render_engine(plans[i], &plans[i]->engines[i == 1]);

		cr_assert(f.n > 0 && f.v[0].n > 17);
		digest[i] = mem_strndup(f.v[0].bytes + f.v[0].n - 18, 16);
		topo_files_free(&f);
	}
	cr_expect_str_neq(digest[0], digest[1], "another engine");
	cr_expect_str_neq(digest[0], digest[2], "the drop-in alone differs");
	for (size_t i = 0; i < 3; i++)
		free(digest[i]);
	unmake(&m);
	unmake(&args);
}

Test(render, a_router_that_follows_the_file)
{
	static const struct {
		const char *pool, *watch;
	} rows[] = {{"", "    watch: true\n"}, {"watch: false", ""}, {"watch: true", ""}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *fleet =
			mem_printf(FLEET "connector: nixl\n" HOSTS "prefill: {}\ndecode: {}\n"
					 "router: {hosts: [b], fleet_file: /f.yaml, pool: {%s}}\n",
				rows[i].pool);
		struct made m = make_good(fleet);
		struct topo_files f = topo_render_router(m.plan, topo_host(m.t, "b"));
		char *want = mem_printf(HEAD
			"listen: [\"0.0.0.0:8000\"]\nhealth_timeout: 20s\npools:\n  - name: \"f\"\n"
			"    models: [\"m\"]\n    connector: nixl\n%s%s%s    fleet_file: \"/f.yaml\"\n%s",
			i > 0 ? "    " : "", rows[i].pool, i > 0 ? "\n" : "", rows[i].watch);

		expect_file(&f, "etc/pdrouter/pdrouter.yaml", want);
		topo_files_free(&f);
		unmake(&m);
		free(want);
		free(fleet);
	}
}

static void
expect_ports(const char *devices, const char *line)
{
	char *fleet = mem_printf(FLEET
		"connector: nixl\nhosts: {a: {address: 10.0.0.1, gpus: 2, rdma: \"%s\"}}\n"
		"prefill: {}\ndecode: {}\n",
		devices);
	struct made m = make_good(fleet);
	struct topo_files f = topo_render(m.plan, topo_host(m.t, "a"));

	expect_word(&f, "etc/pdrouter/fleet/f-prefill-0.env", line);
	topo_files_free(&f);
	unmake(&m);
	free(fleet);
}

Test(render, each_rdma_device_has_its_port)
{
	expect_ports("mlx5_0", "NET=\"mlx5_0:1\"\n");
	expect_ports("mlx5_0,mlx5_1", "NET=\"mlx5_0:1,mlx5_1:1\"\n");
	expect_ports("mlx5_0:2,mlx5_1", "NET=\"mlx5_0:2,mlx5_1:1\"\n");
}

Test(render, another_name_of_a_connector)
{
	struct made m = make_good(
		FLEET "connector: orchestrated\n" HOSTS "prefill: {}\ndecode: {}\n" ROUTER);
	struct topo_files f = topo_render(m.plan, topo_host(m.t, "a"));

	expect_word(&f, "etc/pdrouter/pdrouter.yaml", "    connector: orchestrated\n");
	expect_word(&f, "etc/pdrouter/fleet/f-prefill-0.env", "SIDE=");
	topo_files_free(&f);
	unmake(&m);
}
