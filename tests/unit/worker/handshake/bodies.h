/* One request of one pair, made by hand: what its legs are sent, what their answers do. */
#pragma once
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "worker/handshake/connector.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"
#include "worker/request/request.h"

static struct metrics_slab slab;
static struct worker worker = {.slab = &slab}; /* counts what is kept */
/* clang-format off */
#define LEG {.w = &worker}
#define NEW_PAIR {.leg = {[LEG_PREFILL] = LEG, [LEG_DECODE] = LEG, [LEG_ASK] = LEG}}
/* clang-format on */
static struct req req;
static struct pair pair = NEW_PAIR;
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

	memset(&req, 0, sizeof(req));
	pair = (struct pair)NEW_PAIR;
	memset(eps, 0, sizeof(eps));
	req.w = &worker;
	pair.req = &req;
	pair.first_token = -1;
	req.pairs = &pair;
	req.npairs = 1;
	req.facts.pool.connector = kind;
	req.text = &client_text;
	client_text = (struct text){.w = &worker, .refs = 1, .doc = &doc};
	req.facts.route = ROUTE_COMPLETIONS;
	req.connector = connector_find(kind);
	(void)strcpy(req.facts.id, "id");
	pair_set_id(&pair, "id-0123456789abcdef", strlen("id-0123456789abcdef"));
	for (enum role r = 0; r < ROLE_N; r++) {
		pair.starts[r] = req.connector->starts[r];
		pair.rank[r] = -1;
		pair.leg[r].ep = &eps[r];
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

	connector_edit(&pair, role, &e);
	expect_edit(&e, want);
}

static void
give(struct leg *leg, const char *text)
{
	leg->answer = fixed(text);
	leg->answer_len = strlen(text);
}

static inline enum taken
prefill_says(const char *text)
{
	give(&pair.leg[LEG_PREFILL], text);
	return req.connector->prefilled(&pair);
}

static void
drop_request(void)
{
	pair.leg[LEG_PREFILL].answer = pair.leg[LEG_ASK].answer = NULL;
	pair_drop_texts(&pair);
	free(eps[ROLE_PREFILL].learned);
	eps[ROLE_PREFILL].learned = NULL;
}
