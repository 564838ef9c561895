/*
 * SGLang: the same body goes to both engines at once, with a room to meet in for every prompt.
 *
 *	P: opens the room, computes, and answers its first token when D has pulled
 *	D: GET /route ---> P's bootstrap server: where is the engine?
 *	D: ROOM <room> <prompt hash> ---> P: OK, as soon as the prompt is computed
 *
 * Nobody tells one that the other has failed: it waits (--bootstrap-timeout) unless its own client
 * leaves.  A room is good once.  gauge pdsim:open_rooms: P's rooms until it has answered, D's until
 * it has pulled.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/engine/boot.h"
#include "tests/engine/conn.h"
#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/seen.h"
#include "tests/engine/shake.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"

#define BUCKETS 4096
#define ROOM_MAX INT64_MAX /* SGLang keeps it in an int64 */

enum { HOST, PORT, ROOM, RID, RANK, PREFILL_RANK };

struct room { /* on P: known from its own request, from a D that asked, or both */
	struct room *chain;
	struct glang *engine;
	uint64_t id;
	struct pair *pair; /* NULL: P's request has not come, or is gone */
	unsigned prompt;   /* which of that request */
	bool computed, pulled;
	struct side_q *asker;
	uint64_t asker_prompt;
};

struct pull { /* on D */
	struct pair *pair;
	uint64_t room;
	struct buf host;
	int port;
	struct boot *boot;
	bool open;
};

struct pair { /* g->deal */
	struct gen *g;
	unsigned left;       /* prompts that have not met */
	struct room **rooms; /* P */
	struct pull *pulls;  /* D */
};

struct glang { /* sim->deals */
	struct sim *sim;
	struct seen *seen;
	struct room *bucket[BUCKETS];
};

/* ---- rooms ---- */

static struct room **
room_at(struct glang *e, uint64_t id)
{
	struct room **at = &e->bucket[id % BUCKETS];

	while (*at != NULL && (*at)->id != id)
		at = &(*at)->chain;
	return at;
}

static struct room *
room_get(struct glang *e, uint64_t id)
{
	struct room **at = room_at(e, id), *r = *at;

	if (r != NULL)
		return r;
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		abort();
	r->engine = e;
	r->id = id;
	*at = r;
	return r;
}

static void
room_put(struct room *r)
{
	if (r->pair != NULL || r->asker != NULL)
		return;
	*room_at(r->engine, r->id) = r->chain;
	free(r);
}

static void
start(struct sim *sim)
{
	struct glang *e = calloc(1, sizeof(*e));

	if (e == NULL)
		abort();
	e->sim = sim;
	sim->o.engine = FLAVOUR_SGLANG;
	sim->o.flat_errors = 1;
	sim->o.late_errors = 1;
	e->seen = seen_new();
	sim->deals = e;
	boot_listen(sim);
}

static void
stop(struct sim *sim)
{
	struct glang *e = sim->deals;

	seen_free(&e->seen);
	free(e); /* requests and askers have gone, and the rooms with them */
	sim->deals = NULL;
}

/* ---- what the request says ---- */

static void
read_ids(struct gen *g)
{
	enum role role = g->sim->o.role;
	struct jv rid = g->handed[RID], key;
	struct jiter it;

	if (role != ROLE_BOTH)
		g->mode = role == ROLE_PREFILL ? GEN_PREFILL : GEN_DECODE;
	if (json_kind(rid) == '[' && json_iter(&it, rid)) {
		g->rids = rid;
		if (!json_next(&it, &key, &rid))
			return;
	}
	if (json_kind(rid) != '"')
		return;
	g->rid.len = 0;
	json_text_buf(rid, &g->rid);
	g->bare_id = true;
}

static bool
is_live(const struct gen *g)
{
	const struct gen *o;

	TAILQ_FOREACH(o, &g->sim->gens, all)
	if (o != g && o->rid.len == g->rid.len && memcmp(o->rid.p, g->rid.p, g->rid.len) == 0)
		return true;
	return false;
}

/* The value for prompt i: of a list its i-th, else all have the same.  Absent: the list is too
 * short or too long. */
static struct jv
nth(const struct gen *g, struct jv v, unsigned i)
{
	struct jv key, val, found = {NULL, 0};
	struct jiter it;
	unsigned n = 0;

	if (json_kind(v) != '[')
		return v;
	(void)json_iter(&it, v);
	while (json_next(&it, &key, &val))
		if (n++ == i)
			found = val;
	return n == g->nprompts ? found : (struct jv){NULL, 0};
}

