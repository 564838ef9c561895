#include "tests/engine/kv.h"

#include <event2/event.h>
#include <event2/event_struct.h>

#include <stdlib.h>
#include <string.h>

#include "tests/engine/buf.h"
#include "tests/engine/gen.h"
#include "tests/engine/seen.h"
#include "tests/engine/sim.h"
#include "tests/engine/text.h"

#define BUCKETS 16384
/* Block ids under --big-ids: odd numbers above 2^53, which a double cannot hold. */
#define BIG(id) (9007199254740993ULL + 2ULL * (id))

struct held {
	struct hold h;
	TAILQ_ENTRY(held) next;
	struct held *chain;
	uint64_t hash, began_us, expires_us;
	char *id, *xrid;
	uint32_t *ids;
};

TAILQ_HEAD(held_head, held);

struct kv {
	struct sim *sim;
	uint64_t used, held_blocks, held_requests;
	uint32_t *freed, nfreed, cap, fresh; /* ids given back; the first id never given out */
	struct held *bucket[BUCKETS];
	struct held_head by_time;
	struct event timer;
	struct seen *over; /* ids whose hold has ended */
};

static void on_expiry(evutil_socket_t fd, short what, void *arg);

struct kv *
kv_new(struct sim *sim)
{
	struct kv *kv = calloc(1, sizeof(*kv));

	if (kv == NULL)
		abort();
	kv->sim = sim;
	kv->fresh = 1; /* block 0 is vLLM's null block */
	TAILQ_INIT(&kv->by_time);
	kv->over = seen_new();
	(void)evtimer_assign(&kv->timer, sim->base, on_expiry, kv);
	return kv;
}

uint32_t
kv_blocks_for(const struct sim *sim, uint64_t tokens)
{
	return (uint32_t)((tokens + (uint64_t)sim->o.block_size - 1) / (uint64_t)sim->o.block_size);
}

bool
kv_reserve(struct kv *kv, uint64_t n)
{
	if (kv->used + n > (uint64_t)kv->sim->o.blocks)
		return false;
	kv->used += n;
	return true;
}

void
kv_unreserve(struct kv *kv, uint64_t n)
{
	kv->used -= n;
}

static void
give_back(struct kv *kv, const uint32_t *ids, uint32_t n)
{
	if (kv->nfreed + n > kv->cap) {
		kv->cap = (kv->nfreed + n) * 2;
		kv->freed = realloc(kv->freed, kv->cap * sizeof(*kv->freed));
		if (kv->freed == NULL)
			abort();
	}
	if (n)
		memcpy(kv->freed + kv->nfreed, ids, n * sizeof(*ids));
	kv->nfreed += n;
}

static void
arm(struct kv *kv)
{
	struct held *e = TAILQ_FIRST(&kv->by_time);
	uint64_t now = sim_now_us(), us;
	struct timeval tv;

	if (e == NULL || event_pending(&kv->timer, EV_TIMEOUT, NULL))
		return;
	us = e->expires_us > now ? e->expires_us - now : 0;
	tv.tv_sec = (time_t)(us / 1000000);
	tv.tv_usec = (suseconds_t)(us % 1000000);
	(void)event_add(&kv->timer, &tv);
}

struct hold *
kv_hold(struct kv *kv, const char *id, const char *xrid, uint32_t ntokens)
{
	struct held *e = calloc(1, sizeof(*e)), **head;
	uint32_t i, n = kv_blocks_for(kv->sim, ntokens);

	if (e == NULL)
		abort();
	e->id = strdup(id);
	e->xrid = strdup(xrid);
	e->ids = calloc(n ? n : 1, sizeof(*e->ids));
	if (e->id == NULL || e->xrid == NULL || e->ids == NULL)
		abort();
	for (i = 0; i < n; i++)
		e->ids[i] = kv->nfreed ? kv->freed[--kv->nfreed] : kv->fresh++;
	e->h = (struct hold){.id = e->id, .ntokens = ntokens, .nblocks = n, .ids = e->ids};
	e->hash = text_fnv(TEXT_FNV0, id, strlen(id));
	e->began_us = sim_now_us();
	e->expires_us = e->began_us + (uint64_t)(kv->sim->o.kv_timeout_s * 1e6);
	head = &kv->bucket[e->hash % BUCKETS];
	e->chain = *head;
	*head = e;
	TAILQ_INSERT_TAIL(&kv->by_time, e, next);
	kv->held_blocks += n;
	kv->held_requests++;
	count(kv->sim, CTR_kv_held);
	arm(kv);
	return &e->h;
}

