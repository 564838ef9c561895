/*
 * One PUB socket to all other routers, and a SUB socket for each of them.
 *
 * A worker that is killed leaves whole notes, or a note that no process sees (shm/ring.h).  A notifier that is killed
 * loses what it has read and not sent; its successor begins a new life, with numbers from 0.  The others learn loads anew
 * with its first message.
 *
 * A message is taken once: its life is not before the one known of that router, and its number is above the last one.  A
 * receiver forgets a life after FORGET_S without a message: the time of a message may be OLD_S ahead, and then it is taken
 * until 2 * OLD_S after it was sent.  A router whose clock is wrong by more than OLD_S is refused, and counted.
 *
 * A router that comes by two addresses (one of its own, and one that moves) is taken by the first of them, while that one is
 * not silent: its loads would count twice.
 *
 * The load of an engine that is not said again within SIBLING_LOAD_MS counts as 0: so a message that is lost does no harm for
 * long.  What is not 0 is said every AGAIN_MS.
 */
#include "master/notifier/siblings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "master/notifier/peers.h"
#include "proto/tls/mac.h"
#include "proto/wire/sibling_message.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "shm/core/heritage.h"
#include "shm/core/seg.h"
#include "shm/siblings.h"
#include "shm/sibling_load.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/metrics_layout.h"
#include "shm/prefix.h"

#define AGAIN_MS 100
#define ENGINES_MS 500      /* between two looks at which engines there are */
#define SILENT_MS 3000      /* without a message another router is silent */
#define RENEW_MAX_MS 300000 /* libzmq never connects again after a peer has broken the protocol */
#define OLD_S 30
#define FORGET_S (2 * OLD_S)
#define QUEUED 32         /* messages that libzmq holds of each router, or for it */
#define SUBSCRIBERS 64    /* routers that are counted with */
#define MESSAGES 8        /* sent in one turn */
#define TURN_BYTES 524288 /* read in one turn, of all routers */
#define MESSAGE_BYTES 512 /* what a message costs at least, in the same measure */
#define IDS_PRIME UINT64_C(1099511628211)
#define RECONNECT_MS 100
#define RECONNECT_MAX_MS 2000

static_assert(SIBLING_MESSAGE_DIGESTS == PREFIX_CUTS, "a note has all cuts of a prompt");
static_assert(SIBLINGS_ITEMS == SIBLINGS_MAX, "a socket for each");

/* What another router has at an engine. */
struct there {
	struct sibling_load load;
	uint64_t at_ms; /* when it was said */
};

struct other {
	const char *address;
	void *zmq;       /* NULL: no descriptor was free */
	uint64_t sender; /* of its last message */
	uint64_t life, next;
	uint64_t renew_ms;  /* the socket is made anew then, */
	uint64_t silent_ms; /* so long after the last message */
	struct sibling said;
	struct there *there; /* [max_endpoints] */
};

struct known_engine {
	uint64_t id;
	uint32_t ep;
};

struct siblings {
	struct seg *seg;
	struct metrics_slab *slab;
	void *ctx, *pub;
	struct mac *mac;
	struct sibling_message head; /* of the next message */
	uint64_t send_ms, again_ms, engines_ms;
	struct sibling_load *told;    /* [max_endpoints] as said last */
	uint64_t *at;                 /* [worker slots] in their rings */
	uint32_t first;               /* worker whose turn it is */
	struct known_engine *engines; /* [nengines] by id */
	uint32_t nengines;
	uint64_t ids;     /* a hash of all of them */
	bool again;       /* loads are said that have not changed */
	uint32_t load_at; /* the engine whose load is said next */
	int64_t left;     /* of TURN_BYTES */
	uint32_t nothers, first_other;
	struct other others[SIBLINGS_MAX];
	unsigned char message[SIBLING_MESSAGE_MAX];
};

uint64_t
siblings_bytes(const struct conf *conf)
{
	return conf->siblings_key == NULL ? 0
					  : (uint64_t)QUEUED * SIBLING_MESSAGE_MAX *
						    (SUBSCRIBERS + conf->nsiblings_routers);
}

