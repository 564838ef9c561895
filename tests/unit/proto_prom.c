/* Load figures out of engines' pages, by version, and the rules for ranks. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/prom.h"

static int
read_page(const char *text, struct prom_load *ret, uint64_t *ret_bad)
{
	size_t n = strlen(text);
	char *copy = malloc(n > 0 ? n : 1); /* without a NUL: ASan sees a byte too many */
	int r;

	memcpy(copy, text, n);
	r = prom_read_load(copy, n, ret, ret_bad);
	free(copy);
	return r;
}

/* -1 stands for "no such figure". */
static void
expect(const char *text, double running, double waiting, double usage, uint64_t bad)
{
	struct prom_load load;
	uint64_t got_bad;

	cr_assert_eq(read_page(text, &load, &got_bad), 0, "%s", text);
	cr_assert_eq(got_bad, bad, "%s: bad %lu", text, (unsigned long)got_bad);
	cr_assert_eq(load.has_running, running >= 0, "%s", text);
	cr_assert_eq(load.has_waiting, waiting >= 0, "%s", text);
	cr_assert_eq(load.has_kv_usage, usage >= 0, "%s", text);
	cr_assert_eq(
		load.running, running >= 0 ? running : 0, "%s: running %g", text, load.running);
	cr_assert_eq(
		load.waiting, waiting >= 0 ? waiting : 0, "%s: waiting %g", text, load.waiting);
	cr_assert_lt(fabs(load.kv_usage - (usage >= 0 ? usage : 0)), 1e-9, "%s: usage %g", text,
		load.kv_usage);
}

static void
expect_nothing(const char *text)
{
	struct prom_load load;

	cr_assert_eq(read_page(text, &load, NULL), -1, "%s", text);
}

Test(prom, vllm)
{
	expect("# HELP vllm:num_requests_running x\n# TYPE vllm:num_requests_running gauge\n"
	       "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 3.0\n"
	       "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 1.0\n"
	       "vllm:num_requests_waiting{model_name=\"m\",engine=\"0\"} 1e+01\n"
	       "vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 99\n"
	       "vllm:kv_cache_usage_perc{engine=\"0\"} 0.4\nvllm:kv_cache_usage_perc{engine=\"1\"} "
	       "0.2\n# EOF",
		4, 10, 0.3, 0);
}

Test(prom, vllm_usage_by_version)
{
	expect("vllm:gpu_cache_usage_perc 0.5\n", -1, -1, 0.5, 0);
	expect("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n", -1, -1, 0.25, 0);
	expect("vllm:kv_cache_usage_perc 0.25\nvllm:gpu_cache_usage_perc 0.5\n", -1, -1, 0.25, 0);
}

Test(prom, text_forms)
{
	expect("vllm:num_requests_running 1", 1, -1, -1, 0);
	expect("  vllm:num_requests_running\t 1 \r\n", 1, -1, -1, 0);
	expect("vllm:num_requests_running{} 1 1700000000000\n", 1, -1, -1, 0);
	expect("vllm:num_requests_running { a = \"b\" , } 1\n", 1, -1, -1, 0);
	expect("vllm:num_requests_running{a=\"}, \\\"\\\\\\n tp_rank=\\\"7\\\"\"} 1 # {a=\"b\"} "
	       "2\n",
		1, -1, -1, 0);
	expect("\n\n\nvllm:num_requests_running 1\n\n", 1, -1, -1, 0);
}

Test(prom, no_numbers)
{
	expect("vllm:num_requests_running NaN\nvllm:num_requests_waiting 2\n", -1, 2, -1, 0);
	expect("vllm:num_requests_running +Inf\nvllm:num_requests_running 2\n", 2, -1, -1, 0);
	expect("vllm:num_requests_running -Inf\nvllm:num_requests_waiting "
	       "-1\nvllm:kv_cache_usage_perc 7\n",
		-1, -1, 1, 0);
	expect("vllm:num_requests_running 1e308\nvllm:num_requests_running "
	       "1e308\nvllm:num_requests_running 1\n",
		1, -1, -1, 0);
	expect_nothing("vllm:num_requests_running NaN\n");
}

Test(prom, bad_lines_are_counted)
{
#define GOOD "vllm:num_requests_waiting 5\n"
	static const char *const bad[] = {"vllm:num_requests_running\n",
		"vllm:num_requests_running x\n", "vllm:num_requests_running{ 1\n",
		"vllm:num_requests_running{a} 1\n", "vllm:num_requests_running{a=b} 1\n",
		"vllm:num_requests_running{a=\"b} 1\n", "vllm:num_requests_running{a=\"b\\",
		"vllm:num_requests_running{a=\"b\"\"c\"} 1\n", "vllm:num_requests_running 1 2 3\n",
		"vllm:num_requests_running 1 x\n", "vllm:num_requests_running{tp_rank=\"x\"} 1\n",
		"vllm:num_requests_running{dp_rank=\"64\"} 1\n",
		"vllm:num_requests_running{tp_rank=\"99999999999999999999\"} 1\n",
		"vllm:num_requests_running "
		"0000000000000000000000000000000000000000000000000000000000000001\n",
		"{a=\"b\"} 1\n", "9x 1\n", "<html>\n"};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char text[256] = GOOD;

		strcat(text, bad[i]);
		expect(text, -1, 5, -1, 1);
	}
}

