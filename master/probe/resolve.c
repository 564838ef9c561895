#include "master/probe/resolve.h"

#include <ares.h>
#include <arpa/inet.h>
#include <assert.h>
#include <event2/event.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/table.h"

/* A name server that does not answer: 2 tries of 2 s and, since c-ares doubles it each round, 4 s (6.0 s
 * measured); the 75 of its defaults are too many. */
#define TRY_MS 2000
#define TRIES 2

struct lookup {
	struct resolver *resolver;
	/* the caller's pointer to this; NULL after cancel (c-ares cannot drop one) */
	struct lookup **at;
	resolve_fn *fn;
	void *arg;
	char *host;
	uint16_t port;
};

struct query { /* the same of resolve_query() */
	struct resolver *resolver;
	struct query **at;
	resolve_answer_fn *fn;
	void *arg;
	char *name;
	int type;
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
	bool ready;    /* ares_init worked */
	char *servers; /* "a,b": used instead of those of resolv.conf; or "" */
	/* resolv.conf when the channel was made: c-ares does not read it again */
	struct stat conf;
	struct event *timer;
	TAILQ_HEAD(watch_list, watch) watches;
};

/* c-ares sets the time of its next call.  Without an open lookup there is no timer. */
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

static struct stat
stat_conf(void)
{
	struct stat st;

	if (stat("/etc/resolv.conf", &st) == -1)
		st = (struct stat){.st_ino = 0};
	return st;
}

static void
channel_open(struct resolver *r)
{
	struct ares_options o = {.timeout = TRY_MS,
		.tries = TRIES,
		.sock_state_cb = on_socket_state,
		.sock_state_cb_data = r};
	int status;

	r->conf = stat_conf();
	status = ares_init_options(
		&r->channel, &o, ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB);
	r->ready = status == ARES_SUCCESS;
	if (r->ready && r->servers[0] != '\0')
		status = ares_set_servers_ports_csv(r->channel, r->servers);
	if (status != ARES_SUCCESS)
		log_error("name servers cannot be used", LOG_S("servers", r->servers),
			LOG_S("reason", ares_strerror(status)));
}

struct resolver *
resolver_new(struct event_base *base)
{
	struct resolver *r = MEM_NEW(struct resolver);
	int status = ares_library_init(ARES_LIB_INIT_ALL);

	assert(status == ARES_SUCCESS); /* it only counts, on this system */
	r->base = base;
	TAILQ_INIT(&r->watches);
	r->timer = event_new(base, -1, 0, on_timer, r);
	r->servers = mem_strdup("");
	channel_open(r);
	return r;
}

void
resolver_free(struct resolver **pr)
{
	struct resolver *r = *pr;

	if (r == NULL)
		return;
	if (r->ready)
		ares_destroy(r->channel); /* ends open lookups with ARES_EDESTRUCTION */
	ares_library_cleanup();
	event_free(r->timer);
	free(r->servers);
	free(r);
	*pr = NULL;
}

/* c-ares takes "10.0.0.2", but no "[fd00::2]" without a port. */
static char *
join(char *const *servers, size_t n)
{
	char *all = mem_strdup("");

	for (size_t i = 0; i < n; i++) {
		const char *port = servers[i][strlen(servers[i]) - 1] == ']' ? ":53" : "";
		char *longer = mem_printf("%s%s%s%s", all, i > 0 ? "," : "", servers[i], port);

		free(all);
		all = longer;
	}
	return all;
}

static bool
conf_moved(const struct stat *was, const struct stat *is)
{
	return was->st_ino != is->st_ino || was->st_dev != is->st_dev ||
	       was->st_size != is->st_size || was->st_mtim.tv_sec != is->st_mtim.tv_sec ||
	       was->st_mtim.tv_nsec != is->st_mtim.tv_nsec;
}

