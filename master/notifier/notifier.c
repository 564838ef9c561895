#include "master/notifier/notifier.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "master/notifier/chains.h"
#include "master/notifier/events.h"
#include "master/notifier/pass.h"
#include "master/notifier/peers.h"
#include "master/notifier/siblings.h"
#include "proto/wire/notif.h"
#include "proto/wire/registration.h"
#include "shm/announce.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/base/net.h"
#include "shm/flags.h"
#include "shm/core/heritage.h"
#include "shm/metrics.h"
#include "shm/settings.h"
#include "shm/usage.h"
#include "shm/core/seg.h"

#define HEARTBEAT_MS 500
#define BATCH 256        /* messages between two heartbeats and two reads of the channel */
#define MAX_MESSAGE 4096 /* a notice is under 300 bytes; libzmq cuts a peer off that sends more */
/* messages libzmq reads ahead per engine: with MAX_MESSAGE at most 1 MiB each */
#define QUEUED 256
/* one per rank: 128 engines of 8 GPUs.  With QUEUED: at most 1 GiB, if they send no parts */
#define CONNECTIONS 1024
#define QUEUED_BYTES ((rlim_t)CONNECTIONS * QUEUED * MAX_MESSAGE)
#define OWN_FDS 64 /* of libzmq and the heritage, without the eventfds */
#define NSOCKETS 2
/* to poll: also the channel, an older instance's notices, connections of peers, KV events */
#define NITEMS (NSOCKETS + PEERS_N + 3 + SIBLINGS_ITEMS)
#define REFUSAL_LINES_MS 60000
#define LAST_BATCHES 64 /* read before the exit, to deliver messages that have arrived */
#define CLOSE_MS 500    /* time for engines to close their connections at the exit */

struct notifier {
	const struct heritage *h;
	struct metrics_slab *slab;
	struct usage usage;
	void *ctx;
	struct socket {
		void *zmq; /* NULL: not configured */
		void (*take)(struct notifier *, zmq_msg_t *msg);
	} sockets[NSOCKETS];
	struct peers peers;
	struct events *events;           /* NULL: engines are not asked for KV events */
	struct siblings *siblings;       /* NULL: there is no siblings.listen */
	struct net_announced *announced; /* which engines may be, and by whom */
	size_t nannounced;
	struct conf_live live; /* in force; of these the log's level and format count */
	uint64_t live_seq;
	uint64_t next_refusal_ms; /* no line about a refused announcement before that */
	int notices_from;         /* as in the heritage; 0 at the end of what it leads to */
	struct pass *pass;        /* to older instances */
	bool *woken;              /* [process slots]: eventfds to write after this batch */
};

static void
wake(const struct notifier *n, uint32_t slot)
{
	uint64_t one = 1;

	/* EAGAIN: the counter is full, so the worker has been woken more than enough */
	(void)!write(n->h->wake_fds[slot], &one, sizeof(one));
}

static void
wake_all(const struct notifier *n)
{
	for (uint32_t i = 0; i < SLOT_WORKERS(n->h->seg); i++)
		wake(n, i);
}

/* One write per worker and batch.  flag_notify() has set the ready bits before, so no bit is missed. */
static void
wake_batch(struct notifier *n)
{
	for (uint32_t i = 0; i < n->h->seg->hdr->nslots; i++) {
		if (n->woken[i])
			wake(n, i);
		n->woken[i] = false;
	}
}

/* Whether the id is of a request of an older instance, which gets the notice. */
static bool
pass_on(const struct notifier *n, const char *id)
{
	uint32_t instance;

	if (!flag_id_instance(id, strlen(id), &instance) || instance == n->h->seg->hdr->instance ||
		!pass_add(n->pass, instance, id))
		return false;
	metric_add(n->slab, M_NOTICES_PASSED, 1);
	return true;
}

/* An id that does not parse, or names an unknown flag, is counted and dropped. */
static void
take_id(void *arg, const char *id)
{
	struct notifier *n = arg;
	struct flag_ref ref;

	if (pass_on(n, id))
		return;
	if (!flag_id_parse(n->h->seg, id, strlen(id), &ref)) {
		metric_add(n->slab, M_NOTICES_BAD, 1);
		return;
	}
	switch (flag_notify(n->h->seg, &ref)) {
	case FLAG_READY_NOW:
		n->woken[ref.worker] = true;
		metric_add(n->slab, M_NOTICES, 1);
		break;
	case FLAG_COUNTED:
		metric_add(n->slab, M_NOTICES, 1);
		break;
	case FLAG_STALE:
		metric_add(n->slab, M_NOTICES_STALE, 1);
		break;
	case FLAG_WRONG_NONCE:
		metric_add(n->slab, M_NOTICES_BAD, 1);
		break;
	}
}

