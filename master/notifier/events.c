/*
 * Each subscription has a SUB socket, whose descriptor is in one epoll set: thousands of engines cost nothing while they
 * are silent.  A ZMQ_FD says that something may have changed, and not that a message waits.  So a socket is read until
 * EAGAIN, or the subscription is `hot` and is read again in the next turn.
 *
 * libzmq gives a connection up for ever when its peer breaks the protocol, be it by one message that is too long.  So the
 * socket of a publisher that has been silent for a while is made anew: an idle engine, too, is silent, so the while doubles.
 *
 * A replay has a DEALER socket of its own, from the request to the last message that is missing.  A publisher sends all
 * that it has kept from the number on that it is asked for, and an empty message with the number KV_EVENTS_END.
 */
#include "master/notifier/events.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <zmq.h>

#include "master/notifier/chains.h"
#include "proto/wire/kv_events.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/seg.h"
#include "shm/kv_events.h"
#include "shm/metrics.h"
#include "shm/prefix.h"

/* A batch is what one step of the engine's scheduler has stored and removed: 64 KiB for 8192 tokens. */
#define MAX_MESSAGE (1 << 20)
/*
 * Messages that libzmq reads ahead of each publisher.  What it does not read waits in the sockets' buffers, and then at the
 * publisher: few lose nothing.
 */
#define QUEUED 4
#define BYTES_MAX                                                                                  \
	(UINT64_C(1) << 30)  /* of all: 256 publishers that fill it with the longest messages */
#define REPLAYS 256          /* at once */
#define BATCH 64             /* messages of one socket before the others have their turn */
#define READY 64             /* sockets in one turn */
#define TURN_BYTES (1 << 20) /* of all sockets in one turn: notices wait meanwhile */
#define MESSAGE_BYTES 512    /* what a message costs at least, in the same measure */
#define FRAMES 3             /* topic, number, batch; of a replay: empty, number, batch */
#define SOURCES_MS 500
#define REPLAY_MS 5000     /* the publisher answers between two batches, within 100 ms */
#define REPLAY_EACH_MS 200 /* between two of a rank: libzmq takes its time to end a socket */
#define GAP_MAX (1 << 20)  /* messages: a wider gap counts as this one */
#define UNFOLLOW_MS 60000  /* after so long a silence the router's own estimates count again */
#define SILENT_MS 3000
#define SILENT_MAX_MS 300000
#define RECONNECT_MS 100
#define RECONNECT_MAX_MS 5000
#define KEEPALIVE_S 30 /* silence after which the peer's host is asked */

struct rank {
	bool known;                  /* a message has come */
	uint64_t next;               /* number of the next message */
	void *replay;                /* NULL: none is under way */
	uint64_t from, to, until_ms; /* what it is to bring, and when it is given up */
	uint64_t next_ms;            /* there is none before */
};

struct sub {
	uint64_t seq; /* of the source */
	struct kv_source source;
	void *zmq; /* NULL: no subscription */
	bool hot;
	/* when the socket is made anew unless a message comes; the time from the last one until then */
	uint64_t renew_ms, silent_ms;
	uint32_t block_tokens; /* of the last block that was stored; an event of removal has none */
	struct kv_counts counts;
	/* tokens in its cache, of which all events have come since the cache was empty; else they are not known */
	uint64_t held;
	bool held_known, followed;
	struct rank *ranks; /* [source.ranks] */
	/* its blocks: life of the cache; some are known; all that has come since the cache was empty came in order */
	uint64_t life;
	bool chained, in_order;
};

struct events {
	struct seg *seg;
	struct metrics_slab *slab;
	struct chains *chains; /* NULL: there is no prefix index */
	void *ctx;
	void *first; /* a socket without a peer: with the first socket libzmq begins its threads, before the sandbox */
	int epoll;
	uint32_t nhot, nreplays;
	uint32_t first_hot, first_replay; /* whose turn it is among them */
	int64_t left;                     /* of TURN_BYTES */
	uint64_t sources_ms;
	struct sub subs[]; /* [max_endpoints] */
};

