#include "worker/handshake/transfer.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json/json_last.h"
#include "proto/json/json_string.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

struct made_text {
	struct made_text *next;
	char text[];
};

void
transfer_init(struct transfer *t, struct worker *w, const struct connector *c, struct demand of)
{
	*t = (struct transfer){.w = w, .of = of, .connector = c, .first_token = -1};
	for (enum role r = 0; r < ROLE_N; r++) {
		t->starts[r] = c->starts[r];
		t->rank[r] = -1;
	}
}

void
transfer_fini(struct transfer *t)
{
	transfer_drop_flag(t, false);
	transfer_drop_texts(t);
	free(t->id);
	t->id = t->id_json = NULL;
}

void
transfer_drop_texts(struct transfer *t)
{
	struct made_text *m;

	while ((m = t->made) != NULL) {
		t->made = m->next;
		free(m);
	}
	t->tokens = t->prompt = t->kv = t->notice_id = (struct span){NULL, 0};
}

struct span
transfer_text(struct transfer *t, const char *fmt, ...)
{
	va_list ap;
	struct made_text *m;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	m = mem_resize(NULL, 1, sizeof(*m) + (size_t)n + 1);
	va_start(ap, fmt);
	(void)vsnprintf(m->text, (size_t)n + 1, fmt, ap);
	va_end(ap);
	m->next = t->made;
	t->made = m;
	return (struct span){m->text, (size_t)n};
}

/* By hand: this runs once per attempt, and printf would be a hundredth of a request's cost.  Clients' ids
 * come without quotes and backslashes, so that none has to be escaped. */
void
transfer_set_id(struct transfer *t, const char *id, size_t n)
{
	assert(n <= TRANSFER_ID_MAX);
	t->id = mem_resize(t->id, 2 * n + 4, 1);
	memcpy(t->id, id, n);
	t->id[n] = '\0';
	t->id_json = t->id + n + 1;
	t->id_json[0] = '"';
	memcpy(t->id_json + 1, id, n);
	memcpy(t->id_json + 1 + n, "\"", 2);
}

void
transfer_new_id(struct transfer *t)
{
	char id[REQ_ID_MAX + 17];
	size_t n = strlen(t->of.facts->id);

	memcpy(id, t->of.facts->id, n);
	id[n] = '-';
	rnd_hex16(id + n + 1, rnd_u64());
	transfer_set_id(t, id, n + 17);
}

void
transfer_next_rank(struct transfer *t, enum role role)
{
	struct endpoint *ep = t->engine[role];

	t->rank[role] = -1;
	if (ep != NULL && ep->dp_ranks > 0)
		t->rank[role] = (int32_t)(ep->next_rank++ % ep->dp_ranks);
}

bool
transfer_await_notices(struct transfer *t, uint8_t count, char ret_id[FLAG_ID_LEN])
{
	struct worker *w = t->w;

	if (!flag_arm(w->flags, count, &t->flag))
		return false;
	t->notices = NOTICES_AWAITED;
	w->waiting[t->flag.slot] = t;
	worker_gauge(w, G_FLAGS_ARMED, 1);
	flag_id_format(&t->flag, ret_id);
	return true;
}

void
transfer_drop_flag(struct transfer *t, bool ready)
{
	struct worker *w = t->w;

	if (t->notices == NOTICES_AWAITED) {
		w->waiting[t->flag.slot] = NULL;
		worker_gauge(w, G_FLAGS_ARMED, -1);
		flag_free(w->flags, &t->flag);
		t->notices = NOTICES_NONE;
	}
	if (ready)
		t->notices = NOTICES_READY;
}

bool
transfer_kv_arrived(const struct transfer *t)
{
	return t->notices == NOTICES_READY ||
	       (t->notices == NOTICES_AWAITED && flag_is_ready(t->w->flags, &t->flag));
}

/* --- taken out of the prefill answer -------------------------------------------------------------- */

static bool
empty_object(struct span kv)
{
	size_t i = 1;

	while (i < kv.n && strchr(" \t\r\n", kv.p[i]) != NULL)
		i++;
	return i < kv.n && kv.p[i] == '}';
}

/*
 * Replaces the prefill engine's host by the host of its URL, for engines that do not know
 * their own address: vLLM's side channel reports "localhost" by default (protocols.md 2.2).
 */
static void
name_host(struct transfer *t)
{
	const char *host = t->engine[ROLE_PREFILL]->host;
	struct span kv = t->kv;
	struct splice_seg v;
	char quoted[280];
	int known = splice_member_raw(kv.p, kv.n, "remote_host", &v);

	if (known == -1 || json_quote(quoted, sizeof(quoted), host, strlen(host), 256) == -1)
		return; /* not an object: passed on as it is */
	if (known == 1)
		t->kv = transfer_text(t, "%.*s%s%.*s", (int)(v.p - kv.p), kv.p, quoted,
			(int)(kv.p + kv.n - (v.p + v.n)), v.p + v.n);
	else
		t->kv = transfer_text(t, "{\"remote_host\":%s%s%.*s", quoted,
			empty_object(kv) ? "" : ",", (int)kv.n - 1, kv.p + 1);
}

/* The member of an answer that has what the model said. */
static const char *
said_in(enum route route)
{
	if (route == ROUTE_MESSAGES)
		return "content";
	return route == ROUTE_RESPONSES ? "output" : "choices";
}

enum handoff
transfer_take_answer(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;
	const char *name = said_in(t->of.facts->route);
	struct splice_seg v;

	return splice_member_raw(p->text, p->len, name, &v) == 1 ? HANDOFF_OK : HANDOFF_BAD;
}

enum handoff
transfer_take_kv(struct transfer *t)
{
	const struct engine_answer *p = &t->prefill_answer;
	struct splice_seg v;

	switch (splice_member_raw(p->text, p->len, "kv_transfer_params", &v)) {
	case 1:
		if (v.n == 4 && memcmp(v.p, "null", 4) == 0)
			return HANDOFF_NONE;
		t->kv = (struct span){v.p, v.n};
		if (t->of.facts->pool->shake.remote_host == REMOTE_HOST_PREFILL)
			name_host(t);
		return HANDOFF_OK;
	case 0:
		return HANDOFF_NONE;
	default:
		return HANDOFF_BAD;
	}
}

/* Not a walk over the values: the block list would cost more than all else that is done with them. */
struct span
transfer_engine_id(const struct transfer *t)
{
	static const struct json_name name = {"\"remote_engine_id\"", 18, 10 /* g */};
	const char *at = json_last(t->kv.p, t->kv.n, &name);
	const char *end, *quote;

	if (at == NULL)
		return (struct span){NULL, 0};
	end = t->kv.p + t->kv.n;
	while (at < end && (*at == ' ' || *at == ':'))
		at++;
	quote = at < end && *at == '"' ? memchr(at + 1, '"', (size_t)(end - at - 1)) : NULL;
	if (quote == NULL)
		return (struct span){NULL, 0};
	return (struct span){at, (size_t)(quote + 1 - at)};
}