Test(prom, nothing_known)
{
	expect_nothing("");
	expect_nothing("# only a comment\n");
	expect_nothing("up 1\nvllm:num_requests_running_total 3\nvllm:num_requests_runnin 3\n");
	expect_nothing("sglang_num_running_reqs 3\n");
}

Test(prom, sglang_prefill_and_decode)
{
	struct prom_load load;

	expect("sglang:num_running_reqs{model_name=\"m\"} "
	       "2\nsglang:num_queue_reqs{model_name=\"m\"} 1\n"
	       "sglang:num_prefill_bootstrap_queue_reqs 10\nsglang:num_prefill_inflight_queue_reqs "
	       "20\n"
	       "sglang:num_decode_prealloc_queue_reqs 100\nsglang:num_decode_transfer_queue_reqs "
	       "200\n"
	       "sglang:token_usage 0.5\nsglang:num_used_tokens 900\n",
		2, 331, 0.5, 0);
	expect("sglang:num_prefill_prealloc_queue_reqs 1\nsglang:num_prefill_infight_queue_reqs "
	       "2\n",
		-1, 3, -1, 0);
	cr_assert_eq(read_page("sglang:num_running_reqs 2\n", &load, NULL), 0);
	cr_assert(load.sglang);
	cr_assert_eq(
		read_page("sglang:num_running_reqs 9\nvllm:num_requests_running 2\n", &load, NULL),
		0);
	cr_assert_not(load.sglang);
	cr_assert_eq(load.running, 2);
}

Test(prom, sglang_ranks)
{
#define R "sglang:num_running_reqs"
	/* all schedulers report: the lowest of each data-parallel rank counts, in any order */
	expect(R "{tp_rank=\"1\"} 3\n" R "{tp_rank=\"0\"} 3\n" R "{tp_rank=\"2\"} 3\n", 3, -1, -1,
		0);
	expect(R "{tp_rank=\"0\",pp_rank=\"1\"} 3\n" R "{tp_rank=\"0\",pp_rank=\"0\"} 4\n", 4, -1,
		-1, 0);
	/* attention data parallelism: ranks of different groups have different tp_rank numbers */
	expect(R "{tp_rank=\"0\",dp_rank=\"0\"} 3\n" R "{tp_rank=\"2\",dp_rank=\"1\"} 4\n" R
		 "{tp_rank=\"3\",dp_rank=\"1\"} 4\n",
		7, -1, -1, 0);
	expect("sglang:token_usage{dp_rank=\"0\"} 0.2\nsglang:token_usage{dp_rank=\"1\"} 0.6\n", -1,
		-1, 0.4, 0);
	/* priority scheduling: the total stands under an empty label, beside its parts */
	expect(R "{priority=\"\"} 5\n" R "{priority=\"0\"} 2\n" R "{priority=\"1\"} 3\n", 5, -1, -1,
		0);
}

Test(prom, label)
{
	static const struct {
		const char *in, *want;
	} cases[] = {
		{"", ""},
		{"plain", "plain"},
		{"a\\b\"c\nd", "a\\\\b\\\"c\\nd"},
		{"\xc3\xa9\xf0\x9f\x98\x80", "\xc3\xa9\xf0\x9f\x98\x80"},
		{"\xff\xc3", "??"},
		{"a\xed\xa0\x80z", "a???z"},
	};
	char buf[64];

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cr_assert_eq(prom_label(buf, sizeof(buf), cases[i].in, strlen(cases[i].in)),
			strlen(cases[i].want));
		cr_assert_str_eq(buf, cases[i].want);
	}
	cr_assert_eq(prom_label(buf, sizeof(buf), "a\0b", 3), 3);
	cr_assert_str_eq(buf, "a?b");
}

/* Clipping leaves neither half an escape nor half a character. */
Test(prom, label_is_clipped)
{
	static const char in[] = "a\"\xe2\x82\xac",
			  *want[] = {"", "a", "a", "a\\\"", "a\\\"", "a\\\"", "a\\\"\xe2\x82\xac"};

	for (size_t size = 1; size <= 7; size++) {
		char *buf = malloc(size);

		cr_assert_eq(prom_label(buf, size, in, strlen(in)), strlen(want[size - 1]));
		cr_assert_str_eq(buf, want[size - 1]);
		free(buf);
	}
	cr_assert_eq(prom_label(NULL, 0, in, strlen(in)), 0);
}
