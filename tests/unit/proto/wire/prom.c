/* Load figures out of engines' pages, by version, and the rules for ranks. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/prom.h"

static const struct prom_names no_names;

/* Fed in pieces of `step` bytes, each of them a copy without a NUL: ASan sees a byte too many. */
static int
read_pieces(const char *text, size_t n, size_t step, const struct prom_names *names,
	struct prom_load *ret, uint64_t *ret_bad)
{
	struct prom_page *page = malloc(sizeof(*page));
	int r;

	prom_begin(page, names);
	for (size_t at = 0; at < n; at += step) {
		size_t len = n - at < step ? n - at : step;
		char *copy = malloc(len);

		memcpy(copy, text + at, len);
		prom_feed(page, copy, len);
		free(copy);
	}
	r = prom_end(page, ret, ret_bad);
	free(page);
	return r;
}

static bool
same_load(const struct prom_load *a, const struct prom_load *b)
{
	return a->running == b->running && a->waiting == b->waiting && a->kv_usage == b->kv_usage &&
	       a->has_running == b->has_running && a->has_waiting == b->has_waiting &&
	       a->has_kv_usage == b->has_kv_usage && a->sglang == b->sglang &&
	       a->start_s == b->start_s && a->capacity == b->capacity &&
	       a->has_tokens == b->has_tokens && a->prompt_tokens == b->prompt_tokens &&
	       a->generated_tokens == b->generated_tokens;
}

/* Whole, byte by byte, and in pieces of other sizes: with the same result. */
static int
read_page(const char *text, struct prom_load *ret, uint64_t *ret_bad)
{
	static const size_t steps[] = {1, 2, 3, 7, 31};
	size_t n = strlen(text);
	uint64_t bad, other_bad;
	struct prom_load other;
	int r = read_pieces(text, n, n + 1, &no_names, ret, &bad);

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		cr_assert_eq(read_pieces(text, n, steps[i], &no_names, &other, &other_bad), r);
		cr_assert(same_load(&other, ret), "%s: in pieces of %zu", text, steps[i]);
		cr_assert_eq(other_bad, bad, "%s: in pieces of %zu", text, steps[i]);
	}
	if (ret_bad != NULL)
		*ret_bad = bad;
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

Test(prom, start_of_the_process)
{
	struct prom_load load;

	cr_assert_eq(read_page("vllm:num_requests_running 1\nprocess_start_time_seconds "
			       "1.76379462317e+09\n",
			     &load, NULL),
		0);
	cr_assert_eq(load.start_s, 1763794623.17);
	cr_assert_eq(read_page("vllm:num_requests_running 1\n", &load, NULL), 0);
	cr_assert_eq(load.start_s, 0);
	expect_nothing("process_start_time_seconds 1.76379462317e+09\n");
}

static double
capacity(const char *line)
{
	struct prom_load load;
	char text[512];

	(void)snprintf(text, sizeof(text), "vllm:num_requests_running 1\n%s\n", line);
	cr_assert_eq(read_page(text, &load, NULL), 0);
	return load.capacity;
}

/* vLLM says it in the labels of a figure whose value is 1. */
Test(prom, capacity_of_vllms_cache)
{
	cr_expect_eq(capacity(""), 0);
	cr_expect_eq(
		capacity(
			"vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",engine=\"0\","
			"num_gpu_blocks=\"27500\",num_gpu_blocks_override=\"None\"} 1.0"),
		440000);
	cr_expect_eq(
		capacity(
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"10\",engine=\"0\"} 1.0\n"
			"vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"20\",engine=\"1\"} 1.0"),
		480);
	cr_expect_eq(
		capacity("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1.0"),
		0);
	cr_expect_eq(capacity("vllm:cache_config_info{block_size=\"16\"} 1.0"), 0);
	cr_expect_eq(
		capacity(
			"vllm:cache_config_info{enable_prefix_caching=\"True\",block_size=\"16\",num_gpu_blocks=\"10\"} 1.0"),
		160);
	cr_expect_eq(
		capacity(
			"vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",num_gpu_blocks=\"10\"} 1.0"),
		PROM_KEEPS_NONE, "nothing is kept for a later prompt");
	cr_expect_eq(
		capacity(
			"vllm:cache_config_info{block_size=\"99999999999\",num_gpu_blocks=\"-5\"} 1.0"),
		0);
}

