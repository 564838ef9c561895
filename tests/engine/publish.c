#include "tests/engine/publish.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "tests/engine/buf.h"
#include "tests/engine/conn.h"
#include "tests/engine/json.h"
#include "tests/engine/pack.h"
#include "tests/engine/prefix.h"
#include "tests/engine/sim.h"

#define LINGER_MS 200
#define QUEUED 100000 /* vLLM's hwm: what a subscriber has not taken by then is dropped */
#define HASH_BYTES 32 /* of vLLM's SHA-256 */

struct batch {
	uint64_t number;
	struct buf bytes;
};

struct publish {
	struct sim *sim;
	void *zmq, *pub, *router;
	struct event *on_router;
	struct buf events; /* of the next batch */
	struct buf word;
	size_t nevents;
	uint64_t number;    /* of the next batch */
	uint64_t dropped;   /* batches that are not sent, though they are kept */
	struct batch *kept; /* a ring of --kv-buffer */
	uint64_t nkept;
};

static void
bind_to(struct publish *p, void *socket, const char *option, int port, const char *name)
{
	char at[300], got[300];
	size_t len = sizeof(got);
	int yes = 1, linger = LINGER_MS, queued = QUEUED;

	(void)zmq_setsockopt(socket, ZMQ_SNDHWM, &queued, sizeof(queued));
	(void)zmq_setsockopt(socket, ZMQ_IPV6, &yes, sizeof(yes));
	(void)zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
	(void)snprintf(at, sizeof(at),
		strchr(p->sim->o.host, ':') && p->sim->o.host[0] != '[' ? "tcp://[%s]:%d"
									: "tcp://%s:%d",
		p->sim->o.host, port);
	if (zmq_bind(socket, at) == -1 ||
		zmq_getsockopt(socket, ZMQ_LAST_ENDPOINT, got, &len) == -1)
		sim_bad_option(option, at);
	buf_fmt(&p->sim->more_ports, " %s=%s", name, strrchr(got, ':') + 1);
}

/* A request for replay: identity, empty, number.  All that is kept from there on is sent, and an end. */
static bool
serve_replay(struct publish *p)
{
	static const unsigned char end[8] = {255, 255, 255, 255, 255, 255, 255, 255};
	unsigned char id[256], number[8] = {0};
	uint64_t from = 0, first;
	int more = 1, n, nid, parts = 1;
	size_t len = sizeof(more);

	nid = zmq_recv(p->router, id, sizeof(id), ZMQ_DONTWAIT);
	if (nid == -1)
		return false;
	while (zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &len) == 0 && more) {
		n = zmq_recv(p->router, number, sizeof(number), 0);
		parts = n == (parts == 1 ? 0 : 8) ? parts + 1 : 100;
	}
	if (parts != 3)
		return true; /* as vLLM, which only logs it */
	for (n = 0; n < 8; n++)
		from = from << 8 | number[n];
	count(p->sim, CTR_kv_replays);
	first = p->nkept > (uint64_t)p->sim->o.kv_buffer ? p->nkept - (uint64_t)p->sim->o.kv_buffer
							 : 0;
	for (; first < p->nkept; first++) {
		const struct batch *b = &p->kept[first % (uint64_t)p->sim->o.kv_buffer];

		if (b->number < from)
			continue;
		for (n = 0; n < 8; n++)
			number[n] = (unsigned char)(b->number >> 8 * (7 - n));
		(void)zmq_send(p->router, id, (size_t)nid, ZMQ_SNDMORE);
		(void)zmq_send(p->router, "", 0, ZMQ_SNDMORE);
		(void)zmq_send(p->router, number, 8, ZMQ_SNDMORE);
		(void)zmq_send(p->router, b->bytes.p, b->bytes.len, 0);
	}
	(void)zmq_send(p->router, id, (size_t)nid, ZMQ_SNDMORE);
	(void)zmq_send(p->router, "", 0, ZMQ_SNDMORE);
	(void)zmq_send(p->router, end, sizeof(end), ZMQ_SNDMORE);
	(void)zmq_send(p->router, "", 0, 0);
	return true;
}

static void
on_router(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	while (serve_replay(arg))
		;
}

