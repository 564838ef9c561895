/* The bodies of both legs, byte by byte (protocols.md 2.1, 2.4, 3.1). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/connector.h"
#include "worker/pool.h"
#include "worker/req.h"

#define SKELETON                                                                                   \
	"{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"        \
	"\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}"

static struct req req;
static struct pair pair;
static struct splice doc;
static struct upstream up;
static char host[] = "10.0.0.7";

static void
begin(enum connector_kind kind, const char *body)
{
	const char *why;
	size_t at;

	memset(&req, 0, sizeof(req));
	memset(&pair, 0, sizeof(pair));
	pair.req = &req;
	pair.first_token = -1;
	pair.rank[ROLE_PREFILL] = pair.rank[ROLE_DECODE] = -1;
	req.pairs = &pair;
	req.npairs = 1;
	req.pool.connector = kind;
	req.doc = &doc;
	req.connector = connector_find(kind);
	pair_set_id(&pair, "id-0123456789abcdef", 19);
	up.host = host;
	pair.leg[LEG_PREFILL].up = &up;
	cr_assert_eq(splice_scan(&doc, body, strlen(body), &why, &at), 0, "%s", body);
}

static void
expect_body(enum role role, const char *want)
{
	struct splice_edit e;
	struct splice_seg segs[SPLICE_MAX_SEGMENTS];
	size_t total, n, len = 0;
	char got[4096];

	connector_edit(&pair, role, &e);
	n = splice_layout(&doc, &e, segs, &total);
	for (size_t i = 0; i < n; i++) {
		memcpy(got + len, segs[i].p, segs[i].n);
		len += segs[i].n;
	}
	got[len] = '\0';
	cr_assert_eq(len, total);
	cr_assert_str_eq(got, want);
}

/* The text outlives the leg: literals are used. */
static int
answer(const char *text)
{
	pair.leg[LEG_PREFILL].answer = (char *)(uintptr_t)text;
	pair.leg[LEG_PREFILL].answer_len = strlen(text);
	return req.connector->prefilled(&pair);
}

static void
teardown(void)
{
	pair.leg[LEG_PREFILL].answer = NULL;
	pair_drop_texts(&pair);
}

TestSuite(connector, .fini = teardown);

Test(connector, nixl_prefill_is_one_token_unstreamed)
{
	begin(CONNECTOR_NIXL,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":64,\"stream\":true,"
		"\"stream_options\":{\"include_usage\":true},\"min_tokens\":5,\"seed\":18446744073709551617}");
	expect_body(ROLE_PREFILL,
		"{\"model\":\"m\",\"prompt\":\"hi\",\"max_tokens\":1,\"stream\":false,\"seed\":18446744073709551617"
		",\"ignore_eos\":true,\"kv_transfer_params\":" SKELETON "}");
}

Test(connector, nixl_lowers_max_completion_tokens_only_where_it_stands)
{
	begin(CONNECTOR_NIXL, "{\"max_completion_tokens\":9}");
	expect_body(ROLE_PREFILL,
		"{\"max_completion_tokens\":1,\"stream\":false,\"max_tokens\":1,\"ignore_eos\":true,\"kv_transfer_params\":" SKELETON
		"}");
}

Test(connector, nixl_decode_is_the_clients_body_and_the_raw_object)
{
	begin(CONNECTOR_NIXL, "{\"model\":\"m\", \"x\":1e400,\"max_tokens\":64}");
	cr_assert_eq(
		answer("{\"id\":\"c\",\"kv_transfer_params\":{\"remote_block_ids\":[[3,\"4\",9007199254740993]], \"n\":1.0}}"),
		1);
	expect_body(ROLE_DECODE,
		"{\"model\":\"m\", \"x\":1e400,\"max_tokens\":64,\"kv_transfer_params\":"
		"{\"remote_block_ids\":[[3,\"4\",9007199254740993]], \"n\":1.0}}");
}

