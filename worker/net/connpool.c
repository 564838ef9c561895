#include "worker/net/connpool.h"

#include <assert.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/http/http.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/load.h"
#include "shm/restart.h"
#include "worker/base/core.h"
#include "worker/net/tls.h"

#define STALE_US 2000 /* in addition to the round trips: a stale connection is reset by then */

struct connpool {
	struct worker *w;
	struct endpoint **eps;   /* by endpoint slot */
	uint32_t nslots;         /* one above the highest slot seen */
	struct upconn_list idle; /* of all endpoints, the longest idle first */
	struct upconn_list ended;
	struct tls_engines *tls;
};

struct connpool *
connpool_new(struct worker *w)
{
	struct connpool *p = MEM_NEW(struct connpool);

	p->w = w;
	p->eps = mem_array(w->seg->hdr->max_endpoints, sizeof(*p->eps));
	TAILQ_INIT(&p->idle);
	TAILQ_INIT(&p->ended);
	p->tls = tls_engines_new(w);
	return p;
}

void
connpool_reap(struct connpool *p)
{
	struct upconn *uc;

	while ((uc = TAILQ_FIRST(&p->ended)) != NULL) {
		TAILQ_REMOVE(&p->ended, uc, link);
		free(uc);
	}
}

static void
endpoint_unref(struct endpoint *ep)
{
	assert(ep->refs > 0);
	if (--ep->refs > 0)
		return;
	free(ep->url);
	free(ep->authority);
	free(ep->host);
	free(ep->prefix);
	free(ep->bootstrap_host);
	free(ep->kv_addr);
	free(ep->disagg_spec);
	mem_free_secret(ep->key_line);
	tls_memory_clear(&ep->memory);
	free(ep->learned);
	free(ep);
}

/* Ends a connection that is on no list; its memory is freed after the loop turn. */
static void
end_conn(struct connpool *p, struct upconn *uc)
{
	sock_close(&uc->sock);
	worker_gauge(p->w, G_UP_OPEN, -1);
	if (--uc->ep->nconns == 0)
		uc->ep->disconnects++;
	endpoint_unref(uc->ep);
	uc->ep = NULL;
	uc->ops = NULL;
	TAILQ_INSERT_TAIL(&p->ended, uc, link);
}

/* The first connection that was idle when this turn began: the turn's epoll_wait() waited for it and for those behind it. */
static struct upconn *
first_polled(const struct connpool *p, struct endpoint *ep)
{
	if (ep->polled_turn != p->w->turn) {
		ep->polled_turn = p->w->turn;
		ep->polled = TAILQ_FIRST(&ep->idle);
	}
	return ep->polled;
}

static void
leave_idle(struct connpool *p, struct upconn *uc)
{
	if (uc->ep->polled == uc)
		uc->ep->polled = TAILQ_NEXT(uc, link);
	TAILQ_REMOVE(&uc->ep->idle, uc, link);
	TAILQ_REMOVE(&p->idle, uc, by_age);
	uc->ep->nidle--;
	worker_gauge(p->w, G_UP_IDLE, -1);
}

static void
drop_idle(struct connpool *p, struct upconn *uc)
{
	leave_idle(p, uc);
	end_conn(p, uc);
}

void
connpool_drop_idle(struct connpool *p, struct endpoint *ep)
{
	while (!TAILQ_EMPTY(&ep->idle))
		drop_idle(p, TAILQ_FIRST(&ep->idle));
}

/* Retires the copy of a slot that was reused or whose address changed: finishing requests keep
 * the old copy alive. */
static void
retire(struct connpool *p, uint32_t slot)
{
	struct endpoint *ep = p->eps[slot];

	if (ep == NULL)
		return;
	connpool_drop_idle(p, ep);
	ep->current = false;
	p->eps[slot] = NULL;
	endpoint_unref(ep);
}

void
connpool_free(struct connpool **pp)
{
	struct connpool *p = *pp;

	if (p == NULL)
		return;
	for (uint32_t i = 0; i < p->nslots; i++)
		retire(p, i);
	connpool_reap(p);
	tls_engines_free(&p->tls);
	free(p->eps);
	free(p);
	*pp = NULL;
}

static void
replace(char **text, const char *with)
{
	free(*text);
	*text = mem_strdup(with);
}