struct publish *
publish_new(struct sim *sim)
{
	struct publish *p;
	size_t len = sizeof(int);
	int fd;

	if (sim->o.kv_events < 0)
		return NULL;
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		abort();
	p->sim = sim;
	p->kept = calloc((size_t)sim->o.kv_buffer, sizeof(*p->kept));
	p->zmq = zmq_ctx_new();
	p->pub = p->zmq != NULL ? zmq_socket(p->zmq, ZMQ_PUB) : NULL;
	if (p->kept == NULL || p->pub == NULL)
		abort();
	bind_to(p, p->pub, "kv-events", sim->o.kv_events, "events");
	if (sim->o.kv_replay < 0)
		return p;
	p->router = zmq_socket(p->zmq, ZMQ_ROUTER);
	if (p->router == NULL)
		abort();
	bind_to(p, p->router, "kv-replay", sim->o.kv_replay, "replay");
	(void)zmq_getsockopt(p->router, ZMQ_FD, &fd, &len);
	p->on_router = event_new(sim->base, fd, EV_READ | EV_PERSIST, on_router, p);
	(void)event_add(p->on_router, NULL);
	on_router(-1, 0, p); /* the descriptor tells of changes alone */
	return p;
}

void
publish_free(struct publish **pp)
{
	struct publish *p = *pp;

	*pp = NULL;
	if (p == NULL)
		return;
	if (p->on_router != NULL)
		event_free(p->on_router);
	if (p->router != NULL)
		(void)zmq_close(p->router);
	(void)zmq_close(p->pub);
	(void)zmq_ctx_term(p->zmq);
	for (int i = 0; i < p->sim->o.kv_buffer; i++)
		buf_free(&p->kept[i].bytes);
	free(p->kept);
	buf_free(&p->events);
	buf_free(&p->word);
	free(p);
}

/* An event of so many members behind its tag, the last ones of which are optional. */
static void
begin_event(struct publish *p, const char *tag, size_t members)
{
	struct buf *b = &p->events;

	p->nevents++;
	if (p->sim->o.kv_form == KV_FORM_MAP) {
		pack_map(b, members + 1);
		pack_str(b, "type");
	} else {
		pack_array(b, members + 1);
	}
	pack_str(b, tag);
}

static void
name(struct publish *p, const char *member)
{
	if (p->sim->o.kv_form == KV_FORM_MAP)
		pack_str(&p->events, member);
}

static void
put_hash(struct publish *p, uint64_t hash)
{
	unsigned char bytes[HASH_BYTES] = {0};

	memcpy(bytes, &hash, sizeof(hash));
	if (p->sim->o.kv_form == KV_FORM_INTS)
		pack_uint(&p->events, hash);
	else
		pack_bin(&p->events, bytes, sizeof(bytes));
}

/* Which memory, from vLLM 0.11 on. */
static void
put_medium(struct publish *p)
{
	name(p, "medium");
	pack_str(&p->events, "GPU");
}

/* A JSON text without its quotes; the tests' have no escapes. */
static void
put_text(struct publish *p, struct jv text)
{
	p->word.len = 0;
	buf_add(&p->word, text.p + 1, text.len - 2);
	buf_add(&p->word, "", 1);
	pack_str(&p->events, p->word.p);
}

/* As vLLM names an adapter: by a number, and later by its name too. */
static void
put_adapter(struct publish *p, const struct prefix_prompt *prompt)
{
	name(p, "lora_id");
	if (prompt->adapter.p != NULL)
		pack_uint(&p->events, 1);
	else
		pack_nil(&p->events);
}

/* What a block's hash depends on besides its ids: a list for each block, the salt in the first one's. */
static void
put_extra(struct publish *p, const struct prefix_prompt *prompt, bool first, size_t n)
{
	const bool salted = first && prompt->salt.p != NULL, adapted = prompt->adapter.p != NULL;

	name(p, "lora_name");
	if (adapted)
		put_text(p, prompt->adapter);
	else
		pack_nil(&p->events);
	name(p, "extra_keys");
	pack_array(&p->events, n);
	for (size_t i = 0; i < n; i++) {
		const size_t keys = (size_t)adapted + (salted && i == 0);

		if (keys == 0) {
			pack_nil(&p->events);
			continue;
		}
		pack_array(&p->events, keys);
		if (adapted)
			put_text(p, prompt->adapter);
		if (salted && i == 0)
			put_text(p, prompt->salt);
	}
}

void
publish_stored(struct publish *p, uint64_t parent, const uint64_t *hashes, size_t n,
	const struct prefix_prompt *prompt, uint64_t at)
{
	static const size_t members[] = {
		[KV_FORM_INTS] = 5, [KV_FORM_BYTES] = 6, [KV_FORM_MAP] = 8};
	const uint32_t *ids = prompt->ids + at;
	size_t i, tokens;
	struct buf *b;

	if (p == NULL)
		return;
	b = &p->events;
	tokens = n * (size_t)p->sim->o.block_size;
	begin_event(p, "BlockStored", members[p->sim->o.kv_form]);
	name(p, "block_hashes");
	pack_array(b, n);
	for (i = 0; i < n; i++)
		put_hash(p, hashes[i]);
	name(p, "parent_block_hash");
	if (parent != 0)
		put_hash(p, parent);
	else
		pack_nil(b);
	name(p, "token_ids");
	pack_array(b, tokens);
	for (i = 0; i < tokens; i++)
		pack_uint(b, ids[i]);
	name(p, "block_size");
	pack_uint(b, (uint64_t)p->sim->o.block_size);
	put_adapter(p, prompt);
	if (p->sim->o.kv_form != KV_FORM_INTS)
		put_medium(p);
	if (p->sim->o.kv_form == KV_FORM_MAP)
		put_extra(p, prompt, parent == 0, n);
}