static struct held *
find(struct kv *kv, const char *id)
{
	struct held *e = kv->bucket[text_fnv(TEXT_FNV0, id, strlen(id)) % BUCKETS];

	while (e != NULL && strcmp(e->id, id) != 0)
		e = e->chain;
	return e;
}

static void
drop(struct kv *kv, struct held *e)
{
	struct held **at = &kv->bucket[e->hash % BUCKETS];

	while (*at != e)
		at = &(*at)->chain;
	*at = e->chain;
	(void)seen_before(kv->over, e->id, strlen(e->id));
	TAILQ_REMOVE(&kv->by_time, e, next);
	give_back(kv, e->ids, e->h.nblocks);
	kv->used -= e->h.nblocks;
	kv->held_blocks -= e->h.nblocks;
	kv->held_requests--;
	free(e->ids);
	free(e->xrid);
	free(e->id);
	free(e);
}

static void
on_expiry(evutil_socket_t fd, short what, void *arg)
{
	struct kv *kv = arg;
	struct held *e;

	(void)fd;
	(void)what;
	while ((e = TAILQ_FIRST(&kv->by_time)) != NULL && e->expires_us <= sim_now_us()) {
		count(kv->sim, CTR_kv_expired);
		drop(kv, e);
	}
	arm(kv);
	gen_pump(kv->sim);
}

void
kv_params(struct kv *kv, const struct hold *h, const char *host, int port, struct buf *b)
{
	const struct opts *o = &kv->sim->o;
	uint32_t i;

	BUF_LIT(b, "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_block_ids\":");
	buf_str(b, o->ids == IDS_NESTED ? "[[" : "[");
	for (i = 0; i < h->nblocks; i++) {
		if (i)
			BUF_LIT(b, ",");
		if (o->ids == IDS_STRINGS)
			BUF_LIT(b, "\"");
		buf_u64(b, o->big_ids ? BIG(h->ids[i]) : h->ids[i]);
		if (o->ids == IDS_STRINGS)
			BUF_LIT(b, "\"");
	}
	buf_str(b, o->ids == IDS_NESTED ? "]]" : "]");
	buf_fmt(b, ",\"remote_engine_id\":\"%s\"", kv->sim->engine_id);
	if (o->vllm != VLLM_0_11) {
		BUF_LIT(b, ",\"remote_request_id\":");
		buf_json(b, h->id, strlen(h->id));
	}
	BUF_LIT(b, ",\"remote_host\":");
	buf_json(b, host, strlen(host));
	buf_fmt(b, ",\"remote_port\":%d,\"tp_size\":%d", port, o->tp);
	if (o->vllm == VLLM_0_33)
		buf_fmt(b,
			",\"pp_size\":1,\"dcp_size\":1,\"remote_num_tokens\":%u,\"transfer_mode\":\"%s\","
			"\"remote_blocks_expiry_time\":null,\"remote_registration_generation\":%s",
			h->ntokens, o->transfer == TRANSFER_PUSH ? "push" : "pull",
			o->big_ids ? "18446744073709551617" : "1");
	BUF_LIT(b, "}");
}