static char *
key_line(const char *key)
{
	if (key == NULL || key[0] == '\0')
		return mem_strdup(key);
	return mem_printf("Authorization: Bearer %s\r\n", key);
}

const struct tls_client *
connpool_tls(const struct worker *w, const char *pool)
{
	const struct conf_pool *p = conf_pool_named(w->conf, pool);

	return p != NULL ? p->tls.client : NULL;
}

static void
refresh_keys(const struct worker *w, struct endpoint *ep, const char *pool)
{
	const struct conf_pool *p = ep->https ? conf_pool_named(w->conf, pool) : NULL;

	ep->tls = p != NULL ? p->tls.client : NULL;
	ep->tls_keys = p != NULL ? p->tls.id : 0;
}

bool
connpool_keys_are_old(const struct connpool *p, const struct endpoint *ep)
{
	struct worker *w = p->w;
	uint64_t keys = 0; /* of a pool that is gone */
	const struct table *t;

	if (!ep->https)
		return false;
	t = rcu_enter(w->seg, w->slot);
	for (uint32_t i = 0; i < t->npools; i++)
		if (t->pools[i].id == ep->pool)
			keys = t->pools[i].tls_keys;
	rcu_leave(w->seg, w->slot);
	return keys != ep->tls_keys;
}

/* Copies values that the master may have learned since. */
static void
refresh(const struct worker *w, struct endpoint *ep, const struct table_endpoint *te,
	const struct table *t)
{
	ep->table_version = t->version;
	ep->down_grace_ms = t->pools[te->pool].timeouts.down_grace_ms;
	ep->tcp_user_ms = t->pools[te->pool].timeouts.tcp_user_ms;
	ep->pool = t->pools[te->pool].id;
	refresh_keys(w, ep, t->pools[te->pool].name);
	replace(&ep->bootstrap_host, te->bootstrap_host);
	replace(&ep->kv_addr, te->kv_addr);
	replace(&ep->disagg_spec, te->disagg_spec);
	ep->bootstrap_port = te->bootstrap_port;
	ep->dp_ranks = te->dp_ranks;
	ep->notices = te->notices;
	mem_free_secret(ep->key_line);
	ep->key_line = key_line(te->key);
}

/* What was learned of the engine's former life is void. */
static void
begin_life(struct endpoint *ep, uint64_t life)
{
	ep->life = life;
	free(ep->learned);
	ep->learned = NULL;
	ep->learned_port = 0;
}

static struct endpoint *
make(const struct table_endpoint *te)
{
	struct endpoint *ep = MEM_NEW(struct endpoint);

	ep->slot = te->slot;
	ep->tag = te->tag;
	ep->addr = te->addr;
	ep->https = te->tls;
	ep->url = mem_strdup(te->url);
	ep->authority = mem_strdup(te->authority);
	ep->host = mem_strdup(te->host);
	ep->prefix = mem_strdup(te->prefix);
	ep->current = true;
	ep->refs = 1;
	TAILQ_INIT(&ep->idle);
	TAILQ_INIT(&ep->legs);
	return ep;
}

struct endpoint *
connpool_endpoint(struct connpool *p, const struct table *t, const struct table_endpoint *te)
{
	const uint64_t life = restart_life(p->w->seg, te->slot);
	struct endpoint *ep = p->eps[te->slot];

	if (ep != NULL && (ep->tag != te->tag || !ep_addr_equal(&ep->addr, &te->addr))) {
		retire(p, te->slot);
		ep = NULL;
	}
	if (ep == NULL || ep->table_version != t->version) {
		mem_exempt(true); /* once per table, whose texts it copies: the exception of I6 */
		if (ep == NULL)
			ep = p->eps[te->slot] = make(te);
		if (te->slot >= p->nslots)
			p->nslots = te->slot + 1;
		refresh(p->w, ep, te, t);
		mem_exempt(false);
	}
	if (ep->life != life)
		begin_life(ep, life);
	return connpool_ref(ep);
}

struct endpoint *
connpool_ref(struct endpoint *ep)
{
	ep->refs++;
	return ep;
}