Test(connector, nothing_to_hand_over_is_no_error)
{
	begin(CONNECTOR_NIXL, "{\"model\":\"m\"}");
	cr_assert_eq(answer("{\"kv_transfer_params\":null}"), 0);
	expect_body(ROLE_DECODE, "{\"model\":\"m\"}");
	cr_assert_eq(answer("{\"id\":1}"), 0);
	cr_assert_eq(answer("[1]"), -1);
	cr_assert_eq(answer("oops"), -1);
}

Test(connector, a_client_cannot_choose_peers_or_ids)
{
	begin(CONNECTOR_NIXL,
		"{\"kv_transfer_params\":{\"remote_host\":\"evil\"},\"bootstrap_host\":\"evil\",\"a\":1,"
		"\"r\\u0069d\":\"x\",\"request_id\":\"y\",\"data_parallel_rank\":3}");
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"r\\u0069d\":\"id-0123456789abcdef\",\"request_id\":\"id-0123456789abcdef\"}");
}

Test(connector, release_takes_one_token)
{
	begin(CONNECTOR_NIXL, "{\"max_tokens\":64,\"stream\":true}");
	cr_assert_eq(answer("{\"kv_transfer_params\":{\"a\":1}}"), 1);
	pair.released = true;
	expect_body(ROLE_DECODE,
		"{\"max_tokens\":1,\"stream\":false,\"kv_transfer_params\":{\"a\":1}}");
}

Test(connector, orchestrated_names_the_prefill_host)
{
	begin(CONNECTOR_ORCHESTRATED, "{\"a\":1}");
	req.pool.shake.remote_host = REMOTE_HOST_PREFILL;
	cr_assert_eq(
		answer("{\"kv_transfer_params\":{\"remote_host\" : \"localhost\",\"remote_port\":5600}}"),
		1);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":{\"remote_host\" : \"10.0.0.7\",\"remote_port\":5600}}");
	cr_assert_eq(answer("{\"kv_transfer_params\":{\"remote_port\":5600}}"), 1);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"kv_transfer_params\":{\"remote_host\":\"10.0.0.7\",\"remote_port\":5600}}");
}

Test(connector, orchestrated_hands_the_whole_answer_over)
{
	begin(CONNECTOR_ORCHESTRATED, "{\"a\":1,\"stream\":true}");
	req.pool.shake.handoff = HANDOFF_DISAGG_PREFILL_RESP;
	expect_body(ROLE_PREFILL, "{\"a\":1,\"stream\":false,\"max_tokens\":1}");
	cr_assert_eq(answer("{\"id\":\"cmpl-1\", \"created\":12345678901234567890}"), 1);
	expect_body(ROLE_DECODE,
		"{\"a\":1,\"stream\":true,\"disagg_prefill_resp\":{\"id\":\"cmpl-1\", \"created\":12345678901234567890}}");
	cr_assert_eq(answer("not json"), -1);
}

Test(connector, lists_of_prompts_are_counted)
{
	static const struct {
		const char *body;
		size_t n;
	} rows[] = {{"{\"prompt\":\"a\"}", 1}, {"{\"prompt\":[1,2,3]}", 1},
		{"{\"prompt\":[\"a\"]}", 1}, {"{\"prompt\":[\"a,\\\",b\"]}", 1},
		{"{\"prompt\":[\"a\",\"b\"]}", 2}, {"{\"prompt\":[ [1,2,3] ]}", 1},
		{"{\"prompt\":[[1],[2],[3,4]]}", 3}, {"{\"prompt\":[]}", 1},
		{"{\"prompt\":[\"a\\\\\",\"b\"]}", 2}, {"{}", 1}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		begin(CONNECTOR_NIXL, rows[i].body);
		req.route = ROUTE_COMPLETIONS;
		cr_assert_eq(connector_prompts(&req), rows[i].n, "%s", rows[i].body);
		req.route = ROUTE_CHAT;
		cr_assert_eq(connector_prompts(&req), 1, "no chat has any");
	}
}