/* What is told of a descriptor: whose subscription it is, or that it is a replay's. */
#define WAKES UINT64_MAX

uint32_t
events_sockets(uint32_t max_endpoints)
{
	return 2 * max_endpoints + 2 * REPLAYS; /* one that is closed stays for a moment */
}

uint64_t
events_fds(uint32_t max_endpoints, uint32_t ranks)
{
	/* an eventfd of each socket, and a connection of each rank.  One that is closed stays for a moment. */
	const uint64_t subs = (uint64_t)max_endpoints * (1 + ranks), replays = 2 * REPLAYS;

	return ranks > 0 ? 2 * (subs + replays) : 0;
}

uint64_t
events_bytes(uint32_t max_endpoints, uint32_t ranks)
{
	const uint64_t bytes = (uint64_t)max_endpoints * ranks * QUEUED * MAX_MESSAGE;

	return bytes < BYTES_MAX ? bytes : BYTES_MAX;
}

struct events *
events_new(struct seg *seg, struct metrics_slab *slab, void *ctx)
{
	struct events *e = mem_zero(sizeof(*e) + seg->hdr->max_endpoints * sizeof(e->subs[0]));

	e->seg = seg;
	e->slab = slab;
	e->ctx = ctx;
	e->chains = chains_new(seg);
	e->epoll = epoll_create1(EPOLL_CLOEXEC);
	e->first = zmq_socket(ctx, ZMQ_SUB);
	if (e->epoll == -1 || e->first == NULL)
		events_free(&e);
	return e;
}

int
events_fd(const struct events *e)
{
	return e->epoll;
}

static void
set_int(void *zmq, int option, int value)
{
	(void)zmq_setsockopt(zmq, option, &value, sizeof(value));
}

static int
fd_of(void *zmq)
{
	int fd = -1;
	size_t len = sizeof(fd);

	return zmq_getsockopt(zmq, ZMQ_FD, &fd, &len) == 0 ? fd : -1;
}

static void
close_socket(struct events *e, void **zmq)
{
	if (*zmq == NULL)
		return;
	(void)epoll_ctl(e->epoll, EPOLL_CTL_DEL, fd_of(*zmq), NULL);
	(void)zmq_close(*zmq);
	*zmq = NULL;
}

/* NULL: for want of descriptors; the master's limits are above what the configuration needs. */
static void *
open_socket(struct events *e, int type, const char *address, uint64_t what)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = what};
	int64_t max = MAX_MESSAGE;
	void *zmq = zmq_socket(e->ctx, type);

	if (zmq == NULL)
		return NULL;
	set_int(zmq, ZMQ_RCVHWM, QUEUED);
	set_int(zmq, ZMQ_LINGER, 0);
	set_int(zmq, ZMQ_IPV6, strchr(address, '[') != NULL);
	set_int(zmq, ZMQ_RECONNECT_IVL, RECONNECT_MS);
	set_int(zmq, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
	set_int(zmq, ZMQ_TCP_KEEPALIVE, 1);
	set_int(zmq, ZMQ_TCP_KEEPALIVE_IDLE, KEEPALIVE_S);
	set_int(zmq, ZMQ_TCP_KEEPALIVE_INTVL, KEEPALIVE_S / 3);
	(void)zmq_setsockopt(zmq, ZMQ_MAXMSGSIZE, &max, sizeof(max));
	if (type == ZMQ_SUB)
		(void)zmq_setsockopt(zmq, ZMQ_SUBSCRIBE, "", 0); /* whatever the topic */
	if (epoll_ctl(e->epoll, EPOLL_CTL_ADD, fd_of(zmq), &ev) == 0)
		return zmq;
	(void)zmq_close(zmq);
	return NULL;
}

/* The address of a rank: the ports follow each other (vLLM's offset_endpoint_port()). */
static int
connect_rank(void *zmq, const char *address, uint32_t rank)
{
	const char *colon = strrchr(address, ':');
	char text[KV_SOURCE_ADDRESS + 12];

	(void)snprintf(text, sizeof(text), "%.*s:%lu", (int)(colon - address), address,
		strtoul(colon + 1, NULL, 10) + rank);
	return zmq_connect(zmq, text);
}