struct endpoint *
connpool_aside(const struct endpoint *ep, uint16_t port)
{
	struct endpoint *aside = MEM_NEW(struct endpoint);

	aside->slot = ep->slot;
	aside->addr = ep->addr;
	aside->addr.port = port;
	aside->tcp_user_ms = ep->tcp_user_ms;
	/* the bootstrap port speaks no TLS: no key crosses the network that TLS would have hidden */
	aside->key_line = mem_strdup(ep->https ? "" : ep->key_line);
	aside->url = mem_strdup(ep->url);
	aside->host = mem_strdup(ep->host);
	aside->prefix = mem_strdup("");
	aside->authority =
		mem_printf(strchr(ep->host, ':') != NULL ? "[%s]:%u" : "%s:%u", ep->host, port);
	TAILQ_INIT(&aside->idle);
	TAILQ_INIT(&aside->legs);
	aside->refs = 1;
	return aside;
}

void
connpool_unref(struct connpool *p, struct endpoint **ep)
{
	(void)p;
	if (*ep == NULL)
		return;
	endpoint_unref(*ep);
	*ep = NULL;
}

static void
on_conn_read(void *arg)
{
	struct upconn *uc = arg;
	struct connpool *p = uc->sock.w->connpool;

	if (uc->ops != NULL)
		uc->ops->readable(uc->user);
	else if (uc->sock.tls == NULL || !sock_is_quiet(&uc->sock))
		drop_idle(p, uc); /* the engine closed the connection, or sent unrequested bytes */
}

static void
on_conn_drained(void *arg)
{
	struct upconn *uc = arg;

	if (uc->ops != NULL)
		uc->ops->drained(uc->user);
}

static void
on_conn_error(void *arg, int err)
{
	struct upconn *uc = arg;

	(void)err;
	if (uc->ops != NULL)
		uc->ops->broken(uc->user);
	else
		drop_idle(uc->sock.w->connpool, uc);
}

/* Closes the connection with the longest idle time, of any endpoint.  Returns false if none is
 * idle. */
static bool
give_up_idle(struct connpool *p)
{
	struct upconn *oldest = TAILQ_FIRST(&p->idle);

	if (oldest != NULL)
		drop_idle(p, oldest);
	return oldest != NULL;
}

static int
new_socket(struct connpool *p, int family)
{
	const int type = SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
	int fd = socket(family, type, 0);

	if (fd == -1 && (errno == EMFILE || errno == ENFILE) && give_up_idle(p))
		fd = socket(family, type, 0);
	return fd;
}

/* An engine on this machine has taken most connections by the time that connect(2) returns: the loop need not wait for
 * the end of such a connect.  One that has failed is not connected. */
static bool
is_connected(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};

	return poll(&p, 1, 0) == 1 && p.revents == POLLOUT;
}

/* Returns a socket that connects, or -errno. */
static int
dial(struct connpool *p, const struct endpoint *ep)
{
	struct sockaddr_storage ss;
	const socklen_t len = ep_addr_sockaddr(&ep->addr, &ss);
	int fd, err;

	if (len == 0)
		return -EHOSTUNREACH;
	if (ep->https && ep->tls == NULL)
		return -ENOKEY;
	fd = new_socket(p, ss.ss_family);
	if (fd == -1)
		return -errno;
	if (connect(fd, (struct sockaddr *)&ss, len) == 0 || errno == EINPROGRESS)
		return fd;
	err = errno;
	(void)close(fd);
	return -err;
}

static struct tcp_info
tcp_info_of(const struct upconn *uc)
{
	struct tcp_info ti;
	socklen_t len = sizeof(ti);

	memset(&ti, 0, sizeof(ti));
	if (getsockopt(uc->sock.fd, IPPROTO_TCP, TCP_INFO, &ti, &len) == -1)
		ti.tcpi_bytes_acked = UINT64_MAX;
	return ti;
}

/* What TCP has carried for earlier requests.  Over TLS handshake and records count, so TCP itself is asked. */
static uint64_t
carried(const struct upconn *uc)
{
	struct tcp_info ti;

	if (uc->sock.tls == NULL)
		return uc->sent;
	ti = tcp_info_of(uc);
	return ti.tcpi_unacked > 0 || ti.tcpi_bytes_acked == UINT64_MAX ? 0
									: ti.tcpi_bytes_acked - 1;
}

static struct upconn *
new_conn(struct connpool *p, struct endpoint *ep, int fd)
{
	struct upconn *uc = MEM_NEW(struct upconn);

	uc->ep = ep;
	ep->nconns++;
	ep->refs++;
	uc->sock.on_read = on_conn_read;
	uc->sock.on_drained = on_conn_drained;
	uc->sock.on_error = on_conn_error;
	sock_init(&uc->sock, p->w, fd, ep->https || !is_connected(fd), uc);
	sock_watch_peer(&uc->sock, ep->tcp_user_ms, true);
	metric_add(p->w->slab, M_UP_CONNS, 1);
	worker_gauge(p->w, G_UP_OPEN, 1);
	return uc;
}