uint64_t
siblings_fds(const struct conf *conf)
{
	/* an eventfd and a connection of each, twice: one that is closed stays for a moment */
	return conf->siblings_key == NULL ? 0 : SUBSCRIBERS + 4 * conf->nsiblings_routers + 4;
}

/* --- sockets ------------------------------------------------------------------------------------- */

static void
set_int(void *zmq, int option, int value)
{
	(void)zmq_setsockopt(zmq, option, &value, sizeof(value));
}

static void *
open_socket(const struct siblings *r, int type, const char *address)
{
	int64_t max = SIBLING_MESSAGE_MAX;
	void *zmq = zmq_socket(r->ctx, type);

	if (zmq == NULL)
		return NULL;
	set_int(zmq, ZMQ_RCVHWM, QUEUED);
	set_int(zmq, ZMQ_SNDHWM, QUEUED);
	set_int(zmq, ZMQ_LINGER, 0);
	set_int(zmq, ZMQ_IPV6, strchr(address, '[') != NULL);
	set_int(zmq, ZMQ_RECONNECT_IVL, RECONNECT_MS);
	set_int(zmq, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
	set_int(zmq, ZMQ_TCP_KEEPALIVE, 1);
	(void)zmq_setsockopt(zmq, ZMQ_MAXMSGSIZE, &max, sizeof(max));
	if (type == ZMQ_SUB)
		(void)zmq_setsockopt(zmq, ZMQ_SUBSCRIBE, "", 0);
	return zmq;
}

static void
await(struct other *o, uint64_t now_ms, uint64_t silent_ms)
{
	o->silent_ms = silent_ms < RENEW_MAX_MS ? silent_ms : RENEW_MAX_MS;
	o->renew_ms = now_ms + o->silent_ms;
}

static void
close_socket(void **zmq)
{
	if (*zmq != NULL)
		(void)zmq_close(*zmq);
	*zmq = NULL;
}

static void
connect_other(struct siblings *r, struct other *o)
{
	close_socket(&o->zmq);
	o->zmq = open_socket(r, ZMQ_SUB, o->address);
	if (o->zmq == NULL || zmq_connect(o->zmq, o->address) != 0) {
		log_error("cannot connect to another router", LOG_S("address", o->address),
			LOG_S("error", zmq_strerror(errno)));
		close_socket(&o->zmq);
	}
}

/* The hosts of the other routers' addresses, unless networks are configured. */
static int
accept_others(const struct conf *conf, void *zmq)
{
	char *hosts[SIBLINGS_MAX + 1];
	const bool v6 = strchr(conf->siblings_listen, '[') != NULL;
	size_t n = 0;
	int rc;

	if (conf->nsiblings_networks > 0 || strncmp(conf->siblings_listen, "tcp://", 6) != 0)
		return peers_accept_networks(
			zmq, conf->siblings_networks, conf->nsiblings_networks, v6);
	for (; n < conf->nsiblings_routers && n < SIBLINGS_MAX; n++) {
		const char *host = conf->siblings_routers[n] + strlen("tcp://");
		const char *end = strrchr(host, ':');

		if (host[0] == '[') {
			host++;
			end--;
		}
		hosts[n] = mem_strndup(host, (size_t)(end - host));
	}
	/* there is no other router yet, and without a network all peers would be accepted */
	if (n == 0)
		hosts[n++] = mem_strdup("127.0.0.1");
	rc = peers_accept_networks(zmq, hosts, n, v6);
	while (n > 0)
		free(hosts[--n]);
	return rc;
}

/* 0, or an exit code. */
static int
listen_for_others(struct siblings *r, const struct conf *conf)
{
	int err;

	r->pub = open_socket(r, ZMQ_PUB, conf->siblings_listen);
	if (r->pub != NULL && accept_others(conf, r->pub) == 0 &&
		zmq_bind(r->pub, conf->siblings_listen) == 0) {
		log_info("other routers are told", LOG_S("address", conf->siblings_listen));
		return 0;
	}
	err = errno;
	log_error("cannot listen for other routers", LOG_S("address", conf->siblings_listen),
		LOG_S("error", zmq_strerror(err)));
	return err == EINVAL || err == EPROTONOSUPPORT || err == EACCES ? CHILD_EXIT_NO_RESPAWN
									: CHILD_EXIT_FAILED;
}

struct siblings *
siblings_new(struct seg *seg, struct metrics_slab *slab, const struct conf *conf, void *ctx,
	int *ret_code)
{
	struct siblings *r = MEM_NEW(struct siblings);

	r->seg = seg;
	r->slab = slab;
	r->ctx = ctx;
	r->head.sender = rnd_u64();
	r->head.life = clock_wall_us();
	r->told = mem_array(seg->hdr->max_endpoints, sizeof(*r->told));
	r->engines = mem_array(seg->hdr->max_endpoints, sizeof(*r->engines));
	r->at = mem_array(SLOT_WORKERS(seg), sizeof(*r->at));
	for (uint32_t i = 0; i < SLOT_WORKERS(seg); i++)
		r->at[i] = sibling_notes_begin(seg, i);
	r->mac = mac_new(conf->siblings_key->message);
	*ret_code = r->mac != NULL ? listen_for_others(r, conf) : CHILD_EXIT_FAILED;
	for (uint32_t i = 0; i < SIBLINGS_MAX; i++) { /* a predecessor's are gone, too */
		struct other *o = &r->others[i];

		if (i < conf->nsiblings_routers && *ret_code == 0) {
			o->address = conf->siblings_routers[i];
			o->said.address = sibling_hash(o->address);
			o->said.silent = 1;
			o->there = mem_array(seg->hdr->max_endpoints, sizeof(*o->there));
			await(o, clock_ms(), SILENT_MS);
			connect_other(r, o);
			r->nothers++;
		}
		sibling_put(seg, i, &o->said);
	}
	if (*ret_code != 0)
		siblings_free(&r);
	return r;
}

void
siblings_free(struct siblings **pr)
{
	struct siblings *r = *pr;

	if (r == NULL)
		return;
	for (uint32_t i = 0; i < r->nothers; i++) {
		close_socket(&r->others[i].zmq);
		free(r->others[i].there);
	}
	close_socket(&r->pub);
	mac_free(&r->mac);
	free(r->told);
	free(r->engines);
	free(r->at);
	free(r);
	*pr = NULL;
}

int
siblings_items(const struct siblings *r, zmq_pollitem_t *items)
{
	int n = 0;

	for (uint32_t i = 0; i < r->nothers; i++)
		if (r->others[i].zmq != NULL)
			items[n++] =
				(zmq_pollitem_t){.socket = r->others[i].zmq, .events = ZMQ_POLLIN};
	return n;
}

/* --- engines ------------------------------------------------------------------------------------- */

static int
by_id(const void *a, const void *b)
{
	const struct known_engine *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static void
read_engines(struct siblings *r)
{
	uint64_t ids = 0;

	for (uint32_t ep = 0; ep < r->seg->hdr->max_endpoints; ep++)
		ids = ids * IDS_PRIME + sibling_engine_id(r->seg, ep);
	if (ids == r->ids)
		return;
	r->ids = ids;
	r->nengines = 0;
	for (uint32_t ep = 0; ep < r->seg->hdr->max_endpoints; ep++) {
		const uint64_t id = sibling_engine_id(r->seg, ep);

		if (id != 0)
			r->engines[r->nengines++] = (struct known_engine){id, ep};
	}
	if (r->nengines > 0)
		qsort(r->engines, r->nengines, sizeof(*r->engines), by_id);
}

/* The engine's endpoint here.  False: this router does not have it. */
static bool
find_engine(const struct siblings *r, uint64_t id, uint32_t *ret)
{
	const struct known_engine key = {.id = id}, *found = NULL;

	if (r->nengines > 0)
		found = bsearch(&key, r->engines, r->nengines, sizeof(key), by_id);
	if (found != NULL)
		*ret = found->ep;
	return found != NULL;
}

/* --- telling ------------------------------------------------------------------------------------- */

/* A message ends.  The other routers that are connected get it; what a connection has no room for is lost. */
static void
send_message(struct siblings *r, struct sibling_writer *w)
{
	size_t n;

	r->head.sent_us = clock_wall_us();
	n = sibling_write_end(w, &r->head);
	if (!mac_make(r->mac, r->message, n, r->message + n))
		return;
	r->head.number++;
	metric_add(r->slab, M_SIBLING_NOTES_SENT, w->nnotes);
	(void)zmq_send(r->pub, r->message, n + SIBLING_MESSAGE_MAC, ZMQ_DONTWAIT);
	sibling_write_begin(w, r->message);
}

/* What has changed since it was said; `again`: and all that is not 0.  False: the message is full. */
static bool
write_loads(struct siblings *r, struct sibling_writer *w)
{
	for (; r->load_at < r->nengines; r->load_at++) {
		const struct known_engine *e = &r->engines[r->load_at];
		const struct sibling_load now = {
			load_count(r->seg, e->ep), load_tokens(r->seg, e->ep)};
		struct sibling_load *told = &r->told[e->ep];

		if (now.requests == told->requests && now.tokens == told->tokens &&
			(!r->again || (now.requests | now.tokens) == 0))
			continue;
		if (!sibling_write_load(w, &(struct wire_load){e->id, now.requests, now.tokens}))
			return false;
		*told = now;
	}
	return true;
}

/* A worker's notes.  False: the message is full. */
static bool
write_notes_of(struct siblings *r, struct sibling_writer *w, uint32_t worker)
{
	struct sibling_note note;
	uint64_t at = r->at[worker];
	uint32_t n;
	bool room = true;

	while (room && (n = sibling_note_next(r->seg, worker, &at, &note)) > 0) {
		struct wire_note out = {.engine = sibling_engine_id(r->seg, note.ep),
			.computes = note.computes,
			.n = n};

		/* of a former life of the slot, or of an endpoint that was removed */
		if (out.engine != 0 && note.tag == (uint32_t)ep_tag(r->seg, note.ep)) {
			memcpy(out.digest, note.digest, n * sizeof(out.digest[0]));
			room = sibling_write_note(w, &out);
		}
		if (room)
			r->at[worker] = at;
	}
	if (room)
		r->at[worker] = at; /* behind what could not be */
	sibling_notes_done(r->seg, worker, r->at[worker]);
	return room;
}

/* From the worker on that has waited longest. */
static bool
write_notes(struct siblings *r, struct sibling_writer *w, uint32_t *done)
{
	const uint32_t workers = SLOT_WORKERS(r->seg);

	for (; *done < workers; ++*done) {
		if (!write_notes_of(r, w, r->first))
			return false;
		r->first = (r->first + 1) % workers;
	}
	return true;
}

/* What a turn does not come to is sent in the next one. */
static void
tell(struct siblings *r, uint64_t now_ms)
{
	struct sibling_writer w;
	uint32_t done = 0;

	if (r->load_at == 0)
		r->again = now_ms >= r->again_ms;
	sibling_write_begin(&w, r->message);
	for (int i = 0; i < MESSAGES; i++) {
		if (write_loads(r, &w) && write_notes(r, &w, &done)) {
			if (w.nloads + w.nnotes > 0 || r->again)
				send_message(r, &w); /* empty: this router lives */
			if (r->again)
				r->again_ms = now_ms + AGAIN_MS;
			r->load_at = 0;
			return;
		}
		send_message(r, &w);
	}
}

/* --- hearing ------------------------------------------------------------------------------------- */

/* What all other routers together have there. */
static void
add_up(struct siblings *r, uint32_t ep, uint64_t now_ms)
{
	uint64_t requests = 0, tokens = 0;

	for (uint32_t i = 0; i < r->nothers; i++) {
		const struct there *t = &r->others[i].there[ep];

		if (now_ms > t->at_ms + SIBLING_LOAD_MS)
			continue;
		requests += t->load.requests;
		tokens += t->load.tokens;
	}
	if ((requests | tokens) == 0) { /* as most are: the line stays in the workers' caches */
		const struct sibling_load was = sibling_load_get(r->seg, ep, now_ms);

		if ((was.requests | was.tokens) == 0)
			return;
	}
	sibling_load_set(r->seg, ep, requests, tokens, now_ms);
}

static void
take_loads(struct siblings *r, struct other *o, struct sibling_message *m, uint64_t now_ms)
{
	struct wire_load l;
	uint32_t ep;

	while (sibling_message_load(m, &l)) {
		o->said.loads++;
		if (!find_engine(r, l.engine, &ep)) {
			o->said.unknown++;
			metric_add(r->slab, M_SIBLING_UNKNOWN, 1);
			continue;
		}
		o->there[ep] = (struct there){{l.requests, l.tokens}, now_ms};
		add_up(r, ep, now_ms);
	}
}

static void
take_notes(struct siblings *r, struct other *o, struct sibling_message *m)
{
	struct wire_note note;
	struct prefix_key key;
	uint32_t ep;

	while (sibling_message_note(m, &note)) {
		struct prefix_taken taken;

		o->said.notes++;
		metric_add(r->slab, M_SIBLING_NOTES, 1);
		if (!find_engine(r, note.engine, &ep)) {
			o->said.unknown++;
			metric_add(r->slab, M_SIBLING_UNKNOWN, 1);
			continue;
		}
		key.n = note.n;
		memcpy(key.digest, note.digest, note.n * sizeof(key.digest[0]));
		taken = prefix_insert(r->seg, &key, sibling_engine_row(r->seg, ep), ep,
			note.computes < PREFIX_CAPACITY_MAX ? note.computes : PREFIX_CAPACITY_MAX);
		metric_add(r->slab, M_PREFIX_USED, taken.empty);
		metric_add(r->slab, M_PREFIX_LOST, taken.fresh);
	}
}

static void
refuse(struct siblings *r, struct other *o, enum metric_counter why)
{
	o->said.refused++;
	metric_add(r->slab, why, 1);
}

/* Whether the message comes for the first time. */
static bool
is_new(struct siblings *r, struct other *o, const struct sibling_message *m, uint64_t now_ms)
{
	if (o->life != 0 && now_ms > o->said.at_ms + FORGET_S * 1000)
		o->life = 0;
	if (m->life < o->life || (m->life == o->life && m->number < o->next))
		return false;
	if (m->life == o->life && m->number > o->next) {
		const uint64_t missed = m->number - o->next;

		o->said.missed += missed;
		metric_add(r->slab, M_SIBLING_MISSED, missed);
	}
	o->life = m->life;
	o->next = m->number + 1;
	return true;
}

/* Whether its sender's messages come by another address. */
static bool
comes_twice(const struct siblings *r, const struct other *o, const struct sibling_message *m)
{
	for (uint32_t i = 0; i < r->nothers; i++) {
		const struct other *x = &r->others[i];

		if (x != o && x->sender == m->sender && x->said.silent == 0 && x->said.own == 0)
			return true;
	}
	return false;
}

static void
hear(struct other *o, uint64_t now_ms)
{
	if (o->said.silent != 0 && o->said.own == 0)
		log_info("another router is connected", LOG_S("address", o->address));
	o->said.silent = 0;
	o->said.at_ms = now_ms;
	await(o, now_ms, SILENT_MS);
}

static void
take_message(struct siblings *r, struct other *o, const unsigned char *p, size_t n)
{
	const uint64_t now_ms = clock_ms(), wall_us = clock_wall_us(), old_us = OLD_S * 1000000u;
	struct sibling_message m;

	if (n < SIBLING_MESSAGE_HEAD + SIBLING_MESSAGE_MAC) {
		refuse(r, o, M_SIBLING_REFUSED_FORM);
		return;
	}
	n -= SIBLING_MESSAGE_MAC;
	if (!mac_is(r->mac, p, n, p + n)) {
		refuse(r, o, M_SIBLING_REFUSED_MAC);
		return;
	}
	if (!sibling_message_read(p, n, &m)) {
		refuse(r, o, M_SIBLING_REFUSED_FORM);
		return;
	}
	o->said.own = m.sender == r->head.sender;
	if (o->said.own != 0) {
		hear(o, now_ms);
		return;
	}
	if (m.sent_us + old_us < wall_us || m.sent_us > wall_us + old_us) {
		refuse(r, o, M_SIBLING_REFUSED_OLD);
		return;
	}
	if (comes_twice(r, o, &m) || !is_new(r, o, &m, now_ms)) {
		refuse(r, o, M_SIBLING_REFUSED_SEEN);
		return;
	}
	o->sender = m.sender;
	hear(o, now_ms);
	o->said.messages++;
	o->said.lag_us = m.sent_us < wall_us ? wall_us - m.sent_us : 0;
	take_loads(r, o, &m, now_ms);
	take_notes(r, o, &m);
}

/* Returns false if there is no message.  No router sends several parts. */
static bool
take_one(struct siblings *r, struct other *o)
{
	zmq_msg_t msg;
	bool got, whole = true;
	int more = 0;

	(void)zmq_msg_init(&msg);
	got = zmq_msg_recv(&msg, o->zmq, ZMQ_DONTWAIT) != -1;
	r->left -= (int64_t)(got ? zmq_msg_size(&msg) + MESSAGE_BYTES : 0);
	if (got && !zmq_msg_more(&msg)) {
		take_message(r, o, zmq_msg_data(&msg), zmq_msg_size(&msg));
	} else if (got) {
		for (more = 1; more != 0 && whole; more = zmq_msg_more(&msg))
			whole = zmq_msg_recv(&msg, o->zmq, ZMQ_DONTWAIT) != -1;
		refuse(r, o, M_SIBLING_REFUSED_FORM);
	}
	(void)zmq_msg_close(&msg);
	return got;
}

/* True: there may be more. */
static bool
hear_all(struct siblings *r)
{
	bool any = false;

	r->left = TURN_BYTES;
	for (uint32_t i = 0; i < r->nothers && r->left > 0; i++) {
		struct other *o = &r->others[r->first_other];
		bool got = false, more = o->zmq != NULL;

		r->first_other = (r->first_other + 1) % r->nothers;
		while (more && r->left > 0) {
			more = take_one(r, o);
			got = got || more;
		}
		if (got)
			sibling_put(r->seg, (uint32_t)(o - r->others), &o->said);
		any = any || (more && r->left <= 0);
	}
	return any;
}

static void
look_at_silent(struct siblings *r, struct other *o, uint64_t now_ms)
{
	if (o->said.silent == 0 && now_ms > o->said.at_ms + SILENT_MS) {
		o->said.silent = 1;
		if (o->said.own == 0)
			log_warn("another router is silent", LOG_S("address", o->address),
				LOG_U("refused", o->said.refused));
	}
	if (now_ms >= o->renew_ms) {
		await(o, now_ms, 2 * o->silent_ms);
		connect_other(r, o);
	}
}

/* Every AGAIN_MS: words of loads that stay grow old otherwise, and those of a router that is gone must end. */
static void
refresh(struct siblings *r, uint64_t now_ms)
{
	int64_t connected = 0, silent = 0;

	for (uint32_t i = 0; i < r->nothers; i++) {
		struct other *o = &r->others[i];

		look_at_silent(r, o, now_ms);
		sibling_put(r->seg, i, &o->said);
		if (o->said.own != 0)
			continue;
		connected += o->said.silent == 0;
		silent += o->said.silent != 0;
	}
	r->slab->gauges[G_SIBLINGS_CONNECTED] = connected;
	r->slab->gauges[G_SIBLINGS_SILENT] = silent;
	for (uint32_t i = 0; r->nothers > 0 && i < r->nengines; i++)
		add_up(r, r->engines[i].ep, now_ms);
}

bool
siblings_take(struct siblings *r)
{
	const uint64_t now_ms = clock_ms();
	const bool more = hear_all(r);

	if (now_ms < r->send_ms)
		return more;
	if (now_ms >= r->engines_ms) {
		r->engines_ms = now_ms + ENGINES_MS;
		read_engines(r);
	}
	if (now_ms >= r->again_ms)
		refresh(r, now_ms);
	tell(r, now_ms);
	r->send_ms = now_ms + SIBLINGS_TURN_MS;
	return more;
}