/* --- subscriptions -------------------------------------------------------------------------- */

static void
set_hot(struct events *e, struct sub *s, bool hot)
{
	e->nhot += hot;
	e->nhot -= s->hot;
	s->hot = hot;
}

/* Numbers are the publisher's, so a gap may be as wide as it likes. */
static void
miss(struct events *e, struct sub *s, uint64_t n)
{
	const uint64_t counted = n < GAP_MAX ? n : GAP_MAX;

	if (n == 0)
		return;
	s->held_known = false;
	s->counts.missed += counted;
	metric_add(e->slab, M_KV_EVENTS_MISSED, counted);
}

static void
end_replay(struct events *e, struct sub *s, struct rank *r)
{
	if (r->replay == NULL)
		return;
	close_socket(e, &r->replay);
	e->nreplays--;
	miss(e, s, r->to - r->from);
}

static void
disconnect(struct events *e, struct sub *s)
{
	set_hot(e, s, false);
	close_socket(e, &s->zmq);
}

static void
unfollow(struct events *e, uint32_t ep)
{
	if (e->subs[ep].followed)
		prefix_unfollow(e->seg, ep);
	e->subs[ep].followed = false;
}

static void
unsubscribe(struct events *e, uint32_t ep)
{
	struct sub *s = &e->subs[ep];

	if (s->ranks == NULL)
		return;
	for (uint32_t i = 0; i < s->source.ranks; i++)
		end_replay(e, s, &s->ranks[i]);
	disconnect(e, s);
	s->held_known = false;
	unfollow(e, ep);
	free(s->ranks);
	s->ranks = NULL;
	log_info("subscription to KV events ended", LOG_S("address", s->source.events));
}

static void
await(struct sub *s, uint64_t now_ms, uint64_t silent_ms)
{
	s->silent_ms = silent_ms < SILENT_MAX_MS ? silent_ms : SILENT_MAX_MS;
	s->renew_ms = now_ms + s->silent_ms;
}

static void
connect_all(struct events *e, uint32_t ep)
{
	struct sub *s = &e->subs[ep];

	s->zmq = open_socket(e, ZMQ_SUB, s->source.events, ep);
	if (s->zmq == NULL) {
		log_error("no subscription to KV events", LOG_S("address", s->source.events),
			LOG_S("error", zmq_strerror(errno)));
		return;
	}
	for (uint32_t i = 0; i < s->source.ranks; i++)
		if (connect_rank(s->zmq, s->source.events, i) != 0)
			log_error("no subscription to KV events",
				LOG_S("address", s->source.events), LOG_U("rank", i),
				LOG_S("error", zmq_strerror(errno)));
	set_hot(e, s, true); /* the descriptor tells of changes alone */
}

/* Of the blocks of the engine's cache none is known; `empty`: it has none. */
static void
begin_chains(struct events *e, struct sub *s, bool empty)
{
	if (e->chains != NULL)
		s->life = chains_life(e->chains);
	s->chained = false;
	s->in_order = empty;
}

static void
subscribe(struct events *e, uint32_t ep)
{
	struct sub *s = &e->subs[ep];

	s->ranks = mem_array(s->source.ranks, sizeof(*s->ranks));
	begin_chains(e, s, false);
	/* perhaps: by a predecessor that was killed, and what it said of blocks has ended with it */
	s->followed = true;
	prefix_follow_blocks(e->seg, ep, 0, false);
	await(s, clock_ms(), SILENT_MS);
	connect_all(e, ep);
	log_info("subscribed to KV events", LOG_S("address", s->source.events),
		LOG_S("replay", s->source.replay));
}

/* Whether only what digests depend on has changed: a model was learned, or the pool has grown. */
static bool
same_publisher(const struct kv_source *a, const struct kv_source *b)
{
	return memcmp(a, b, offsetof(struct kv_source, root)) == 0;
}