/*
 * A connection that is idle, and quiet (N4).  The turn's epoll_wait() has found most of them quiet, which saves a
 * system call for each leg: one that became idle in this turn is taken only if there is no other one.
 */
static struct upconn *
find_quiet(struct connpool *p, struct endpoint *ep)
{
	const bool covered = worker_turn_is_believed(p->w);
	struct upconn *uc;

	while (covered && (uc = first_polled(p, ep)) != NULL && uc->sock.tls == NULL) {
		if (!sock_is_due(&uc->sock))
			return uc;
		drop_idle(p, uc);
	}
	while ((uc = TAILQ_FIRST(&ep->idle)) != NULL && !sock_is_quiet(&uc->sock))
		drop_idle(p, uc);
	return uc;
}

struct upconn *
connpool_get(struct connpool *p, struct endpoint *ep, bool fresh, int *ret_err)
{
	struct upconn *uc = fresh ? NULL : find_quiet(p, ep);
	int fd;

	if (uc != NULL) {
		leave_idle(p, uc);
		metric_add(p->w->slab, M_UP_REUSED, 1);
		uc->reused = true;
		uc->sent_before = carried(uc);
		return uc;
	}
	fd = dial(p, ep);
	if (fd < 0) {
		*ret_err = -fd;
		return NULL;
	}
	uc = new_conn(p, ep, fd);
	if (ep->https && !sock_connect_tls(&uc->sock, p->tls, ep->tls, ep->host, &ep->memory)) {
		end_conn(p, uc);
		*ret_err = ENOMEM;
		return NULL;
	}
	return uc;
}

void
connpool_put(struct connpool *p, struct upconn **ucp)
{
	struct upconn *uc = *ucp;
	struct endpoint *ep = uc->ep;

	*ucp = NULL;
	uc->ops = NULL;
	if (!ep->current || ep->nidle >= p->w->conf->live.upstream_max_idle ||
		p->w->phase == WORKER_DRAINS || p->w->conf->live.upstream_idle_ms == 0) {
		end_conn(p, uc);
		return;
	}
	uc->idle_since_ms = clock_ms();
	sock_read_start(&uc->sock); /* to see it close */
	(void)first_polled(p, ep);  /* this one is not */
	TAILQ_INSERT_HEAD(&ep->idle, uc, link);
	TAILQ_INSERT_TAIL(&p->idle, uc, by_age);
	ep->nidle++;
	worker_gauge(p->w, G_UP_IDLE, 1);
	worker_need_tick(p->w);
}

void
connpool_drop(struct connpool *p, struct upconn **ucp)
{
	struct upconn *uc = *ucp;

	if (uc == NULL)
		return;
	*ucp = NULL;
	end_conn(p, uc);
}

bool
connpool_nothing_acked(const struct upconn *uc)
{
	const struct tcp_info ti = tcp_info_of(uc);

	/* The SYN counts as one acknowledged byte (net/ipv4/tcp_input.c, tcp_snd_una_update). */
	if (ti.tcpi_bytes_acked > uc->sent_before + 1)
		return false;
	/*
	 * An orderly close acknowledges all bytes that the peer's kernel had taken.  A reset
	 * does not, and a peer that has read a request may delay the acknowledgement by 40 ms
	 * (delayed ACK).  But a peer whose connection was gone before sends the reset at
	 * once.
	 */
	return !uc->sock.reset || clock_us() - uc->sent_us <= STALE_US + 2 * ti.tcpi_min_rtt;
}

bool
connpool_is_down(const struct connpool *p, const struct endpoint *ep)
{
	return ep->current && ep_state_get(p->w->seg, ep->slot) == EP_DOWN;
}

bool
connpool_sweep(struct connpool *p, uint64_t now_ms)
{
	struct upconn *uc;

	while ((uc = TAILQ_FIRST(&p->idle)) != NULL &&
		now_ms - uc->idle_since_ms >= p->w->conf->live.upstream_idle_ms)
		drop_idle(p, uc);
	return uc != NULL;
}