static void
take_notice(struct notifier *n, zmq_msg_t *msg)
{
	struct notif notice;

	if (!peers_may_notify(&n->peers, zmq_msg_gets(msg, "Peer-Address")))
		return;
	if (notif_read(zmq_msg_data(msg), zmq_msg_size(msg), &notice) == 0)
		take_id(n, notice.req_id);
	else
		metric_add(n->slab, M_NOTICES_BAD, 1);
}

static bool
may_announce(const struct notifier *n, const char *from, const struct registration *r)
{
	const struct peer_ip peer = peer_ip_of(from);

	for (size_t i = 0; peer.family != 0 && i < n->nannounced; i++)
		if (net_announced_allows(&n->announced[i], peer.family, peer.ip, r->family, r->ip))
			return true;
	return false;
}

/* At most one log line per minute, so that a flood of announcements does not flood the log. */
static void
refuse_announcement(struct notifier *n, const char *from, const char *http, const char *why)
{
	uint64_t now = clock_ms();

	metric_add(n->slab, M_ANNOUNCED_REFUSED, 1);
	if (now < n->next_refusal_ms)
		return;
	n->next_refusal_ms = now + REFUSAL_LINES_MS;
	log_warn("announcement refused, further ones are only counted for a minute",
		LOG_S("from", from), LOG_S("http_address", http), LOG_S("reason", why));
}

/* Prompts are sent to that address, so a peer may announce its own alone, unless announce_networks says otherwise. */
static void
take_announcement(struct notifier *n, zmq_msg_t *msg)
{
	const char *from = zmq_msg_gets(msg, "Peer-Address"); /* NULL over ipc:// */
	struct registration r;
	struct announcement a = {.seen_ms = clock_ms()};
	bool full;

	if (registration_read(zmq_msg_data(msg), zmq_msg_size(msg), &r) != 0) {
		refuse_announcement(
			n, from, NULL, "not an announcement, or its addresses are not IP literals");
		return;
	}
	if (!may_announce(n, from, &r)) {
		refuse_announcement(n, from, r.http,
			"no announce_networks lets this peer announce this http_address");
		return;
	}
	a.role = r.role;
	memcpy(a.http, r.http, sizeof(a.http));
	memcpy(a.kv, r.kv, sizeof(a.kv));
	if (announce_put(n->h->seg, &a, n->h->conf->announce_forget_ms, &full))
		n->woken[SLOT_MASTER(n->h->seg)] = true;
	if (full)
		refuse_announcement(n, from, r.http, "there are too many already");
	else
		metric_add(n->slab, M_ANNOUNCED, 1);
}

/* Reads the last part of one message; earlier parts are the envelope of a ROUTER socket.  False if there is
 * no message. */
static bool
take_message(struct notifier *n, const struct socket *s)
{
	zmq_msg_t msg;
	bool got;
	int more = 1;

	(void)zmq_msg_init(&msg);
	do {
		got = zmq_msg_recv(&msg, s->zmq, ZMQ_DONTWAIT) != -1;
		more = got && zmq_msg_more(&msg);
	} while (more);
	if (got)
		s->take(n, &msg);
	(void)zmq_msg_close(&msg);
	return got;
}

/* True if more packets may wait. */
static bool
take_passed(struct notifier *n)
{
	const enum pass_got got =
		n->notices_from != 0 ? pass_receive(n->notices_from, take_id, n) : PASS_NOTHING;

	if (got == PASS_END)
		n->notices_from = 0;
	return got == PASS_PACKET;
}

/* True if more messages may wait.  Reads up to EAGAIN or a full batch: libzmq is edge-triggered. */
static bool
take_batch(struct notifier *n)
{
	bool any = take_passed(n);

	any = peers_take(&n->peers) || any; /* before their messages */
	for (size_t k = 0; k < NSOCKETS; k++) {
		bool more = n->sockets[k].zmq != NULL;

		for (int i = 0; more && i < BATCH; i++)
			more = take_message(n, &n->sockets[k]);
		any = any || more;
	}
	if (n->events != NULL)
		any = events_take(n->events) || any;
	if (n->siblings != NULL)
		any = siblings_take(n->siblings) || any;
	metric_add(n->slab, M_NOTICES_LOST, pass_send(n->pass));
	wake_batch(n);
	return any;
}