void
publish_removed(struct publish *p, uint64_t hash)
{
	if (p == NULL)
		return;
	begin_event(p, "BlockRemoved", p->sim->o.kv_form == KV_FORM_INTS ? 1 : 2);
	name(p, "block_hashes");
	pack_array(&p->events, 1);
	put_hash(p, hash);
	if (p->sim->o.kv_form != KV_FORM_INTS)
		put_medium(p);
}

void
publish_cleared(struct publish *p)
{
	if (p != NULL)
		begin_event(p, "AllBlocksCleared", 0);
}

static void
put_batch(const struct publish *p, struct buf *b)
{
	const bool map = p->sim->o.kv_form == KV_FORM_MAP;
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	if (map) {
		pack_map(b, 3);
		pack_str(b, "ts");
	} else {
		pack_array(b, p->sim->o.kv_form == KV_FORM_INTS ? 2 : 3);
	}
	pack_double(b, (double)now.tv_sec + (double)now.tv_nsec / 1e9);
	if (map)
		pack_str(b, "events");
	pack_array(b, p->nevents);
	buf_add(b, p->events.p, p->events.len);
	if (map)
		pack_str(b, "data_parallel_rank");
	if (p->sim->o.kv_form != KV_FORM_INTS)
		pack_uint(b, 0);
}

static void
send_batch(struct publish *p, const struct batch *b)
{
	unsigned char number[8];

	for (int i = 0; i < 8; i++)
		number[i] = (unsigned char)(b->number >> 8 * (7 - i));
	(void)zmq_send(p->pub, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT); /* the topic */
	(void)zmq_send(p->pub, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT);
	(void)zmq_send(p->pub, b->bytes.p, b->bytes.len, ZMQ_DONTWAIT);
}

void
publish_batch(struct publish *p)
{
	struct batch *b;

	if (p == NULL || p->nevents == 0)
		return;
	b = &p->kept[p->nkept++ % (uint64_t)p->sim->o.kv_buffer];
	b->number = p->number++;
	b->bytes.len = 0;
	put_batch(p, &b->bytes);
	p->nevents = 0;
	p->events.len = 0;
	count(p->sim, CTR_kv_batches);
	if (p->dropped > 0)
		p->dropped--;
	else
		send_batch(p, b);
}

/* Batches of n blocks each that are in no cache, for a measurement: each is another prompt. */
static void
burst(struct publish *p, int64_t batches, int64_t n)
{
	uint32_t *ids = calloc((size_t)p->sim->o.block_size, sizeof(*ids));
	const struct prefix_prompt prompt = {.ids = ids};
	uint64_t hash = 1;

	if (ids == NULL)
		abort();
	for (int i = 0; i < p->sim->o.block_size; i++)
		ids[i] = 100000 + (uint32_t)i;
	for (; batches > 0; batches--) {
		ids[0] = (uint32_t)batches;
		for (int64_t i = 0; i < n; i++, hash++)
			publish_stored(p, i > 0 ? hash - 1 : 0, &hash, 1, &prompt, 0);
		publish_batch(p);
	}
	free(ids);
}

void
publish_sim(struct conn *c)
{
	struct publish *p = c->sim->publish;
	struct jv doc = {c->body.p, c->body.len};
	struct batch wrong = {.number = 0};
	int64_t n = 0, size = 1;

	if (p == NULL) {
		conn_error(c, 400, "BadRequestError", "this engine has no --kv-events");
		return;
	}
	if (json_int(json_get(doc, "drop"), &n))
		p->dropped = (uint64_t)n;
	if (json_true(json_get(doc, "restart")))
		p->number = p->nkept = 0;
	if (json_true(json_get(doc, "garbage"))) {
		wrong.number = p->number++;
		BUF_LIT(&wrong.bytes, "\x92\xc0\xdd\xff\xff\xff\xff\x90");
		send_batch(p, &wrong);
		buf_free(&wrong.bytes);
	}
	if (json_int(json_get(doc, "batches"), &n)) {
		(void)json_int(json_get(doc, "blocks"), &size);
		burst(p, n, size);
	}
	conn_reply(c, 200, "application/json", NULL, "{}", 2);
}