/* 0: it is no room.  Digits are read as they are: a double would lose some. */
static uint64_t
room_id(const struct gen *g, unsigned i)
{
	struct jv v = nth(g, g->handed[ROOM], i);
	uint64_t id = 0;
	size_t k;

	if (json_kind(v) != '0' || v.len > 19)
		return 0;
	for (k = 0; k < v.len; k++) {
		if (v.p[k] < '0' || v.p[k] > '9')
			return 0;
		id = id * 10 + (uint64_t)(v.p[k] - '0');
	}
	if (json_kind(g->handed[ROOM]) != '[' && id > 0)
		id += i; /* SGLang expands one room to a row of them */
	return id <= ROOM_MAX ? id : 0;
}

/* Under --follow-bootstrap-room P's rank follows from the room; whoever says another one is wrong. */
static bool
check_rank(struct gen *g, uint64_t room)
{
	const struct opts *o = &g->sim->o;
	bool pre = g->mode == GEN_PREFILL;
	int64_t head = pre ? conn_header_int(g->c, "x-data-parallel-rank") : -1;
	int64_t want = (int64_t)(room % (uint64_t)o->dp_size), rank = want;

	if (!o->follow_room)
		return true;
	(void)json_int(g->handed[pre ? RANK : PREFILL_RANK], &rank);
	if (head >= 0)
		rank = head;
	return rank == want || gen_refuse(g, CTR_rank_mismatch, 500,
				       "the data-parallel rank contradicts the bootstrap room");
}

static bool
fresh(struct gen *g, uint64_t room)
{
	struct glang *e = g->sim->deals;

	return !seen_before(e->seen, (const char *)&room, sizeof(room)) ||
	       gen_refuse(g, CTR_duplicate_rooms, 500, "the bootstrap room was used before");
}

static bool
open_room(struct gen *g, unsigned i, uint64_t id)
{
	struct pair *p = g->deal;
	struct room *r = room_get(g->sim->deals, id);

	p->rooms[i] = r;
	r->pair = p;
	r->prompt = i;
	g->sim->open_rooms++;
	return true;
}

static bool
open_pull(struct gen *g, unsigned i, uint64_t id)
{
	struct pull *u = &((struct pair *)g->deal)->pulls[i];
	struct jv host = nth(g, g->handed[HOST], i), port = nth(g, g->handed[PORT], i);
	int64_t n = 8998; /* SGLang's default, for null */

	u->room = id;
	json_text_buf(host, &u->host);
	if (u->host.len > 2 && u->host.p[0] == '[') { /* [::1] */
		buf_cut(&u->host, 1);
		u->host.len--;
	}
	if (!json_null(port) && !json_int(port, &n))
		n = 0;
	u->port = n > 0 && n < 65536 ? (int)n : 0;
	if (u->host.len == 0 || u->port == 0 || (json_null(port) && !json_null(g->handed[PORT])))
		return gen_refuse(g, CTR_rooms_invalid, 400,
			"bootstrap_host or bootstrap_port is missing or wrong");
	u->open = true;
	g->sim->open_rooms++;
	return true;
}

static void
draw_rooms(struct gen *g, uint64_t *ids)
{
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		do
			ids[i] = sim_random(g->sim) & ROOM_MAX;
		while (ids[i] == 0);
	}
}

/* A P that draws its rooms itself says so before anything else. */
static void
announce_rooms(struct gen *g, const uint64_t *ids)
{
	const char *host = g->sim->o.advertise;
	bool list = g->nprompts > 1;
	struct buf b = {0};
	unsigned i;

	buf_fill(&b, 0, CHUNK_ROOM);
	BUF_LIT(&b, "data: {\"id\":\"");
	buf_json_in(&b, g->rid.p, g->rid.len);
	BUF_LIT(&b, "\",\"disaggregated_params\":{\"bootstrap_host\":");
	buf_json(&b, host, strlen(host));
	buf_fmt(&b, ",\"bootstrap_port\":%d,\"bootstrap_room\":%s", g->sim->bootstrap_port,
		list ? "[" : "");
	for (i = 0; i < g->nprompts; i++)
		buf_fmt(&b, "%s%llu", i ? "," : "", (unsigned long long)ids[i]);
	buf_str(&b, list ? "]}}\n\n" : "}}\n\n");
	buf_reserve(&b, 2);
	g->stream = g->headed = true;
	conn_stream_head(g->c);
	(void)conn_chunk(g->c, b.p + CHUNK_ROOM, b.len - CHUNK_ROOM);
	buf_free(&b);
}