bool
resolver_servers(struct resolver *r, char *const *servers, size_t n)
{
	char *list = join(servers, n);
	struct stat is = stat_conf();
	ares_channel old = r->channel;
	bool was_ready = r->ready;

	if (strcmp(list, r->servers) == 0 && (n > 0 || !conf_moved(&r->conf, &is))) {
		free(list);
		return false;
	}
	free(r->servers);
	r->servers = list;
	channel_open(r);
	if (was_ready) {
		ares_cancel(old); /* open lookups begin anew on the new channel */
		ares_destroy(old);
	}
	if (r->ready)
		rearm(r);
	return true;
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

static void look_up(struct lookup *q);

static void
on_answer(void *arg, int status, int timeouts, struct ares_addrinfo *info)
{
	struct lookup *q = arg;
	struct ep_addr addrs[RESOLVE_MAX];
	size_t n = 0;

	(void)timeouts;
	if (status == ARES_ECANCELLED && q->at != NULL) { /* other name servers now */
		look_up(q);
		return;
	}
	if (info != NULL)
		for (const struct ares_addrinfo_node *node = info->nodes;
			node != NULL && n < RESOLVE_MAX; node = node->ai_next)
			n += address(node, q->port, &addrs[n]);
	if (info != NULL)
		ares_freeaddrinfo(info);
	/* without a line in /etc/hosts, as in a bare container, it is still the loopback (RFC 6761, 6.3) */
	if (n == 0 && strcasecmp(q->host, "localhost") == 0)
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
	free(q->host);
	free(q);
}

static void
look_up(struct lookup *q)
{
	struct resolver *r = q->resolver;
	struct ares_addrinfo_hints hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};

	if (!r->ready) {
		on_answer(q, ARES_ENOTINITIALIZED, 0, NULL);
		return;
	}
	ares_getaddrinfo(r->channel, q->host, NULL, &hints, on_answer, q);
	rearm(r);
}

void
resolve_start(struct resolver *r, const char *host, uint16_t port, resolve_fn *fn, void *arg,
	struct lookup **at)
{
	struct lookup *q = MEM_NEW(struct lookup);

	*q = (struct lookup){.resolver = r,
		.at = at,
		.fn = fn,
		.arg = arg,
		.host = mem_strdup(host),
		.port = port};
	*at = q;
	look_up(q);
}

void
resolve_cancel(struct lookup **at)
{
	if (*at == NULL)
		return;
	(*at)->at = NULL;
	*at = NULL;
}

static void send_query(struct query *q);

static void
on_message(void *arg, int status, int timeouts, unsigned char *msg, int n)
{
	struct query *q = arg;
	bool good = msg != NULL &&
		    (status == ARES_SUCCESS || status == ARES_ENODATA || status == ARES_ENOTFOUND);

	(void)timeouts;
	if (status == ARES_ECANCELLED && q->at != NULL) {
		send_query(q);
		return;
	}
	if (q->at != NULL) {
		*q->at = NULL;
		if (status != ARES_EDESTRUCTION)
			q->fn(good ? msg : NULL, good ? (size_t)n : 0,
				good ? NULL : ares_strerror(status), q->arg);
	}
	free(q->name);
	free(q);
}

static void
send_query(struct query *q)
{
	struct resolver *r = q->resolver;

	if (!r->ready) {
		on_message(q, ARES_ENOTINITIALIZED, 0, NULL, 0);
		return;
	}
	ares_query(r->channel, q->name, 1 /* IN */, q->type, on_message, q);
	rearm(r);
}

void
resolve_query(struct resolver *r, const char *name, int type, resolve_answer_fn *fn, void *arg,
	struct query **at)
{
	struct query *q = MEM_NEW(struct query);

	*q = (struct query){.resolver = r,
		.at = at,
		.fn = fn,
		.arg = arg,
		.name = mem_strdup(name),
		.type = type};
	*at = q;
	send_query(q);
}

void
resolve_query_cancel(struct query **at)
{
	if (*at == NULL)
		return;
	(*at)->at = NULL;
	*at = NULL;
}
