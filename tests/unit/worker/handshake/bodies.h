/* One request of one attempt, made by hand: what its legs are sent, what their answers do. */
#pragma once
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "worker/handshake/connector.h"
#include "worker/handshake/edit.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/handshake/transfer.h"

static struct metrics_slab slab;
static struct worker worker = {.slab = &slab}; /* counts what is kept */
static struct facts facts;
static struct req_pool request_pool;
static struct transfer t;
static struct splice doc;
static struct text client_text;
static struct endpoint eps[ROLE_N];

/* Static text where the code has its own copies: nothing here writes or frees it. */
static char *
fixed(const char *text)
{
	return (char *)(uintptr_t)text;
}

static void
new_request(enum connector_kind kind, const char *body)
{
	const char *why;
	size_t at;

	transfer_drop_texts(&t);
	free(t.id);
	request_pool = (struct req_pool){.refs = 1};
	facts = (struct facts){.id = fixed("id"),
		.model = fixed(""),
		.response = fixed(""),
		.pool = &request_pool};
	memset(eps, 0, sizeof(eps));
	client_text = (struct text){.w = &worker, .refs = 1, .doc = &doc};
	transfer_init(&t, &worker, connector_find(kind), (struct demand){&facts, &client_text});
	facts.parts = 1;
	request_pool.connector = kind;
	facts.route = ROUTE_COMPLETIONS;
	transfer_set_id(&t, "id-0123456789abcdef", strlen("id-0123456789abcdef"));
	for (enum role r = 0; r < ROLE_N; r++) {
		t.engine[r] = &eps[r];
		eps[r].host = fixed(r == ROLE_PREFILL ? "10.0.0.7" : "10.0.0.8");
		eps[r].bootstrap_host = eps[r].host;
		eps[r].kv_addr = fixed("");
	}
	cr_assert_eq(splice_scan(&doc, body, strlen(body), &why, &at), 0, "%s", body);
}

static void
expect_edit(const struct splice_edit *e, const char *want)
{
	struct splice_seg segs[SPLICE_MAX_SEGMENTS];
	size_t total, n, len = 0;
	char got[4096];

	n = splice_layout(&doc, e, segs, &total);
	for (size_t i = 0; i < n; i++) {
		memcpy(got + len, segs[i].p, segs[i].n);
		len += segs[i].n;
	}
	got[len] = '\0';
	cr_assert_eq(len, total);
	cr_assert_str_eq(got, want);
}

static void
expect_body(enum role role, const char *want)
{
	struct splice_edit e;

	edit_leg(&t, role, &e);
	expect_edit(&e, want);
}

static void
give(struct engine_answer *answer, const char *text)
{
	*answer = (struct engine_answer){text, strlen(text), answer->sse};
}

static inline enum handoff
prefill_says(const char *text)
{
	give(&t.prefill_answer, text);
	return t.connector->prefilled(&t);
}

static void
drop_request(void)
{
	transfer_drop_texts(&t);
	free(eps[ROLE_PREFILL].learned);
	eps[ROLE_PREFILL].learned = NULL;
}
