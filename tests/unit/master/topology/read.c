/* Mistakes in the form of a fleet file or a template: file, line, key and reason. */
#include "tests/unit/master/topology.h"

static void
expect_bad(const char *text, int line, const char *key, const char *word)
{
	struct conf_error err = {.line = -1};
	struct topology *t = NULL;

	cr_expect_eq(topo_parse("f.yaml", text, strlen(text), &t, &err), -1, "%s", text);
	cr_expect(err.line == line && strcmp(err.key, key) == 0 && strstr(err.what, word) != NULL,
		"%s-> line %d key %s: %s (expected %d, %s: ..%s..)", text, err.line, err.key,
		err.what, line, key, word);
	topo_free(&t);
}

static void
expect_bad_template(const char *text, int line, const char *key, const char *word)
{
	struct conf_error err = {.line = -1};
	struct topo_template *t = NULL;

	cr_expect_eq(topo_template_parse("t.yaml", text, strlen(text), &t, &err), -1, "%s", text);
	cr_expect(err.line == line && strcmp(err.key, key) == 0 && strstr(err.what, word) != NULL,
		"%s-> line %d key %s: %s (expected %d, %s: ..%s..)", text, err.line, err.key,
		err.what, line, key, word);
	topo_template_free(&t);
}

Test(read, form)
{
	expect_bad("", 0, "", "empty");
	expect_bad("model: {path: m}\n", 1, "fleet", "is missing");
	expect_bad("fleet: f\nmodel: {pth: m}\n", 2, "model.pth", "did you mean model.path?");
	expect_bad("fleet: f\nretries: 1\n", 2, "retries", "unknown key");
	expect_bad("router: {hosts: [a], port: 80}\n", 1, "router.port",
		"unknown key; did you mean listen?");
	expect_bad("fleet: 7\n", 1, "fleet", "quote it");
	expect_bad("engine: {version: 0.21}\n", 1, "engine.version", "quote it");
	expect_bad("engine: {command: x}\n", 1, "engine.command", "a list");
	expect_bad("engine: {command: [\"a\\u0001\"]}\n", 1, "engine.command[0]", "control byte");
	expect_bad("port_offset: 60001\n", 1, "port_offset", "out of bounds");
}

Test(read, hosts)
{
	expect_bad("hosts: [a]\n", 1, "hosts", "a mapping is needed");
	expect_bad("hosts: {a: {}}\n", 1, "hosts.a.address", "is missing");
	expect_bad("hosts: {a: {address: b}, a: {address: c}}\n", 1, "hosts.a", "given twice");
	expect_bad("hosts: {a: {address: b, gpus: [1, 1]}}\n", 1, "hosts.a.gpus[1]", "twice");
	expect_bad("hosts: {a: {address: b, gpus: [x]}}\n", 1, "hosts.a.gpus[0]", "not a GPU");
	expect_bad(
		"hosts: {a: {address: b, gpus: 65}}\n", 1, "hosts.a.gpus", "not a number of GPUs");
	expect_bad("hosts: {a: {address: b, gpu: 1}}\n", 1, "hosts.a.gpu", "did you mean gpus?");
}

Test(read, groups)
{
	expect_bad("prefill: {replicas: 0}\n", 1, "prefill.replicas", "out of bounds");
	expect_bad("prefill: {replica: 2}\n", 1, "prefill.replica", "did you mean replicas?");
	expect_bad("prefill:\n  args: [\"${prot.api}\"]\n", 2, "prefill.args[0]",
		"${prot.api}: there is no such name");
	expect_bad(
		"prefill: {env: {A: \"${model\"}}\n", 1, "prefill.env.A", "${model: there is no");
	expect_bad("prefill: {args: [\"${}\"]}\n", 1, "prefill.args[0]", "${}: there is no");
	expect_bad("prefill: {ports: {api: 70000}}\n", 1, "prefill.ports.api", "not a port");
	expect_bad("prefill: {ports: {API: 7}}\n", 1, "prefill.ports.API", "small letters");
	expect_bad(
		"decode: {overrides: [{host: a}]}\n", 1, "decode.overrides[0].replica", "missing");
	expect_bad("decode: {overrides: [{replica: 1}, {replica: 1}]}\n", 1, "decode.overrides[1]",
		"listed twice");
	expect_bad("router: {hosts: a}\n", 1, "router.hosts", "a list");
	expect_bad("router: {pool: {\"a b\": 1}}\n", 1, "router.pool.a b", "small letters");
}

Test(read, templates)
{
	expect_bad_template("all: {}\n", 1, "command", "is missing");
	expect_bad_template(
		"command: [a, \"${x}\"]\n", 1, "command[1]", "no such name: name, fleet, ");
	expect_bad_template(
		"command: [a, \"${x}\"]\n", 1, "command[1]", ", ports.NAME, router.port.NAME");
	expect_bad_template(
		"all: {ports: {a: {first: 1, each: gpu}}}\n", 1, "all.ports.a.each", "not rank");
	expect_bad_template("all: {ports: {a: {first: 1, for: all}}}\n", 1, "all.ports.a.for",
		"not data_parallel");
	expect_bad_template("connectors: [{since: \"1\"}]\n", 1, "connectors[0].name", "missing");
	expect_bad_template("connectors: [{name: a, tensor_parallel: two}]\n", 1,
		"connectors[0].tensor_parallel", "not a rule");
	expect_bad_template(
		"connectors: [{name: a, agree: --dtype}]\n", 1, "connectors[0].agree", "a list");
}

static bool
has(const struct topo_template *t, const char *version)
{
	return topo_connector(t, "nixl", version) != NULL;
}

Test(read, versions)
{
	struct made m = make(FULL("", ""));

	cr_expect(has(m.template, "0.9") && has(m.template, "0.9.1") && has(m.template, "0.10.0"));
	cr_expect(has(m.template, "0.13.2") && has(m.template, "0.13.0.post1"));
	cr_expect(!has(m.template, "0.8.5") && !has(m.template, "0.14.0") && !has(m.template, "1"));
	cr_expect_null(topo_connector(m.template, "nix", "0.9"));
	unmake(&m);
}

Test(read, ranks)
{
	cr_expect_null(topo_tp_refuses(TOPO_TP_ANY, 3, 2));
	cr_expect_null(topo_tp_refuses(TOPO_TP_EQUAL, 2, 2));
	cr_expect_not_null(topo_tp_refuses(TOPO_TP_EQUAL, 2, 4));
	cr_expect_null(topo_tp_refuses(TOPO_TP_DECODE_MULTIPLE, 2, 4));
	cr_expect_not_null(topo_tp_refuses(TOPO_TP_DECODE_MULTIPLE, 4, 2));
	cr_expect_null(topo_tp_refuses(TOPO_TP_MULTIPLE, 4, 2));
	cr_expect_not_null(topo_tp_refuses(TOPO_TP_MULTIPLE, 3, 2));
}