/* The master sent drain or quit, or has died.  Each ends this process, which has no long work. */
static bool
told_to_go(const struct notifier *n)
{
	char c;
	ssize_t r = recv(n->h->channel, &c, 1, MSG_DONTWAIT);

	return r == 1 || r == 0 || (errno != EAGAIN && errno != EINTR);
}

/* All that this process waits for; the first is the channel.  Returns how many there are. */
static int
items_fill(const struct notifier *n, zmq_pollitem_t items[NITEMS])
{
	int nitems = 0;

	items[nitems++] = (zmq_pollitem_t){.fd = n->h->channel, .events = ZMQ_POLLIN};
	if (n->notices_from != 0)
		items[nitems++] = (zmq_pollitem_t){.fd = n->notices_from, .events = ZMQ_POLLIN};
	nitems += peers_items(&n->peers, items + nitems);
	if (n->events != NULL)
		items[nitems++] =
			(zmq_pollitem_t){.fd = events_fd(n->events), .events = ZMQ_POLLIN};
	if (n->siblings != NULL)
		nitems += siblings_items(n->siblings, items + nitems);
	for (size_t k = 0; k < NSOCKETS; k++)
		if (n->sockets[k].zmq != NULL)
			items[nitems++] =
				(zmq_pollitem_t){.socket = n->sockets[k].zmq, .events = ZMQ_POLLIN};
	return nitems;
}

static int
loop(struct notifier *n)
{
	const long turn_ms = n->siblings != NULL ? SIBLINGS_TURN_MS : HEARTBEAT_MS;
	zmq_pollitem_t items[NITEMS];
	bool more = false;

	for (;;) {
		const int nitems = items_fill(n, items);

		proc_heartbeat(n->h->seg, n->h->slot, clock_ms());
		usage_report(&n->usage, n->h->seg, n->h->slot, clock_ms(), 0);
		if (settings_get(n->h->seg, &n->live, &n->live_seq))
			log_setup(n->live.log_level, n->live.log_format);
		if (zmq_poll(items, nitems, more ? 0 : turn_ms) == -1 && errno != EINTR) {
			log_error("zmq_poll", LOG_S("error", zmq_strerror(errno)));
			return 1;
		}
		more = take_batch(n);
		if ((items[0].revents & ZMQ_POLLIN) && told_to_go(n))
			return CHILD_EXIT_OK;
	}
}

/* False: errno of libzmq. */
static bool
accept_peers(struct notifier *n, const struct socket *s, int type, const char *address)
{
	const struct conf *c = n->h->conf;

	if (type == ZMQ_ROUTER)
		return peers_accept_announcements(&n->peers, n->ctx, s->zmq) == 0;
	return peers_accept_notices(&n->peers, n->ctx, s->zmq, address, c->lmcache_networks,
		       c->nlmcache_networks) == 0;
}

/* Whether lmcache.networks has all addresses of a family. */
static bool
all_peers_may_notify(const struct conf *c)
{
	for (size_t i = 0; i < c->nlmcache_networks; i++) {
		struct net net;

		if (net_parse(c->lmcache_networks[i], &net) && net.bits == 0)
			return true;
	}
	return false;
}

/* Not of TCP, or of this machine alone. */
static bool
is_local(const char *address)
{
	return strncmp(address, "tcp://", 6) != 0 || strncmp(address, "tcp://127.", 10) == 0 ||
	       strncmp(address, "tcp://[::1]", 11) == 0;
}

