/* A fleet file as a source of endpoints: their lines, their keys, and errors as of any other file. */
#include "master/topology/source.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "tests/unit/master/topology.h"

static char dir[] = "/tmp/pdr-source-XXXXXX";

static void
put(const char *name, const char *text)
{
	FILE *f = fopen(name, "w");

	cr_assert_not_null(f);
	(void)fputs(text, f);
	cr_assert_eq(fclose(f), 0);
}

/* The working folder has the template beside the fleet file. */
static void
enter(void)
{
	cr_assert_not_null(mkdtemp(dir));
	cr_assert_eq(chdir(dir), 0);
	cr_assert_eq(mkdir("fleet.d", 0700), 0);
	put("fleet.d/vllm.yaml", TEMPLATE);
}

static void
leave(void)
{
	(void)unlink("fleet.d/vllm.yaml");
	(void)rmdir("fleet.d");
	(void)unlink("fleet.yaml");
	(void)rmdir(dir);
}

TestSuite(source, .init = enter, .fini = leave);

static void
expect(const char *fleet, const char *connector, const char *text)
{
	struct conf_fleet f = {.text = NULL};
	struct conf_error err = {.line = 0};

	put("fleet.yaml", fleet);
	cr_assert_eq(topo_source("fleet.yaml", &f, &err), 0, "%s %s", err.key, err.what);
	cr_expect(f.n == strlen(text) && memcmp(f.text, text, f.n) == 0, "%.*s", (int)f.n, f.text);
	cr_expect((f.connector == NULL) == (connector == NULL) &&
		  (connector == NULL || strcmp(f.connector, connector) == 0));
	free(f.text);
	free(f.connector);
}

Test(source, engines_stand_in_the_lines_of_their_groups)
{
	expect(FULL("replicas: 2, hosts: [a]", "hosts: [b]"), "nixl",
		"[\n\n\n\n\n\n\n{role: prefill, url: \"http://10.0.0.1:8100\", group: \"rack-1\"}, "
		"{role: prefill, url: \"http://10.0.0.1:8101\", group: \"rack-1\"}, \n"
		"{role: decode, url: \"http://10.0.0.2:8200\"}, ]\n");
	expect(FLEET
		"decode: {hosts: [b], env: {CACHE: x}}\nprefill: {hosts: [a], env: {CACHE: x}}\n"
		"connector: lmcache\n" HOSTS ROUTER,
		"lmcache",
		"[\n\n\n{role: decode, url: \"http://10.0.0.2:8200\", receiver_init_port: [7300], "
		"receiver_alloc_port: [7300]}, \n{role: prefill, url: \"http://10.0.0.1:8100\", "
		"group: \"rack-1\"}, ]\n");
}

Test(source, engines_without_disaggregation_have_both_roles)
{
	expect(FLEET HOSTS "engines: {hosts: [b]}\n", NULL,
		"[\n\n\n\n\n\n{role: prefill, url: \"http://10.0.0.2:8300\"}, "
		"{role: decode, url: \"http://10.0.0.2:8300\"}, ]\n");
}

static void
expect_error(const char *fleet, const char *text)
{
	struct conf_fleet f = {.text = NULL};
	struct conf_error err = {.line = 0};
	char buf[1024];

	put("fleet.yaml", fleet);
	cr_expect_eq(topo_source("fleet.yaml", &f, &err), -1);
	cr_expect_null(f.text);
	(void)conf_error_text(&err, buf, sizeof(buf));
	cr_expect(strncmp(buf, text, strlen(text)) == 0, "%s", buf);
}

Test(source, errors)
{
	expect_error("fleet: [\n", "fleet.yaml:2: not YAML");
	expect_error(FULL("replica: 2", ""), "fleet.yaml:8: prefill.replica: unknown");
	expect_error(FULL("replicas: 13", ""), "fleet.yaml:8: prefill.replicas: ");
	expect_error("fleet: f\nmodel: {path: m}\nengine: {kind: other}\n" HOSTS "engines: {}\n",
		"fleet.yaml:3: engine.kind: no template for other: neither fleet.d/other.yaml nor /");
	put("fleet.d/vllm.yaml", "command: 3\n");
	expect_error(FULL("", ""), "fleet.d/vllm.yaml:1: command: a list");
}

/* 64 engines with `n` arguments of `times` names each. */
static char *
many(int n, int times)
{
	struct membuf b = {.p = NULL};
	const char *const head =
		FLEET "hosts: {a: {address: h, gpus: 64}}\nengines: {replicas: 64, args: [";

	membuf_add(&b, head, strlen(head));
	for (int i = 0; i < n; i++) {
		membuf_add(&b, "\"", 1);
		for (int k = 0; k < times; k++)
			membuf_add(&b, "${name}", 7);
		membuf_add(&b, "\", ", 3);
	}
	membuf_add(&b, "]}\n", 4); /* with its NUL */
	return b.p;
}

/* The master reads such files: what engines amount to is bounded, however it is written. */
Test(source, arguments_are_bounded)
{
	char *text = many(1, 20000);

	expect_error(text, "fleet.yaml:5: is longer than 131072 bytes with its names replaced");
	free(text);
	text = many(1000, 60);
	expect_error(text,
		"fleet.yaml: the arguments and variables of all engines are larger than 32 MiB");
	free(text);
}
