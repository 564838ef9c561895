#include "worker/net/pool.h"

#include <assert.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/mem.h"
#include "worker/base/core.h"
#include "worker/net/leg.h"

#define STALE_US                                                                                   \
	2000 /* beside the way there and back: a connection that had gone stale says so by then */

struct pool {
	struct worker *w;
	uint32_t nslots;
	uint32_t nidle;
	struct upstream **ups; /* by endpoint slot */
	struct upconn_list ended;
};

struct pool *
pool_new(struct worker *w)
{
	struct pool *p = MEM_NEW(struct pool);

	p->w = w;
	p->nslots = w->seg->hdr->max_endpoints;
	p->ups = mem_array(p->nslots, sizeof(*p->ups));
	TAILQ_INIT(&p->ended);
	return p;
}

void
pool_reap(struct pool *p)
{
	struct upconn *uc;

	while ((uc = TAILQ_FIRST(&p->ended)) != NULL) {
		TAILQ_REMOVE(&p->ended, uc, link);
		free(uc);
	}
}

static void
upstream_unref(struct upstream *up)
{
	assert(up->refs > 0);
	if (--up->refs > 0)
		return;
	free(up->url);
	free(up->authority);
	free(up->host);
	free(up->prefix);
	free(up->bootstrap_host);
	free(up->kv_addr);
	free(up->disagg_spec);
	free(up->learned);
	free(up);
}

/* Ends a connection that is on no list; its memory goes after the loop turn. */
static void
end_conn(struct pool *p, struct upconn *uc)
{
	sock_close(&uc->sock);
	metric_gauge_add(p->w->slab, G_UP_OPEN, -1);
	if (--uc->up->nconns == 0)
		uc->up->lulls++;
	upstream_unref(uc->up);
	uc->up = NULL;
	uc->leg = NULL;
	TAILQ_INSERT_TAIL(&p->ended, uc, link);
}

static void
drop_idle(struct pool *p, struct upconn *uc)
{
	TAILQ_REMOVE(&uc->up->idle, uc, link);
	uc->up->nidle--;
	p->nidle--;
	metric_gauge_add(p->w->slab, G_UP_IDLE, -1);
	end_conn(p, uc);
}

void
pool_drop_idle(struct pool *p, struct upstream *up)
{
	while (!TAILQ_EMPTY(&up->idle))
		drop_idle(p, TAILQ_FIRST(&up->idle));
}

/* The slot lives another life, or its address moved: finishing requests keep the old copy alive. */
static void
retire(struct pool *p, uint32_t slot)
{
	struct upstream *up = p->ups[slot];

	if (up == NULL)
		return;
	pool_drop_idle(p, up);
	up->current = false;
	p->ups[slot] = NULL;
	upstream_unref(up);
}

void
pool_free(struct pool **pp)
{
	struct pool *p = *pp;

	if (p == NULL)
		return;
	for (uint32_t i = 0; i < p->nslots; i++)
		retire(p, i);
	pool_reap(p);
	free(p->ups);
	free(p);
	*pp = NULL;
}

static void
replace(char **text, const char *with)
{
	free(*text);
	*text = mem_strdup(with);
}

/* What the master may have learned since. */
static void
refresh(struct upstream *up, const struct table_endpoint *te, uint64_t version)
{
	up->table_version = version;
	replace(&up->bootstrap_host, te->bootstrap_host);
	replace(&up->kv_addr, te->kv_addr);
	replace(&up->disagg_spec, te->disagg_spec);
	up->bootstrap_port = te->bootstrap_port;
	up->dp_ranks = te->dp_ranks;
	up->notices = te->notices;
}

struct upstream *
pool_endpoint(struct pool *p, const struct table *t, const struct table_endpoint *te)
{
	struct upstream *up = p->ups[te->slot];

	if (up != NULL && (up->tag != te->tag || !ep_addr_equal(&up->addr, &te->addr))) {
		retire(p, te->slot);
		up = NULL;
	}
	if (up == NULL) {
		up = MEM_NEW(struct upstream);
		up->slot = te->slot;
		up->tag = te->tag;
		up->addr = te->addr;
		up->url = mem_strdup(te->url);
		up->authority = mem_strdup(te->authority);
		up->host = mem_strdup(te->host);
		up->prefix = mem_strdup(te->prefix);
		up->current = true;
		up->refs = 1;
		TAILQ_INIT(&up->idle);
		p->ups[te->slot] = up;
	}
	if (up->table_version != t->version)
		refresh(up, te, t->version);
	return pool_ref(up);
}

struct upstream *
pool_ref(struct upstream *up)
{
	up->refs++;
	return up;
}

struct upstream *
pool_aside(const struct upstream *up, uint16_t port)
{
	struct upstream *aside = MEM_NEW(struct upstream);

	aside->slot = up->slot;
	aside->addr = up->addr;
	aside->addr.port = port;
	aside->url = mem_strdup(up->url);
	aside->host = mem_strdup(up->host);
	aside->prefix = mem_strdup("");
	aside->authority =
		mem_printf(strchr(up->host, ':') != NULL ? "[%s]:%u" : "%s:%u", up->host, port);
	TAILQ_INIT(&aside->idle);
	aside->refs = 1;
	return aside;
}

void
pool_unref(struct pool *p, struct upstream **up)
{
	(void)p;
	if (*up == NULL)
		return;
	upstream_unref(*up);
	*up = NULL;
}

static void
on_conn_read(void *arg)
{
	struct upconn *uc = arg;
	struct pool *p = uc->sock.w->pool;

	if (uc->leg != NULL)
		leg_on_read(uc->leg);
	else /* the engine closed it, or says something nobody asked for */
		drop_idle(p, uc);
}

