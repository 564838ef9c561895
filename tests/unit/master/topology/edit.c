/* Scaling a group changes one value of the file and no other byte, in whatever style the file is written. */
#include "master/topology/edit.h"

#include <stdlib.h>

#include "tests/unit/master/topology.h"

#define HEAD_OF(end)                                                                               \
	"fleet: f" end "model: {path: m}" end "engine: {kind: vllm}" end                           \
	"hosts: {a: {address: h}}" end
#define HEAD HEAD_OF("\n")

static int
scale(const char *text, uint32_t replicas, struct membuf *out, struct conf_error *err)
{
	return topo_scale("f.yaml", text, strlen(text), TOPO_DECODE, replicas, out, err);
}

static const struct {
	const char *before, *after;
} good[] = {
	/* replaced */
	{"decode: {replicas: 2}", "decode: {replicas: 13}"},
	{"decode: {tensor_parallel: 2, replicas: 2, hosts: [a]} # two",
		"decode: {tensor_parallel: 2, replicas: 13, hosts: [a]} # two"},
	{"decode:\n  # how many\n  replicas:   2   # replicas: 2\n\n",
		"decode:\n  # how many\n  replicas:   13   # replicas: 2\n\n"},
	{"decode: {args: [\"replicas: 2\", é, '\xe2\x82\xac'], replicas: 2}",
		"decode: {args: [\"replicas: 2\", é, '\xe2\x82\xac'], replicas: 13}"},
	{"decode: { \"replicas\" : 2 ,}", "decode: { \"replicas\" : 13 ,}"},
	{"'decode':\n  ? replicas\n  : 2", "'decode':\n  ? replicas\n  : 13"},
	{"decode: {replicas: 13}", "decode: {replicas: 13}"},
	{"decode: {replicas: two}", "decode: {replicas: 13}"},
	{"decode: {replicas: , hosts: [a]}", "decode: {replicas:  13, hosts: [a]}"},
	{"decode:\n  replicas:\n  hosts: [a]", "decode:\n  replicas: 13\n  hosts: [a]"},
	/* inserted */
	{"decode: {}", "decode: {replicas: 13}"},
	{"decode: { # none\n }", "decode: {replicas: 13 # none\n }"},
	{"decode: { hosts: [a] }", "decode: { replicas: 13, hosts: [a] }"},
	{"decode: {\n  # where\n  hosts: [a]}",
		"decode: {\n  # where\n  replicas: 13, hosts: [a]}"},
	{"decode:\n  # where\n  hosts: [a]   # here\n",
		"decode:\n  # where\n  replicas: 13\n  hosts: [a]   # here\n"},
	{"decode:\n    hosts: [a]", "decode:\n    replicas: 13\n    hosts: [a]"},
	{"? decode\n: hosts: [a]", "? decode\n: replicas: 13\n  hosts: [a]"},
	{"decode:\n  ? hosts\n  : [a]\n", "decode:\n  replicas: 13\n  ? hosts\n  : [a]\n"},
};

static void
expect_text(const char *before, const char *after)
{
	struct conf_error err;
	struct membuf out = {.p = NULL};

	cr_expect_eq(scale(before, 13, &out, &err), 0, "%s: %s\n%s", err.key, err.what, before);
	cr_expect(out.n == strlen(after) && memcmp(out.p, after, out.n) == 0, "%.*s\nexpected:\n%s",
		(int)out.n, out.p, after);
	membuf_free(&out);
}

Test(edit, one_value)
{
	char before[512], after[512];

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		(void)snprintf(before, sizeof(before), HEAD "%s", good[i].before);
		(void)snprintf(after, sizeof(after), HEAD "%s", good[i].after);
		expect_text(before, after);
		(void)snprintf(
			before, sizeof(before), "# \xc3\xa9\n%s\n" HEAD "# end\n", good[i].before);
		(void)snprintf(
			after, sizeof(after), "# \xc3\xa9\n%s\n" HEAD "# end\n", good[i].after);
		expect_text(before, after);
	}
}

Test(edit, lines_that_end_as_on_windows)
{
	expect_text(HEAD_OF("\r\n") "decode:\r\n  hosts: [a]\r\n",
		HEAD_OF("\r\n") "decode:\r\n  replicas: 13\r\n  hosts: [a]\r\n");
	expect_text(HEAD_OF("\r\n") "decode:\r\n  replicas: 2\r\n",
		HEAD_OF("\r\n") "decode:\r\n  replicas: 13\r\n");
}

Test(edit, an_indented_file_and_one_line)
{
	expect_text(
		"{fleet: f, model: {path: m}, engine: {kind: vllm}, hosts: {a: {address: h}}, decode: {}}",
		"{fleet: f, model: {path: m}, engine: {kind: vllm}, hosts: {a: {address: h}}, decode: {replicas: 13}}");
	expect_text(
		"--- \n  fleet: f\n  model: {path: m}\n  engine: {kind: vllm}\n  hosts: {a: {address: h}}\n"
		"  decode:\n    tensor_parallel: 1\n...\n",
		"--- \n  fleet: f\n  model: {path: m}\n  engine: {kind: vllm}\n  hosts: {a: {address: h}}\n"
		"  decode:\n    replicas: 13\n    tensor_parallel: 1\n...\n");
}

static void
expect_refusal(const char *text, uint32_t replicas, int line, const char *key, const char *word)
{
	struct conf_error err = {.line = 0};
	struct membuf out = {.p = NULL};

	cr_expect_eq(scale(text, replicas, &out, &err), -1, "%s", text);
	cr_expect(err.line == line && strcmp(err.key, key) == 0 && strstr(err.what, word) != NULL,
		"%d %s %s\n%s", err.line, err.key, err.what, text);
	cr_expect_eq(out.n, 0);
}

Test(edit, refusals)
{
	expect_refusal("", 3, 0, "", "no fleet file");
	expect_refusal("- a\n", 3, 0, "", "no fleet file");
	expect_refusal("a: [\n", 3, 2, "", "not YAML");
	expect_refusal(HEAD "prefill: {}\n", 3, 0, "decode", "no such group");
	expect_refusal(HEAD "decode:\n", 3, 5, "decode", "is no group");
	expect_refusal(HEAD "decode: {replicas: [2]}\n", 3, 5, "decode", "not a number");
	expect_refusal(HEAD "decode: &d {replicas: 2}\n", 3, 5, "", "anchors are not supported");
	expect_refusal(HEAD "decode: !x {replicas: 2}\n", 3, 5, "", "tags are not supported");
	expect_refusal(HEAD "decode: {replicas: 2}\n---\na: b\n", 3, 6, "", "a second document");
	expect_refusal(HEAD "decode: {replicas: 2, replicas: 3}\n", 5, 5, "decode.replicas", "");
	expect_refusal(HEAD "decode: {replica: 2}\n", 3, 5, "decode.replica", "unknown key");
	expect_refusal(HEAD "decode: {replicas: 2}\n", 0, 5, "decode.replicas", "1");
	expect_refusal(HEAD "decode: {replicas: 2}\n", 1025, 5, "decode.replicas", "1024");
	expect_refusal(HEAD "decode:\n  replicas: |\n    2\n  hosts: [a]\n", 3, 6, "", "");
}