uint64_t
kv_meta(struct jv params, bool push)
{
	/* not remote_host: a router may put the address it knows there (protocols of the connector)
	 */
	static const char *const names[] = {"remote_engine_id", "remote_request_id", "remote_port",
		"tp_size", "remote_block_ids", "remote_num_tokens", "transfer_mode",
		"remote_registration_generation"};
	size_t n = push ? 4 : sizeof(names) / sizeof(names[0]);
	uint64_t sum = 0, h;
	struct jv key, val;
	struct jiter it;
	size_t i;

	if (json_kind(params) != '{' || !json_iter(&it, params))
		return 0;
	while (json_next(&it, &key, &val)) {
		for (i = 0; i < n; i++) {
			if (!json_is(key, names[i]))
				continue;
			h = text_fnv(TEXT_FNV0, names[i], strlen(names[i]));
			json_canon(val, text_fnv_sink, &h);
			sum += h;
		}
	}
	return sum;
}

enum kv_outcome
kv_fetch(struct kv *kv, const char *engine, const char *id, uint64_t prompt, uint64_t meta,
	uint32_t *ret_n, struct buf *xrid)
{
	struct held *e = find(kv, id);

	if (strcmp(engine, kv->sim->engine_id) != 0)
		return KV_DIFFER_ENGINE;
	if (e == NULL) { /* pushed, it may come early, and then asks again and again */
		if (kv->sim->o.transfer != TRANSFER_PUSH && seen_before(kv->over, id, strlen(id)))
			count_twice(kv->sim, CTR_kv_replayed, id, strlen(id));
		return KV_MISSING;
	}
	if (meta != e->h.meta)
		return KV_DIFFER_META;
	if (prompt != e->h.prompt)
		return KV_DIFFER_PROMPT;
	*ret_n = e->h.nblocks;
	buf_str(xrid, e->xrid);
	drop(kv, e);
	count(kv->sim, CTR_kv_fetched);
	gen_pump(kv->sim);
	return KV_OK;
}

bool
kv_has(struct kv *kv, const char *id)
{
	return find(kv, id) != NULL;
}

bool
kv_take(struct kv *kv, const char *id)
{
	struct held *e = find(kv, id);

	if (e == NULL)
		return false;
	drop(kv, e);
	count(kv->sim, CTR_kv_fetched);
	gen_pump(kv->sim);
	return true;
}

bool
kv_release(struct kv *kv, const char *engine, const char *id)
{
	struct held *e = find(kv, id);

	if (e == NULL || strcmp(engine, kv->sim->engine_id) != 0)
		return false;
	drop(kv, e);
	count(kv->sim, CTR_kv_released);
	gen_pump(kv->sim);
	return true;
}

void
kv_list(const struct kv *kv, struct buf *b)
{
	uint64_t now = sim_now_us();
	struct held *e;

	BUF_LIT(b, "[");
	TAILQ_FOREACH(e, &kv->by_time, next)
	{
		buf_str(b, e == TAILQ_FIRST(&kv->by_time) ? "{\"id\":" : ",{\"id\":");
		buf_json(b, e->id, strlen(e->id));
		BUF_LIT(b, ",\"request_id\":");
		buf_json(b, e->xrid, strlen(e->xrid));
		buf_fmt(b, ",\"blocks\":%u,\"age_ms\":%llu,\"unreachable\":%s}", e->h.nblocks,
			(unsigned long long)(now - e->began_us) / 1000,
			e->h.unreachable ? "true" : "false");
	}
	BUF_LIT(b, "]");
}

uint64_t
kv_used(const struct kv *kv)
{
	return kv->used;
}

uint64_t
kv_held_blocks(const struct kv *kv)
{
	return kv->held_blocks;
}

uint64_t
kv_held_requests(const struct kv *kv)
{
	return kv->held_requests;
}

void
kv_free(struct kv **pkv)
{
	struct kv *kv = *pkv;
	struct held *e;

	*pkv = NULL;
	if (kv == NULL)
		return;
	(void)event_del(&kv->timer);
	while ((e = TAILQ_FIRST(&kv->by_time)) != NULL)
		drop(kv, e);
	seen_free(&kv->over);
	free(kv->freed);
	free(kv);
}