/* In another life of the slot it is another endpoint, whose counts begin at 0. */
static void
follow_source(struct events *e, uint32_t ep)
{
	struct sub *s = &e->subs[ep];
	struct kv_source source;

	if (!kv_source_get(e->seg, ep, &s->seq, &source))
		return;
	if (s->ranks != NULL && same_publisher(&source, &s->source)) {
		s->source = source;
		return;
	}
	unsubscribe(e, ep);
	s->source = source;
	if (source.ranks == 0)
		return;
	if (s->counts.tag != source.tag &&
		!kv_counts_get(e->seg, ep, &s->counts)) /* a predecessor's */
		s->counts = (struct kv_counts){.tag = source.tag};
	kv_counts_put(e->seg, ep, &s->counts);
	subscribe(e, ep);
}

/* A publisher that says nothing.  The numbers stay: what comes meanwhile is a gap. */
static void
look_at_silent(struct events *e, uint32_t ep, uint64_t now_ms)
{
	struct sub *s = &e->subs[ep];

	if (s->ranks == NULL)
		return;
	if (now_ms > s->counts.at_ms + UNFOLLOW_MS && s->followed) {
		unfollow(e, ep);
		if (s->chained) /* prompts are cut as before */
			prefix_follow_blocks(e->seg, ep, s->block_tokens, false);
	}
	if (now_ms < s->renew_ms)
		return;
	await(s, now_ms, 2 * s->silent_ms);
	disconnect(e, s);
	connect_all(e, ep);
}

void
events_free(struct events **pe)
{
	struct events *e = *pe;

	if (e == NULL)
		return;
	for (uint32_t i = 0; i < e->seg->hdr->max_endpoints; i++)
		unsubscribe(e, i);
	if (e->first != NULL)
		(void)zmq_close(e->first);
	if (e->epoll != -1)
		(void)close(e->epoll);
	chains_free(&e->chains);
	free(e);
	*pe = NULL;
}

/* --- messages ------------------------------------------------------------------------------- */

/* What one message amounts to. */
struct sum {
	uint32_t block_tokens;
	uint64_t stored, removed, cleared, events, bad;
	uint64_t put, taken; /* stored and removed since the cache was last cleared */
};

static void
add_event(const struct kv_event *event, void *arg)
{
	struct sum *sum = arg;
	uint64_t tokens;

	sum->events++;
	switch (event->kind) {
	case KV_EVENT_STORED:
		if (event->counts)
			sum->block_tokens = event->block_tokens;
		tokens = event->counts ? event->blocks * event->block_tokens : 0;
		sum->stored += tokens;
		sum->put += tokens;
		break;
	case KV_EVENT_REMOVED:
		tokens = event->counts ? event->blocks * sum->block_tokens : 0;
		sum->removed += tokens;
		sum->taken += tokens;
		break;
	case KV_EVENT_CLEARED:
		sum->cleared++;
		sum->put = sum->taken = 0;
		break;
	case KV_EVENT_OTHER:
		break;
	case KV_EVENT_BAD:
		sum->bad++;
		break;
	}
}

static void
bad(struct events *e, struct sub *s, uint64_t n)
{
	s->held_known = false;
	s->counts.bad += n;
	metric_add(e->slab, M_KV_EVENTS_BAD, n);
}

/* All of its entries in the prefix index are void.  Of several ranks each has a cache of its own. */
static void
clear(struct events *e, uint32_t ep, uint64_t times)
{
	struct sub *s = &e->subs[ep];

	s->counts.cleared += times;
	s->held = 0;
	s->held_known = s->source.ranks == 1;
	begin_chains(e, s, true);
	prefix_void(e->seg, ep);
}

/* The words of a message's blocks are stored after all the rest: what was cleared before is void by then. */
struct chaining {
	struct events *e;
	struct sub *s;
	struct chains_engine engine;
	uint64_t before; /* so many times all blocks are cleared yet */
};

static void
chain_event(const struct kv_event *event, void *arg)
{
	struct chaining *c = arg;

	if (event->kind == KV_EVENT_CLEARED)
		c->before--;
	else if (c->before == 0)
		c->s->chained |= chains_take(c->e->chains, &c->engine, event);
}