Test(prom, capacity_of_sglangs_cache)
{
	struct prom_load load;

	cr_assert_eq(
		read_page(
			"sglang:num_running_reqs 1\nsglang:max_total_num_tokens{tp_rank=\"0\"} 1e+05\n"
			"sglang:max_total_num_tokens{tp_rank=\"1\"} 1e+05\n",
			&load, NULL),
		0);
	cr_expect_eq(load.capacity, 100000);
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

Test(prom, old_and_new_names_are_never_both_summed)
{
	expect("sglang:num_queue_reqs 1\nsglang:num_prefill_prealloc_queue_reqs 10\n"
	       "sglang:num_prefill_bootstrap_queue_reqs 2\n",
		-1, 3, -1, 0);
	expect("sglang:num_prefill_infight_queue_reqs 10\nsglang:num_queue_reqs 1\n"
	       "sglang:num_prefill_inflight_queue_reqs 0\n",
		-1, 1, -1, 0);
	expect("sglang:num_queue_reqs 1\nsglang:num_prefill_infight_queue_reqs 10\n"
	       "sglang:num_prefill_prealloc_queue_reqs 100\n",
		-1, 111, -1, 0);
	expect("vllm:gpu_cache_usage_perc{engine=\"0\"} 0.9\n"
	       "vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\n"
	       "vllm:gpu_cache_usage_perc{engine=\"1\"} 0.9\n",
		-1, -1, 0.5, 0);
}

Test(prom, all_data_parallel_ranks_and_models_are_summed)
{
	expect("vllm:num_requests_running{engine=\"0\",model_name=\"a\"} 1\n"
	       "vllm:num_requests_running{engine=\"0\",model_name=\"b\"} 2\n"
	       "vllm:num_requests_running{engine=\"1\",model_name=\"a\"} 4\n"
	       "vllm:num_requests_running{engine=\"1\",model_name=\"b\"} 8\n",
		15, -1, -1, 0);
}

/* An engine of another make: TGI's names. */
static const char other_page[] = "tgi_batch_current_size 3\ntgi_queue_size{x=\"y\"} 2\n"
				 "tgi_queue_size{x=\"z\"} 5\nvllm:num_requests_running 50\n"
				 "vllm:num_requests_waiting 60\nvllm:kv_cache_usage_perc 0.5\n";

Test(prom, tokens_are_counted_over_ranks)
{
	static const char vllm[] = "vllm:num_requests_running 1\n"
				   "vllm:prompt_tokens_total{engine=\"0\",dp_rank=\"0\"} 1e+06\n"
				   "vllm:prompt_tokens_total{engine=\"1\",dp_rank=\"1\"} 24\n"
				   "vllm:prompt_tokens_created{engine=\"1\"} 1.7e9\n"
				   "vllm:generation_tokens_total{engine=\"0\"} 77.0\n";
	static const char sglang[] = "sglang:num_running_reqs 1\n"
				     "sglang:prompt_tokens_total{tp_rank=\"0\"} 5\n"
				     "sglang:prompt_tokens_total{tp_rank=\"1\"} 5\n"
				     "sglang:generation_tokens_total{tp_rank=\"0\"} 6\n";
	struct prom_load load;

	cr_assert_eq(read_page(vllm, &load, NULL), 0);
	cr_assert(load.has_tokens && load.prompt_tokens == 1000024 && load.generated_tokens == 77);
	cr_assert_eq(read_page(sglang, &load, NULL), 0);
	cr_assert(load.has_tokens && load.prompt_tokens == 5 && load.generated_tokens == 6);
	cr_assert_eq(
		read_page("vllm:num_requests_running 1\nvllm:prompt_tokens_total 3\n", &load, NULL),
		0);
	cr_assert_not(load.has_tokens, "half of it is none");
	cr_assert_eq(read_page("vllm:prompt_tokens_total 3\nvllm:generation_tokens_total 3\n",
			     &load, NULL),
		-1, "that is no load");
}

Test(prom, configured_names)
{
	static const struct {
		struct prom_names names;
		double running, waiting; /* -1: none */
	} t[] = {
		{{NULL, NULL}, 50, 60},
		{{"tgi_batch_current_size", "tgi_queue_size"}, 3, 7},
		{{"tgi_batch_current_size", NULL}, 3, 60},
		{{NULL, "tgi_queue_size"}, 50, 7},
		{{"vllm:num_requests_waiting", "vllm:num_requests_running"}, 60, 50},
		{{"absent", "tgi_queue_size"}, -1, 7},
		{{"tgi_batch", "tgi_queue_size_"}, -1, -1},
		{{"tgi_queue_size{x", NULL}, -1, 60},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct prom_load load;

		cr_assert_eq(
			read_pieces(other_page, strlen(other_page), 5, &t[i].names, &load, NULL),
			0);
		cr_assert_eq(load.has_running, t[i].running >= 0, "%zu", i);
		cr_assert_eq(load.has_waiting, t[i].waiting >= 0, "%zu", i);
		cr_assert(!load.has_running || load.running == t[i].running, "%zu", i);
		cr_assert(!load.has_waiting || load.waiting == t[i].waiting, "%zu", i);
		cr_assert_eq(load.kv_usage, 0.5);
	}
}

Test(prom, lines_without_end_are_skipped)
{
	static const size_t lens[] = {PROM_LINE_MAX, PROM_LINE_MAX + 1, 5 * PROM_LINE_MAX};
	char *page = malloc(6 * PROM_LINE_MAX);

	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		int n = sprintf(
			page, "vllm:num_requests_running 1\nvllm:num_requests_waiting{a=\"");
		size_t begin = strlen("vllm:num_requests_running 1\n");

		memset(page + n, 'x', lens[i]);
		(void)strcpy(page + begin + lens[i] - strlen("\"} 7"), "\"} 7");
		(void)strcat(page, "\nvllm:num_requests_running 2\n");
		expect(page, 3, i == 0 ? 7 : -1, -1, i == 0 ? 0 : 1);
	}
	free(page);
}

Test(prom, a_line_too_long_from_its_first_piece_on)
{
	char *page = malloc(2 * PROM_LINE_MAX);
	struct prom_load load;
	uint64_t bad;

	memset(page, 'x', PROM_LINE_MAX + 1);
	/* the rest of it looks like a line of its own */
	(void)strcpy(page + PROM_LINE_MAX + 1, " vllm:num_requests_running 2\n");
	cr_assert_eq(
		read_pieces(page, strlen(page), PROM_LINE_MAX + 2, &no_names, &load, &bad), -1);
	cr_assert_eq(bad, 1);
	free(page);
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