static void
pair_new(struct gen *g)
{
	struct pair *p = calloc(1, sizeof(*p));

	if (p == NULL)
		abort();
	g->deal = p;
	p->g = g;
	p->left = g->nprompts;
	if (g->mode == GEN_PREFILL)
		p->rooms = calloc(g->nprompts, sizeof(*p->rooms));
	else
		p->pulls = calloc(g->nprompts, sizeof(*p->pulls));
	if (p->rooms == NULL && p->pulls == NULL)
		abort();
}

static bool
open_all(struct gen *g, uint64_t *ids, bool own)
{
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		if (!own)
			ids[i] = room_id(g, i);
		if (ids[i] == 0)
			return gen_refuse(g, CTR_rooms_invalid, 500,
				"a bootstrap room must be in 1..2^63-1, one for each prompt");
		if (!check_rank(g, ids[i]) || !fresh(g, ids[i]) ||
			!(g->mode == GEN_PREFILL ? open_room : open_pull)(g, i, ids[i]))
			return false;
	}
	return true;
}

static bool
check(struct gen *g)
{
	bool own =
		g->mode == GEN_PREFILL && g->sim->o.bootstrap_stream && json_null(g->handed[ROOM]);
	uint64_t *ids;
	bool ok;

	if (g->bare_id && is_live(g))
		return gen_refuse(
			g, CTR_duplicate_request_ids, 400, "Duplicate request ID detected");
	if (g->mode == GEN_PLAIN)
		return true;
	if (json_null(g->handed[ROOM]) && !own)
		return gen_refuse(g, CTR_rooms_missing, 400,
			"Invalid request: Disaggregated request received without bootstrap room id.");
	if (g->n > 1)
		return gen_refuse(g, CTR_rooms_shared, 500, "n > 1 would use one room twice");
	ids = calloc(g->nprompts, sizeof(*ids));
	if (ids == NULL)
		abort();
	pair_new(g);
	if (own)
		draw_rooms(g, ids);
	ok = open_all(g, ids, own);
	if (ok && own)
		announce_rooms(g, ids);
	free(ids);
	if (ok && g->mode == GEN_PREFILL) { /* its answer is the first token alone */
		g->max_tokens = 1;
		g->min_tokens = g->min_tokens > 1 ? 1 : g->min_tokens;
	}
	return ok;
}

/* ---- D ---- */

static bool
find_rank(void *arg, struct jv answer, struct buf *host, int *ret_port)
{
	int64_t port = 0;

	(void)arg;
	json_text_buf(json_get(answer, "rank_ip"), host);
	if (!json_int(json_get(answer, "rank_port"), &port) || port < 1 || port > 65535)
		return false;
	*ret_port = (int)port;
	return host->len > 0;
}

static void
on_pulled(void *arg, const char *answer)
{
	struct pull *u = arg;
	struct pair *p = u->pair;
	struct gen *g = p->g;

	u->boot = NULL;
	u->open = false;
	g->sim->open_rooms--;
	if (strcmp(answer, "OK") != 0) {
		gen_fail(g, CTR_kv_refused, answer);
		return;
	}
	count(g->sim, CTR_kv_loaded);
	if (--p->left == 0)
		gen_compute(g);
}

static void
pull_all(struct conn *c)
{
	struct gen *g = c->gen;
	struct pair *p = g->deal;
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		struct pull *u = &p->pulls[i];
		struct buf line = {0};

		u->pair = p;
		buf_fmt(&line, "ROOM %llu %016llx", (unsigned long long)u->room,
			(unsigned long long)gen_key_of(g, i));
		u->boot = boot_ask(g->sim, buf_cstr(&u->host), u->port,
			"/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0",
			&line, find_rank, on_pulled, u);
		buf_free(&line);
		if (u->boot == NULL) {
			gen_fail(g, CTR_kv_refused, "its bootstrap host cannot be resolved");
			return;
		}
	}
}

static void
admitted(struct gen *g)
{
	if (g->mode == GEN_PREFILL) {
		gen_compute(g);
		return;
	}
	gen_travel(g);
	if (g->sim->o.fetch_delay_ms > 0)
		conn_after(g->c, g->sim->o.fetch_delay_ms, pull_all);
	else
		pull_all(g->c);
}

/* ---- P ---- */

/* D has asked and the prompt is computed. */
static void
meet(struct room *r)
{
	struct pair *p = r->pair;
	struct gen *g = p->g;
	bool same = r->asker_prompt == gen_key_of(g, r->prompt);

	side_answer(r->asker, same ? "OK" : "DIFFER prompt");
	r->asker = NULL;
	if (!same)
		return; /* P still waits for the D that is meant: a mix-up stays visible */
	r->pulled = true;
	p->left--;
	count(g->sim, CTR_kv_fetched);
}