/* Of several ranks each has a cache of its own, and the index one word for all. */
static void
chain(struct events *e, uint32_t ep, const struct sum *sum, zmq_msg_t *msg)
{
	struct sub *s = &e->subs[ep];
	struct chaining c = {.e = e,
		.s = s,
		.engine = {.life = s->life,
			.ep = ep,
			.row = (uint32_t)s->source.row,
			.root = s->source.root,
			.block = s->block_tokens},
		.before = sum->cleared};
	struct kv_batch batch;

	if (e->chains == NULL || s->source.ranks != 1 || s->source.row == 0)
		return;
	(void)kv_events_read(zmq_msg_data(msg), zmq_msg_size(msg), &batch, chain_event, &c);
	if (c.engine.stale)
		s->in_order = false;
	if (s->chained)
		prefix_follow_blocks(e->seg, ep, s->block_tokens, s->in_order && s->held_known);
}

static void
apply(struct events *e, uint32_t ep, const struct sum *sum, zmq_msg_t *msg)
{
	struct sub *s = &e->subs[ep];

	s->block_tokens = sum->block_tokens;
	s->counts.stored += sum->stored;
	s->counts.removed += sum->removed;
	s->counts.messages++;
	s->counts.events += sum->events;
	metric_add(e->slab, M_KV_EVENTS, sum->events);
	if (sum->cleared > 0)
		clear(e, ep, sum->cleared);
	if (sum->bad > 0)
		bad(e, s, sum->bad);
	s->held = s->held + sum->put > sum->taken ? s->held + sum->put - sum->taken : 0;
	s->followed = true;
	prefix_follow(e->seg, ep, sum->stored, s->held_known ? s->held : PREFIX_HELD_UNKNOWN);
	chain(e, ep, sum, msg);
}

/* How old a message is by the publisher's clock; 0 if that is ahead, or says nothing. */
static uint64_t
age_us(double at_s)
{
	const double now_s = (double)clock_wall_us() / 1e6;

	return at_s > 0 && at_s < now_s ? (uint64_t)((now_s - at_s) * 1e6) : 0;
}

/* The parts of one message; 0: none waits.  A message of more parts has 1 more than fit. */
static unsigned
receive(struct events *e, void *zmq, zmq_msg_t part[FRAMES])
{
	unsigned n = 0;
	zmq_msg_t rest;
	bool more = true;

	(void)zmq_msg_init(&rest);
	while (more) {
		zmq_msg_t *to = n < FRAMES ? &part[n] : &rest;

		if (zmq_msg_recv(to, zmq, ZMQ_DONTWAIT) == -1)
			break;
		more = zmq_msg_more(to);
		e->left -= (int64_t)zmq_msg_size(to);
		n = n < FRAMES ? n + 1 : FRAMES + 1;
	}
	(void)zmq_msg_close(&rest);
	e->left -= MESSAGE_BYTES;
	return n;
}

/* Asks for the messages from..to-1 of a rank.  False: it cannot, or another replay is under way or has just ended. */
static bool
ask_replay(struct events *e, uint32_t ep, uint32_t rank, uint64_t from, uint64_t to)
{
	struct sub *s = &e->subs[ep];
	struct rank *r = &s->ranks[rank];
	const uint64_t now_ms = clock_ms();
	uint8_t number[8];

	if (s->source.replay[0] == '\0' || r->replay != NULL || now_ms < r->next_ms ||
		e->nreplays == REPLAYS)
		return false;
	r->next_ms = now_ms + REPLAY_EACH_MS;
	r->replay = open_socket(e, ZMQ_DEALER, s->source.replay, WAKES);
	if (r->replay == NULL)
		return false;
	e->nreplays++;
	for (unsigned i = 0; i < sizeof(number); i++)
		number[i] = (uint8_t)(from >> 8 * (7 - i));
	r->from = from;
	r->to = to;
	r->until_ms = now_ms + REPLAY_MS;
	/* the empty part stands for the envelope of a REQ socket, which the publisher expects */
	if (connect_rank(r->replay, s->source.replay, rank) != 0 ||
		zmq_send(r->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) == -1 ||
		zmq_send(r->replay, number, sizeof(number), ZMQ_DONTWAIT) == -1)
		end_replay(e, s, r); /* and counts them as missed */
	return true;
}

