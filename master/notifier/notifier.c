#include "master/notifier/notifier.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#include "proto/notif.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/flags.h"
#include "shm/heritage.h"
#include "shm/metrics.h"
#include "shm/seg.h"

#define BEAT_MS 500
#define BATCH 256        /* messages between two beats and looks at the channel */
#define MAX_MESSAGE 4096 /* a notice is under 300 bytes; libzmq cuts a peer off that sends more */
/* messages libzmq reads ahead per engine: with MAX_MESSAGE at most 1 MiB each */
#define QUEUED 256
/* one per rank: 128 engines of 8 GPUs.  With QUEUED: at most 1 GiB, whoever connects */
#define CONNECTIONS 1024
#define OWN_FDS 64      /* libzmq's and the heritage's, the eventfds aside */
#define LAST_BATCHES 64 /* before going: what has arrived already is still delivered */

struct notifier {
	const struct heritage *h;
	struct metrics_slab *slab;
	void *ctx, *sock;
	bool *woken; /* [process slots]: eventfds to write after this batch */
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

/* One write per worker and batch; the ready bits are set by now (flag_notify), so none is missed. */
static void
wake_batch(struct notifier *n)
{
	for (uint32_t i = 0; i < SLOT_WORKERS(n->h->seg); i++) {
		if (n->woken[i])
			wake(n, i);
		n->woken[i] = false;
	}
}

/* A message that does not parse, or names no flag of ours, is counted and forgotten: never an end. */
static void
take_notice(struct notifier *n, const void *msg, size_t len)
{
	struct notif notice;
	struct flag_ref ref;

	if (notif_read(msg, len, &notice) != 0 ||
		!flag_id_parse(n->h->seg, notice.req_id, strlen(notice.req_id), &ref)) {
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

/* True if there may be more.  Always up to EAGAIN or a full batch: libzmq's readiness is edge-triggered. */
static bool
take_batch(struct notifier *n)
{
	bool more = true;

	for (int i = 0; more && i < BATCH; i++) {
		zmq_msg_t msg;

		(void)zmq_msg_init(&msg);
		more = zmq_msg_recv(&msg, n->sock, ZMQ_DONTWAIT) != -1;
		if (more)
			take_notice(n, zmq_msg_data(&msg), zmq_msg_size(&msg));
		(void)zmq_msg_close(&msg);
	}
	wake_batch(n);
	return more;
}

/* The master said drain or quit, or is gone: both mean go, since nothing here lasts. */
static bool
told_to_go(const struct notifier *n)
{
	char c;
	ssize_t r = recv(n->h->channel, &c, 1, MSG_DONTWAIT);

	return r == 1 || r == 0 || (errno != EAGAIN && errno != EINTR);
}

static int
loop(struct notifier *n)
{
	zmq_pollitem_t items[] = {
		{.socket = n->sock, .events = ZMQ_POLLIN},
		{.fd = n->h->channel, .events = ZMQ_POLLIN},
	};
	bool more = false;

	for (;;) {
		proc_beat(n->h->seg, n->h->slot, clock_ms());
		if (zmq_poll(items, 2, more ? 0 : BEAT_MS) == -1 && errno != EINTR) {
			log_error("zmq_poll", LOG_S("error", zmq_strerror(errno)));
			return 1;
		}
		more = take_batch(n);
		if ((items[1].revents & ZMQ_POLLIN) && told_to_go(n))
			return CHILD_EXIT_OK;
	}
}

/* 0, or an exit code: an address that can never work is not tried again. */
static int
open_socket(struct notifier *n)
{
	const char *address = n->h->conf->notices_listen;
	int queued = QUEUED, linger = 0, v6 = strchr(address, '[') != NULL;
	int64_t max = MAX_MESSAGE;
	int err;

	n->ctx = zmq_ctx_new(); /* after the fork: an inherited context fails */
	n->sock = n->ctx != NULL ? zmq_socket(n->ctx, ZMQ_PULL) : NULL;
	if (n->sock == NULL) {
		log_error("no ZMQ socket", LOG_S("error", zmq_strerror(errno)));
		return 1;
	}
	(void)zmq_setsockopt(n->sock, ZMQ_RCVHWM, &queued, sizeof(queued));
	(void)zmq_setsockopt(n->sock, ZMQ_LINGER, &linger, sizeof(linger));
	(void)zmq_setsockopt(n->sock, ZMQ_MAXMSGSIZE, &max, sizeof(max));
	(void)zmq_setsockopt(n->sock, ZMQ_IPV6, &v6, sizeof(v6));
	if (zmq_bind(n->sock, address) == 0)
		return 0;
	err = errno;
	log_error("cannot listen for notices", LOG_S("address", address),
		LOG_S("error", zmq_strerror(err)));
	return err == EINVAL || err == EPROTONOSUPPORT ? CHILD_EXIT_NO_RESPAWN : 1;
}

static void
close_socket(struct notifier *n)
{
	if (n->sock != NULL)
		(void)zmq_close(n->sock);
	if (n->ctx != NULL)
		(void)zmq_ctx_term(n->ctx);
}

/* libzmq takes every connection it has a descriptor for; what it holds is bounded for each, not for all. */
static void
bound_connections(const struct heritage *h)
{
	rlim_t most = CONNECTIONS + OWN_FDS + h->seg->hdr->nslots;
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur > most) {
		rl.rlim_cur = most;
		(void)setrlimit(RLIMIT_NOFILE, &rl);
	}
}

int
notifier_main(const struct heritage *h)
{
	struct notifier n = {.h = h, .slab = seg_slab(h->seg, h->slot)};
	char ready = CH_READY;
	int r;

	bound_connections(h);
	r = open_socket(&n);
	if (r != 0) {
		close_socket(&n);
		return r;
	}
	n.woken = mem_array(SLOT_WORKERS(h->seg), sizeof(bool));
	/* a predecessor may have died between a notice's last step and the worker's eventfd */
	flag_kick_all(h->seg);
	wake_all(&n);
	(void)send(h->channel, &ready, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	log_info("listening for notices", LOG_S("address", h->conf->notices_listen));
	r = loop(&n);
	for (int i = 0; i < LAST_BATCHES && take_batch(&n); i++)
		;
	free(n.woken);
	close_socket(&n);
	return r;
}
