#include "master/resolve.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <event2/event.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/time.h>

#include "shm/base/mem.h"
#include "shm/table.h"

/* A name server that does not answer: 2 tries of 2 s and, since c-ares doubles it each round, 4 s (6.0 s
 * measured); the 75 of its defaults are too many. */
#define TRY_MS 2000
#define TRIES 2

struct lookup {
	/* the asker's pointer to this; NULL after cancel (c-ares cannot drop one) */
	struct lookup **at;
	resolve_fn *fn;
	void *arg;
	uint16_t port;
	bool localhost;
};

struct watch { /* a socket of c-ares */
	TAILQ_ENTRY(watch) link;
	struct resolver *resolver;
	struct event *event;
	ares_socket_t fd;
};

struct resolver {
	struct event_base *base;
	ares_channel channel;
	bool ready; /* ares_init worked */
	struct event *timer;
	TAILQ_HEAD(watch_list, watch) watches;
};

/* c-ares tells the time by which it wants to be called again; nothing open means no timer. */
static void
rearm(struct resolver *r)
{
	struct timeval tv;

	if (ares_timeout(r->channel, NULL, &tv) == NULL)
		(void)event_del(r->timer);
	else
		(void)event_add(r->timer, &tv);
}

static void
on_timer(evutil_socket_t fd, short what, void *arg)
{
	struct resolver *r = arg;

	(void)fd;
	(void)what;
	ares_process_fd(r->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
	rearm(r);
}

static void
on_socket(evutil_socket_t fd, short what, void *arg)
{
	struct resolver *r =
		((struct watch *)arg)->resolver; /* the watch may be gone after the call */

	ares_process_fd(r->channel, (what & EV_READ) != 0 ? fd : ARES_SOCKET_BAD,
		(what & EV_WRITE) != 0 ? fd : ARES_SOCKET_BAD);
	rearm(r);
}

static struct watch *
watch_of(struct resolver *r, ares_socket_t fd)
{
	struct watch *w;

	TAILQ_FOREACH(w, &r->watches, link)
	if (w->fd == fd)
		return w;
	w = MEM_NEW(struct watch);
	w->resolver = r;
	w->fd = fd;
	TAILQ_INSERT_TAIL(&r->watches, w, link);
	return w;
}

static void
on_socket_state(void *arg, ares_socket_t fd, int readable, int writable)
{
	struct resolver *r = arg;
	struct watch *w = watch_of(r, fd);
	short want = (short)((readable ? EV_READ : 0) | (writable ? EV_WRITE : 0) | EV_PERSIST);

	if (w->event != NULL)
		event_free(w->event);
	w->event = NULL;
	if (!readable && !writable) { /* c-ares closes it after this call */
		TAILQ_REMOVE(&r->watches, w, link);
		free(w);
		return;
	}
	w->event = event_new(r->base, fd, want, on_socket, w);
	if (w->event != NULL)
		(void)event_add(w->event, NULL);
}

struct resolver *
resolver_new(struct event_base *base)
{
	struct resolver *r = MEM_NEW(struct resolver);
	struct ares_options o = {.timeout = TRY_MS,
		.tries = TRIES,
		.sock_state_cb = on_socket_state,
		.sock_state_cb_data = r};

	r->base = base;
	TAILQ_INIT(&r->watches);
	r->timer = event_new(base, -1, 0, on_timer, r);
	r->ready = ares_library_init(ARES_LIB_INIT_ALL) == ARES_SUCCESS &&
		   ares_init_options(&r->channel, &o,
			   ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB) ==
			   ARES_SUCCESS;
	return r;
}

void
resolver_free(struct resolver **pr)
{
	struct resolver *r = *pr;

	if (r == NULL)
		return;
	if (r->ready) {
		ares_destroy(r->channel); /* ends open lookups with ARES_EDESTRUCTION */
		ares_library_cleanup();
	}
	event_free(r->timer);
	free(r);
	*pr = NULL;
}

int
resolver_servers(struct resolver *r, const char *list)
{
	return r->ready && ares_set_servers_ports_csv(r->channel, list) == ARES_SUCCESS ? 0
											: -EINVAL;
}

bool
resolve_literal(const char *host, uint16_t port, struct ep_addr *ret)
{
	struct ep_addr a = {.family = AF_INET, .port = port};
	const char *zone = strchr(host, '%');
	char ip[INET6_ADDRSTRLEN];

	if (inet_pton(AF_INET, host, a.ip) == 1) {
		*ret = a;
		return true;
	}
	size_t n = zone != NULL ? (size_t)(zone - host) : strlen(host);
	if (n >= sizeof(ip))
		return false;
	memcpy(ip, host, n);
	ip[n] = '\0';
	a = (struct ep_addr){.family = AF_INET6, .port = port};
	if (inet_pton(AF_INET6, ip, a.ip) != 1)
		return false;
	if (zone != NULL) {
		a.scope = if_nametoindex(zone + 1);
		if (a.scope == 0)
			a.scope = (uint32_t)strtoul(zone + 1, NULL, 10);
	}
	*ret = a;
	return true;
}

static bool
address(const struct ares_addrinfo_node *node, uint16_t port, struct ep_addr *ret)
{
	struct ep_addr a = {.family = (uint16_t)node->ai_family, .port = port};

	if (node->ai_family == AF_INET) {
		struct sockaddr_in sin;

		memcpy(&sin, node->ai_addr, sizeof(sin));
		memcpy(a.ip, &sin.sin_addr, sizeof(sin.sin_addr));
	} else if (node->ai_family == AF_INET6) {
		struct sockaddr_in6 sin6;

		memcpy(&sin6, node->ai_addr, sizeof(sin6));
		memcpy(a.ip, &sin6.sin6_addr, sizeof(a.ip));
		a.scope = sin6.sin6_scope_id;
	} else {
		return false;
	}
	*ret = a;
	return true;
}

static void
on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *info)
{
	struct lookup *q = arg;
	struct ep_addr addrs[RESOLVE_MAX];
	size_t n = 0;

	(void)timeouts;
	if (info != NULL)
		for (const struct ares_addrinfo_node *node = info->nodes;
			node != NULL && n < RESOLVE_MAX; node = node->ai_next)
			n += address(node, q->port, &addrs[n]);
	if (info != NULL)
		ares_freeaddrinfo(info);
	/* without a line in /etc/hosts, as in a bare container, it is still the loopback (RFC 6761, 6.3) */
	if (n == 0 && q->localhost && status != ARES_EDESTRUCTION)
		(void)resolve_literal("127.0.0.1", q->port, &addrs[n++]);
	if (q->at != NULL) {
		*q->at = NULL;
		if (status != ARES_EDESTRUCTION)
			q->fn(addrs, n,
				n > 0 ? NULL
				      : ares_strerror(
						status == ARES_SUCCESS ? ARES_ENODATA : status),
				q->arg);
	}
	free(q);
}

void
resolve_start(struct resolver *r, const char *host, uint16_t port, resolve_fn *fn, void *arg,
	struct lookup **at)
{
	struct lookup *q = MEM_NEW(struct lookup);
	struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

	*q = (struct lookup){.at = at,
		.fn = fn,
		.arg = arg,
		.port = port,
		.localhost = strcasecmp(host, "localhost") == 0};
	*at = q;
	if (!r->ready) {
		on_answer(q, ARES_ENOTINITIALIZED, 0, NULL);
		return;
	}
	ares_getaddrinfo(r->channel, host, NULL, &hints, on_answer, q);
	rearm(r);
}

void
resolve_cancel(struct lookup **at)
{
	if (*at == NULL)
		return;
	(*at)->at = NULL;
	*at = NULL;
}