/* A message with this number has come: what is missing before it is asked for, or missed. */
static void
follow_number(struct events *e, uint32_t ep, uint32_t rank, uint64_t n)
{
	struct sub *s = &e->subs[ep];
	struct rank *r = &s->ranks[rank];

	if (r->known && n < r->next) { /* the engine has begun again, with an empty cache */
		end_replay(e, s, r);
		clear(e, ep, 1);
		r->next = 0;
	}
	if (!r->known && n == 0) { /* all of its life will be seen */
		s->held = 0;
		s->held_known = s->source.ranks == 1;
		s->in_order = true;
	}
	if (r->known && n > r->next)
		s->in_order = false; /* even if it is sent again */
	if (r->known && n > r->next && !ask_replay(e, ep, rank, r->next, n))
		miss(e, s, n - r->next);
	r->known = true;
	r->next = n + 1;
}

/* Ranks are numbered over all hosts, and an endpoint may be of some of them: of rank 3 alone, or of ranks 8 to 15. */
static bool
read_batch(struct events *e, struct sub *s, zmq_msg_t *msg, struct kv_batch *batch, struct sum *sum)
{
	*sum = (struct sum){.block_tokens = s->block_tokens};
	if (!kv_events_read(zmq_msg_data(msg), zmq_msg_size(msg), batch, add_event, sum)) {
		bad(e, s, 1);
		return false;
	}
	batch->rank %= s->source.ranks;
	return true;
}

static void
take_live(struct events *e, uint32_t ep, zmq_msg_t part[FRAMES], unsigned n, double *ret_at_s)
{
	struct sub *s = &e->subs[ep];
	struct kv_batch batch;
	struct sum sum;
	uint64_t number;

	if (n != FRAMES ||
		!kv_events_number(zmq_msg_data(&part[1]), zmq_msg_size(&part[1]), &number) ||
		number == KV_EVENTS_END) {
		bad(e, s, 1);
		return;
	}
	if (!read_batch(e, s, &part[2], &batch, &sum))
		return;
	follow_number(e, ep, batch.rank, number);
	apply(e, ep, &sum, &part[2]);
	*ret_at_s = batch.at_s;
}

/* False: it was the last one of the replay. */
static bool
take_replayed(struct events *e, uint32_t ep, uint32_t rank, zmq_msg_t part[FRAMES], unsigned n)
{
	struct sub *s = &e->subs[ep];
	struct rank *r = &s->ranks[rank];
	struct kv_batch batch;
	struct sum sum;
	uint64_t number;

	if (n != FRAMES ||
		!kv_events_number(zmq_msg_data(&part[1]), zmq_msg_size(&part[1]), &number)) {
		bad(e, s, 1);
		return false;
	}
	if (number >= r->to) /* the end, or what has come live */
		return false;
	if (number < r->from)
		return true;
	miss(e, s, number - r->from);
	r->from = number + 1;
	if (read_batch(e, s, &part[2], &batch, &sum)) {
		apply(e, ep, &sum, &part[2]);
		/* what came live has come before, also if this has cleared the cache */
		s->in_order = false;
		if (s->chained)
			prefix_follow_blocks(e->seg, ep, s->block_tokens, false);
		s->counts.replayed++;
		metric_add(e->slab, M_KV_EVENTS_REPLAYED, 1);
	}
	return r->from < r->to;
}

/* --- turns ---------------------------------------------------------------------------------- */

static void
begin(zmq_msg_t part[FRAMES])
{
	for (unsigned i = 0; i < FRAMES; i++)
		(void)zmq_msg_init(&part[i]);
}

static void
end(zmq_msg_t part[FRAMES])
{
	for (unsigned i = 0; i < FRAMES; i++)
		(void)zmq_msg_close(&part[i]);
}