/* 0, or an exit code; CHILD_EXIT_NO_RESPAWN for an address that can never work. */
static int
open_socket(struct notifier *n, struct socket *s, int type, const char *address, const char *what)
{
	int queued = QUEUED, linger = 0, on = 1, v6 = strchr(address, '[') != NULL;
	int64_t max = MAX_MESSAGE;
	int err;

	s->zmq = zmq_socket(n->ctx, type);
	if (s->zmq == NULL) {
		log_error("no ZMQ socket", LOG_S("error", zmq_strerror(errno)));
		return 1;
	}
	(void)zmq_setsockopt(s->zmq, ZMQ_RCVHWM, &queued, sizeof(queued));
	(void)zmq_setsockopt(s->zmq, ZMQ_LINGER, &linger, sizeof(linger));
	(void)zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &max, sizeof(max));
	(void)zmq_setsockopt(s->zmq, ZMQ_IPV6, &v6, sizeof(v6));
	(void)zmq_setsockopt(s->zmq, ZMQ_TCP_KEEPALIVE, &on, sizeof(on));
	/* a restarted engine has the same identity, and its old connection may seem alive */
	if (type == ZMQ_ROUTER)
		(void)zmq_setsockopt(s->zmq, ZMQ_ROUTER_HANDOVER, &on, sizeof(on)); /* lint: word */
	if (accept_peers(n, s, type, address) && zmq_bind(s->zmq, address) == 0) {
		log_info(what, LOG_S("address", address));
		return 0;
	}
	err = errno;
	log_error("cannot listen for engines", LOG_S("address", address),
		LOG_S("error", zmq_strerror(err)));
	return err == EINVAL || err == EPROTONOSUPPORT || err == EACCES ? CHILD_EXIT_NO_RESPAWN : 1;
}

static int
open_events(struct notifier *n)
{
	int sockets = zmq_ctx_get(n->ctx, ZMQ_MAX_SOCKETS);

	/* before the first socket, or it is not heeded */
	sockets += (int)events_sockets(n->h->seg->hdr->max_endpoints);
	(void)zmq_ctx_set(n->ctx, ZMQ_MAX_SOCKETS, sockets);
	n->events = events_new(n->h->seg, n->slab, n->ctx);
	if (n->events != NULL)
		return 0;
	log_error("KV events cannot be read", LOG_S("error", zmq_strerror(errno)));
	return 1;
}

/* Other routers are told hints alone: if their address cannot be had, all else goes on without them. */
static int
open_siblings(struct notifier *n)
{
	const struct conf *c = n->h->conf;
	int r = 0;

	n->siblings = siblings_new(n->h->seg, n->slab, c, n->ctx, &r);
	if (r == 0 ||
		(c->lmcache_listen == NULL && c->announce_listen == NULL && c->kv_event_ranks == 0))
		return r;
	log_warn("the notifier goes on without other routers",
		LOG_S("cure", "siblings.listen, then pdctl upgrade"));
	return 0;
}

static int
open_sockets(struct notifier *n)
{
	const struct conf *c = n->h->conf;
	int r = 0;

	n->ctx = zmq_ctx_new(); /* after the fork: an inherited context fails */
	if (n->ctx == NULL) {
		log_error("no ZMQ context", LOG_S("error", zmq_strerror(errno)));
		return 1;
	}
	if (n->h->notices_from != 0)
		return 0; /* a newer instance has the addresses, and the engines' KV events */
	if (c->kv_event_ranks > 0)
		r = open_events(n);
	if (r != 0)
		return r;
	if (c->lmcache_listen != NULL)
		r = open_socket(
			n, &n->sockets[0], ZMQ_PULL, c->lmcache_listen, "listening for notices");
	if (c->lmcache_listen != NULL && all_peers_may_notify(c) && !is_local(c->lmcache_listen))
		log_warn("any peer may send KV notices, and take the connections of engines",
			LOG_S("address", c->lmcache_listen),
			LOG_S("cure", "narrower lmcache.networks"));
	if (r == 0 && c->siblings_key != NULL)
		r = open_siblings(n);
	if (r == 0 && c->announce_listen != NULL)
		r = open_socket(n, &n->sockets[1], ZMQ_ROUTER, c->announce_listen,
			"listening for announcements");
	return r;
}

static void
close_sockets(struct notifier *n)
{
	for (size_t k = 0; k < NSOCKETS; k++)
		if (n->sockets[k].zmq != NULL)
			(void)zmq_close(n->sockets[k].zmq);
	events_free(&n->events);
	siblings_free(&n->siblings);
	peers_end(&n->peers);
	if (n->ctx != NULL)
		(void)zmq_ctx_term(n->ctx);
}

static void
read_networks(struct notifier *n)
{
	const struct conf *c = n->h->conf;

	for (size_t i = 0; i < c->npools; i++)
		for (size_t k = 0; k < c->pools[i].nannounce_networks; k++) {
			n->announced =
				mem_resize(n->announced, n->nannounced + 1, sizeof(*n->announced));
			if (net_announced_parse(
				    c->pools[i].announce_networks[k], &n->announced[n->nannounced]))
				n->nannounced++;
		}
}

/* Lowers a limit that is above `most`. */
static void
bound(int what, rlim_t most)
{
	struct rlimit rl;

	if (getrlimit(what, &rl) == 0 && rl.rlim_cur > most) {
		rl.rlim_cur = most;
		(void)setrlimit(what, &rl);
	}
}

