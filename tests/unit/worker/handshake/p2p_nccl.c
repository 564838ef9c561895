/* P2pNcclConnector: the id of both legs, the bodies that say nothing, the id of the answer (protocols.md 7.1). */
#include <regex.h>

#include "tests/unit/worker/handshake/bodies.h"

#define SAMPLE "___prefill_addr_10.0.1.2:21001___decode_addr_10.0.1.3:22001_"

static enum req_end
begin(const char *p, const char *d)
{
	new_request(CONNECTOR_P2P_NCCL,
		"{\"model\":\"m\",\"max_tokens\":64,\"stream\":true,\"stop\":\"a\"}");
	eps[ROLE_PREFILL].kv_addr = fixed(p);
	eps[ROLE_DECODE].kv_addr = fixed(d);
	return t.connector->begin(&t);
}

TestSuite(p2p_nccl, .fini = drop_request);

Test(p2p_nccl, the_id)
{
	char first[TRANSFER_ID_MAX + 1];

	cr_assert_eq(begin("10.0.1.2:21001", "10.0.1.3:22001"), END_OK);
	cr_assert_eq(strlen(t.id), strlen(SAMPLE) + 32);
	cr_assert_eq(strncmp(t.id, SAMPLE, strlen(SAMPLE)), 0);
	cr_assert_eq(strspn(t.id + strlen(SAMPLE), "0123456789abcdef"), 32);
	(void)strcpy(first, t.id);
	drop_request();
	cr_assert_eq(begin("10.0.1.2:21001", "10.0.1.3:22001"), END_OK);
	cr_assert_str_neq(t.id, first, "never twice");
}

/* As the engines look for the other's address, wrapped as vLLM wraps it; their `.*` is greedy. */
Test(p2p_nccl, engines_find_the_addresses)
{
	static const struct {
		const char *p, *d, *p_host, *d_host;
	} rows[] = {{"10.0.1.2:21001", "10.0.1.3:22001", "10.0.1.2", "10.0.1.3"},
		{"[fd00::1]:1", "[fd00::2]:65535", "[fd00::1]", "[fd00::2]"},
		{"p-1.example.net:21001", "d_1:22001", "p-1.example.net", "d_1"}};
	regex_t to, from;

	cr_assert_eq(regcomp(&to, "___decode_addr_(.*):([0-9]+)", REG_EXTENDED), 0);
	cr_assert_eq(regcomp(&from, "___prefill_addr_(.*):([0-9]+)___", REG_EXTENDED), 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		regmatch_t m[3];
		char id[TRANSFER_ID_MAX + 16];

		cr_assert_eq(begin(rows[i].p, rows[i].d), END_OK);
		(void)snprintf(id, sizeof(id), "cmpl-%s-0", t.id);
		cr_assert_eq(regexec(&to, id, 3, m, 0), 0);
		cr_assert_eq(strncmp(id + m[1].rm_so, rows[i].d_host, strlen(rows[i].d_host)), 0);
		cr_assert_eq(m[1].rm_eo - m[1].rm_so, strlen(rows[i].d_host));
		cr_assert_eq(regexec(&from, id, 3, m, 0), 0);
		cr_assert_eq(strncmp(id + m[1].rm_so, rows[i].p_host, strlen(rows[i].p_host)), 0);
		cr_assert_eq(m[1].rm_eo - m[1].rm_so, strlen(rows[i].p_host));
		drop_request();
	}
	regfree(&to);
	regfree(&from);
}

Test(p2p_nccl, an_address_that_is_unknown_or_does_not_fit)
{
	char host[TRANSFER_ID_MAX];

	cr_assert_eq(begin("", "10.0.1.3:22001"), END_NOT_LEARNED);
	cr_assert_eq(begin("10.0.1.2:21001", ""), END_NOT_LEARNED);
	memset(host, 'x', sizeof(host) - 1);
	host[sizeof(host) - 1] = '\0';
	cr_assert_eq(begin("10.0.1.2:21001", host), END_NOT_LEARNED,
		"a cut address would name another engine");
}

Test(p2p_nccl, bodies_say_nothing)
{
	cr_assert_eq(begin("a:1", "b:2"), END_OK);
	expect_body(
		ROLE_PREFILL, "{\"model\":\"m\",\"max_tokens\":1,\"stream\":false,\"stop\":\"a\"}");
	expect_body(
		ROLE_DECODE, "{\"model\":\"m\",\"max_tokens\":64,\"stream\":true,\"stop\":\"a\"}");
	cr_assert_eq(t.starts[ROLE_DECODE], STARTS_AFTER_PREFILL);
	cr_assert_eq(prefill_says("{\"choices\":[]}"), HANDOFF_OK);
	cr_assert_eq(prefill_says("oops"), HANDOFF_BAD);
}

Test(p2p_nccl, the_answer_has_the_clients_id)
{
	struct answer_how how = {.parts = 1};
	char id[CONNECTOR_ANSWER_ID];

	cr_assert_eq(begin("a:1", "b:2"), END_OK);
	cr_assert(t.connector->rewrites(&t.of, &how, id));
	cr_assert_str_eq(how.id, "\"cmpl-id\"");
	facts.route = ROUTE_CHAT;
	cr_assert(t.connector->rewrites(&t.of, &how, id));
	cr_assert_str_eq(how.id, "\"chatcmpl-id\"");
}

/* Its decode engine computes no prompt, so samples are branches whatever `fanout` says; lists of prompts are one. */
Test(p2p_nccl, samples_are_branches)
{
	cr_assert_eq(begin("a:1", "b:2"), END_OK);
	cr_assert_eq(t.connector->samples(&request_pool), SEVERAL_BRANCHES);
	cr_assert_eq(t.connector->prompts(&request_pool), SEVERAL_WHOLE);
}