static void
on_conn_drained(void *arg)
{
	struct upconn *uc = arg;

	if (uc->leg != NULL)
		leg_on_drained(uc->leg);
}

static void
on_conn_error(void *arg, int err)
{
	struct upconn *uc = arg;

	(void)err;
	if (uc->leg != NULL)
		leg_on_error(uc->leg);
	else
		drop_idle(uc->sock.w->pool, uc);
}

/* Nothing to read and not closed: what an engine says unasked must never answer the next request. */
static bool
is_quiet(const struct upconn *uc)
{
	char c;

	return recv(uc->sock.fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) == -1 && errno == EAGAIN;
}

/* Closes the connection that has been idle for longest, whosever it is; false if none is. */
static bool
give_up_idle(struct pool *p)
{
	struct upconn *oldest = NULL;

	for (uint32_t i = 0; i < p->nslots && p->nidle > 0; i++) {
		struct upconn *uc =
			p->ups[i] == NULL ? NULL : TAILQ_LAST(&p->ups[i]->idle, upconn_list);

		if (uc != NULL && (oldest == NULL || uc->idle_since_ms < oldest->idle_since_ms))
			oldest = uc;
	}
	if (oldest != NULL)
		drop_idle(p, oldest);
	return oldest != NULL;
}

static int
new_socket(struct pool *p, int family)
{
	const int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
	int fd = socket(family, type, 0);

	if (fd == -1 && (errno == EMFILE || errno == ENFILE) && give_up_idle(p))
		fd = socket(family, type, 0);
	return fd;
}

struct upconn *
pool_get(struct pool *p, struct upstream *up, bool fresh, int *ret_err)
{
	struct upconn *uc;
	struct sockaddr_storage ss;
	socklen_t len;
	int fd;

	while ((uc = TAILQ_FIRST(&up->idle)) != NULL && !is_quiet(uc))
		drop_idle(p, uc);
	if (uc != NULL && !fresh) {
		TAILQ_REMOVE(&up->idle, uc, link);
		up->nidle--;
		p->nidle--;
		metric_gauge_add(p->w->slab, G_UP_IDLE, -1);
		metric_add(p->w->slab, M_UP_REUSED, 1);
		uc->reused = true;
		uc->sent_before = uc->sent;
		return uc;
	}
	len = ep_addr_sockaddr(&up->addr, &ss);
	if (len == 0) {
		*ret_err = EHOSTUNREACH;
		return NULL;
	}
	fd = new_socket(p, ss.ss_family);
	if (fd == -1) {
		*ret_err = errno;
		return NULL;
	}
	if (connect(fd, (struct sockaddr *)&ss, len) == -1 && errno != EINPROGRESS) {
		*ret_err = errno;
		(void)close(fd);
		return NULL;
	}
	uc = MEM_NEW(struct upconn);
	uc->up = up;
	up->nconns++;
	up->refs++;
	uc->sock.on_read = on_conn_read;
	uc->sock.on_drained = on_conn_drained;
	uc->sock.on_error = on_conn_error;
	sock_init(&uc->sock, p->w, fd, true, uc);
	metric_add(p->w->slab, M_UP_CONNS, 1);
	metric_gauge_add(p->w->slab, G_UP_OPEN, 1);
	return uc;
}

void
pool_put(struct pool *p, struct upconn **ucp)
{
	struct upconn *uc = *ucp;
	struct upstream *up = uc->up;

	*ucp = NULL;
	uc->leg = NULL;
	if (!up->current || up->nidle >= p->w->conf->upstream_max_idle || p->w->draining ||
		p->w->conf->upstream_idle_ms == 0) {
		end_conn(p, uc);
		return;
	}
	uc->idle_since_ms = clock_ms();
	sock_read_start(&uc->sock); /* to see it close */
	TAILQ_INSERT_HEAD(&up->idle, uc, link);
	up->nidle++;
	p->nidle++;
	metric_gauge_add(p->w->slab, G_UP_IDLE, 1);
	worker_need_tick(p->w);
}

void
pool_drop(struct pool *p, struct upconn **ucp)
{
	struct upconn *uc = *ucp;

	if (uc == NULL)
		return;
	*ucp = NULL;
	end_conn(p, uc);
}

bool
pool_nothing_acked(const struct upconn *uc)
{
	struct tcp_info ti;
	socklen_t len = sizeof(ti);

	memset(&ti, 0, sizeof(ti));
	if (getsockopt(uc->sock.fd, IPPROTO_TCP, TCP_INFO, &ti, &len) == -1)
		return false;
	/* The SYN counts as one acknowledged byte (net/ipv4/tcp_input.c, tcp_snd_una_update). */
	if (ti.tcpi_bytes_acked > uc->sent_before + 1)
		return false;
	/*
	 * The peer's end acknowledges all that its kernel had taken.  A reset does not, and who has read a request
	 * may put off the word for it by 40 ms (the delayed ACK); but one whose connection was gone before says
	 * so at once.
	 */
	return !uc->sock.reset || clock_us() - uc->sent_us <= STALE_US + 2 * ti.tcpi_min_rtt;
}

bool
pool_sweep(struct pool *p, uint64_t now_ms)
{
	if (p->nidle == 0)
		return false;
	for (uint32_t i = 0; i < p->nslots; i++) {
		struct upstream *up = p->ups[i];
		struct upconn *uc;

		while (up != NULL && (uc = TAILQ_LAST(&up->idle, upconn_list)) != NULL &&
			now_ms - uc->idle_since_ms >= p->w->conf->upstream_idle_ms)
			drop_idle(p, uc);
	}
	return p->nidle != 0;
}