/* Bytes of this process that RLIMIT_DATA counts; 0: not known. */
static rlim_t
data_bytes(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long pages = 0;

	if (f == NULL)
		return 0;
	if (fscanf(f, "%*u %*u %*u %*u %*u %lu", &pages) != 1)
		pages = 0;
	(void)fclose(f);
	return pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

static rlim_t
most_fds(const struct heritage *h)
{
	return CONNECTIONS + OWN_FDS + h->seg->hdr->nslots +
	       events_fds(h->seg->hdr->max_endpoints, h->conf->kv_event_ranks) +
	       siblings_fds(h->conf);
}

/*
 * libzmq accepts connections while descriptors are free, and bounds its memory for each connection only.
 * It also buffers all parts of a message until the last part.  With these limits an endless message ends
 * this process, which the master starts again, and not the machine.
 */
static void
bound_all(const struct heritage *h)
{
	const rlim_t now = data_bytes();

	bound(RLIMIT_NOFILE, most_fds(h));
	if (now > 0)
		bound(RLIMIT_DATA,
			now + QUEUED_BYTES + chains_bytes(h->seg) +
				events_bytes(h->seg->hdr->max_endpoints, h->conf->kv_event_ranks) +
				siblings_bytes(h->conf));
}

/* Descriptors of this process are below this number. */
static size_t
fds_bound(const struct heritage *h)
{
	struct rlimit rl;

	return getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < most_fds(h) ? rl.rlim_cur
									       : most_fds(h);
}

static int
socket_fact(int fd, int what)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, what, &value, &len) == 0 ? value : -1;
}

/*
 * A connection of an engine: the only stream sockets beside the channel, libzmq's that listen and, perhaps, stderr.  One
 * that both sides have ended is no longer connected, and may have bytes that libzmq has yet to read.
 */
static bool
is_engine(const struct notifier *n, int fd)
{
	return fd != n->h->channel && socket_fact(fd, SO_TYPE) == SOCK_STREAM &&
	       socket_fact(fd, SO_ACCEPTCONN) == 0;
}

/* Ends this side of each connection.  False if there is none. */
static bool
shut_engines(const struct notifier *n)
{
	const int most = (int)fds_bound(n->h);
	bool any = false;

	for (int fd = STDERR_FILENO + 1; fd < most; fd++)
		if (is_engine(n, fd)) {
			any = true;
			(void)shutdown(fd, SHUT_WR);
		}
	return any;
}

/*
 * libzmq closes a connection with whatever the engine has sent meanwhile.  So this side of each connection ends
 * first: the engine's libzmq sees that, closes after its last byte, and keeps further messages until it has
 * connected again and this notifier's libzmq has greeted it, or the next one's.
 */
static void
finish(struct notifier *n)
{
	const uint64_t end_ms = clock_ms() + CLOSE_MS;

	events_free(&n->events); /* its sockets would connect again */
	siblings_free(&n->siblings);
	while (n->ctx != NULL && shut_engines(n) && clock_ms() < end_ms) {
		(void)take_batch(n);
		(void)usleep(1000);
	}
	for (int i = 0; i < LAST_BATCHES && take_batch(n); i++)
		;
}

int
notifier_main(const struct heritage *h)
{
	struct notifier n = {.h = h,
		.notices_from = h->notices_from,
		.slab = seg_slab(h->seg, h->slot),
		.sockets = {{NULL, take_notice}, {NULL, take_announcement}}};
	char ready = CH_READY;
	int r;

	bound_all(h);
	peers_begin(&n.peers, h->seg, n.slab, fds_bound(h));
	usage_begin(&n.usage);
	read_networks(&n);
	announce_begin(h->seg); /* before any announcement can be read */
	r = open_sockets(&n);
	if (r == 0) {
		n.pass = pass_new(h, BATCH);
		n.woken = mem_array(h->seg->hdr->nslots, sizeof(bool));
		/* a predecessor may have died between a notice's last step and the worker's eventfd */
		flag_kick_all(h->seg);
		wake_all(&n);
		h->enter_sandbox(h); /* libzmq has bound its sockets and started its threads */
		(void)send(h->channel, &ready, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		r = loop(&n);
		finish(&n);
	}
	usage_end(&n.usage);
	pass_free(&n.pass);
	free(n.woken);
	free(n.announced);
	close_sockets(&n);
	return r;
}