static void
read_live(struct events *e, uint32_t ep)
{
	struct sub *s = &e->subs[ep];
	zmq_msg_t part[FRAMES];
	unsigned n = 1, taken = 0;
	double at_s = 0;

	if (s->zmq == NULL)
		return;
	begin(part);
	for (int i = 0; i < BATCH && n > 0 && e->left > 0; i++) {
		n = receive(e, s->zmq, part);
		if (n > 0)
			take_live(e, ep, part, n, &at_s);
		taken += n > 0;
	}
	end(part);
	set_hot(e, s, n > 0);
	if (taken == 0)
		return;
	s->counts.at_ms = clock_ms();
	s->counts.lag_us = age_us(at_s);
	await(s, s->counts.at_ms, SILENT_MS);
	kv_counts_put(e->seg, ep, &s->counts);
}

/* One publisher that fills every turn does not shut out the others: they have their turn among the hot ones. */
static void
read_ready(struct events *e, uint32_t ep)
{
	if (e->left > 0)
		read_live(e, ep);
	else if (e->subs[ep].zmq != NULL)
		set_hot(e, &e->subs[ep], true);
}

static void
read_replay(struct events *e, uint32_t ep, uint32_t rank)
{
	struct sub *s = &e->subs[ep];
	zmq_msg_t part[FRAMES];
	bool more = true;

	begin(part);
	while (more && s->ranks[rank].replay != NULL && e->left > 0) {
		const unsigned n = receive(e, s->ranks[rank].replay, part);

		more = n > 0;
		if (more && !take_replayed(e, ep, rank, part, n))
			end_replay(e, s, &s->ranks[rank]);
	}
	end(part);
	kv_counts_put(e->seg, ep, &s->counts);
}

static void
give_replays_up(struct events *e, uint64_t now_ms)
{
	for (uint32_t ep = 0; e->nreplays > 0 && ep < e->seg->hdr->max_endpoints; ep++) {
		struct sub *s = &e->subs[ep];

		for (uint32_t i = 0; s->ranks != NULL && i < s->source.ranks; i++)
			if (s->ranks[i].replay != NULL && now_ms >= s->ranks[i].until_ms) {
				end_replay(e, s, &s->ranks[i]);
				kv_counts_put(e->seg, ep, &s->counts);
			}
	}
}

static void
read_hot(struct events *e)
{
	const uint32_t n = e->seg->hdr->max_endpoints;

	for (uint32_t i = 0; e->nhot > 0 && e->left > 0 && i < n; i++) {
		const uint32_t ep = e->first_hot;

		e->first_hot = (ep + 1) % n;
		if (e->subs[ep].hot)
			read_live(e, ep);
	}
}

static void
read_replays(struct events *e)
{
	const uint32_t n = e->seg->hdr->max_endpoints;

	for (uint32_t k = 0; e->nreplays > 0 && e->left > 0 && k < n; k++) {
		const uint32_t ep = e->first_replay;
		struct sub *s = &e->subs[ep];

		e->first_replay = (ep + 1) % n;
		for (uint32_t i = 0; s->ranks != NULL && i < s->source.ranks; i++)
			if (s->ranks[i].replay != NULL)
				read_replay(e, ep, i);
	}
}

bool
events_take(struct events *e)
{
	const uint64_t now_ms = clock_ms();
	struct epoll_event ready[READY];
	int n;

	if (now_ms >= e->sources_ms) {
		e->sources_ms = now_ms + SOURCES_MS;
		for (uint32_t ep = 0; ep < e->seg->hdr->max_endpoints; ep++) {
			follow_source(e, ep);
			look_at_silent(e, ep, now_ms);
		}
		give_replays_up(e, now_ms);
	}
	/* neither a flood of live messages nor one of replayed ones takes all of the turn */
	e->left = TURN_BYTES / 2;
	read_replays(e);
	e->left += TURN_BYTES / 2;
	read_hot(e);
	n = epoll_wait(e->epoll, ready, READY, 0);
	for (int i = 0; i < n; i++)
		if (ready[i].data.u64 != WAKES)
			read_ready(e, (uint32_t)ready[i].data.u64);
	return e->nhot > 0 || n == READY || e->left <= 0;
}