static void
on_late(struct conn *c)
{
	gen_fail(c->gen, CTR_kv_expired, "no decode engine came for it");
}

static void
computed(struct gen *g)
{
	struct pair *p = g->deal;
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		p->rooms[i]->computed = true;
		if (p->rooms[i]->asker != NULL)
			meet(p->rooms[i]);
	}
	if (p->left == 0) {
		gen_reply(g);
		return;
	}
	gen_rest(g);
	conn_after(g->c, g->sim->o.fetch_timeout_s * 1000, on_late);
}

static void
asker_gone(void *arg)
{
	struct room *r = arg;

	r->asker = NULL;
	room_put(r);
}

static void
asked(struct sim *sim, struct side_q *q, const struct shake_words *w)
{
	struct room *r;

	if (w->n != 3 || strcmp(w->w[0], "ROOM") != 0) {
		side_answer(q, "DIFFER request");
		return;
	}
	r = room_get(sim->deals, strtoull(w->w[1], NULL, 10));
	if (r->asker != NULL || r->pulled) {
		side_answer(q, "TAKEN");
		return;
	}
	r->asker = q;
	r->asker_prompt = strtoull(w->w[2], NULL, 16);
	side_on_gone(q, asker_gone, r);
	if (r->pair == NULL || !r->computed)
		return;
	meet(r);
	if (r->pair->left == 0) {
		(void)event_del(&r->pair->g->c->tmr);
		gen_reply(r->pair->g);
	}
}

/* ---- the end ---- */

static void
end(struct gen *g)
{
	struct pair *p = g->deal;
	unsigned i;

	g->deal = NULL;
	if (p == NULL)
		return;
	for (i = 0; p->rooms != NULL && i < g->nprompts; i++) {
		if (p->rooms[i] == NULL)
			continue;
		g->sim->open_rooms--;
		p->rooms[i]->pair = NULL;
		room_put(p->rooms[i]);
	}
	for (i = 0; p->pulls != NULL && i < g->nprompts; i++) {
		g->sim->open_rooms -= p->pulls[i].open;
		boot_forget(&p->pulls[i].boot);
		buf_free(&p->pulls[i].host);
	}
	free(p->rooms);
	free(p->pulls);
	free(p);
}

/* The texts of SGLang's scheduler.  D: with a bootstrap server that does not answer it fails in the handshake, with a prefill
 * engine that does not give in the transfer. */
static void
failure(struct gen *g, const char *what, struct buf *text)
{
	const struct pair *p = g->deal;
	bool prefill = g->mode == GEN_PREFILL;
	bool handshake = strncmp(what, "STATUS", 6) == 0 || strcmp(what, "NOT FOUND") == 0 ||
			 strcmp(what, "UNREACHABLE") == 0;
	unsigned long long room = prefill ? p->rooms[0]->id : p->pulls[0].room;
	const char *req = prefill ? "req" : "decode_req.req";

	buf_fmt(text, "%s failed for request rank=0 %s.rid='",
		prefill     ? "Prefill bootstrap"
		: handshake ? "Decode handshake"
			    : "Decode transfer",
		req);
	buf_add(text, g->rid.p, g->rid.len);
	buf_fmt(text,
		"' %s.bootstrap_room=%llu with exception KVTransferError(bootstrap_room=%llu): ",
		req, room, room);
	if (prefill)
		buf_fmt(text, "Request %llu timed out after %.1fs in KVPoll.Bootstrapping", room,
			g->sim->o.fetch_timeout_s);
	else if (handshake)
		buf_fmt(text, "Could not fetch prefill parallel info from bootstrap_addr: %s:%d",
			buf_cstr(&p->pulls[0].host), p->pulls[0].port);
	else
		BUF_LIT(text, "Failed to get kvcache from prefill instance, it might be dead");
}

const struct shake shake_sglang = {
	.name = "sglang",
	.members = {[HOST] = "bootstrap_host",
		[PORT] = "bootstrap_port",
		[ROOM] = "bootstrap_room",
		[RID] = "rid",
		[RANK] = "routed_dp_rank",
		[PREFILL_RANK] = "disagg_prefill_dp_rank"},
	.start = start,
	.stop = stop,
	.read = read_ids,
	.check = check,
	.admitted = admitted,
	.computed = computed,
	.end = end,
	.failure = failure,
	.asked = asked,
};
