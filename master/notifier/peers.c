#include "master/notifier/peers.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "shm/base/clock.h"
#include "shm/base/decimal.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/base/net.h"
#include "shm/metrics.h"

#define ADDRESS "inproc://pdrouter-peers-%d"
#define FILTER_TEXT 80
#define MAPPED "::ffff:" /* an IPv4 peer of a socket that speaks IPv6 */
#define MAPPED_BITS 96
#define BATCH 64 /* events of one socket in one turn */
#define SHARE 8  /* one address may have this part of all descriptors */
#define REFRESH_MS 500
#define LINES_MS 60000 /* between two log lines */
#define QUIET_MS 3000  /* at the start names of engines may not have been looked up yet */

static const struct {
	const char *reason, *cure;
} why_refused[] = {
	[PEERS_NOT_NEARBY] =
		{"the address is in no network of an lmcache engine, nor this machine's",
			"if it is an engine: all networks of engines in lmcache.networks"},
	[PEERS_NOT_NAMED] = {"the address is in none of lmcache.networks",
		"if it is an engine: its network in lmcache.networks"},
	[PEERS_TOO_MANY] =
		{"the address is no engine's, and has as many connections as one address "
		 "may have",
			"if engines share it: an address for each, or their URLs with it"},
};

/* --- networks that the configuration names -------------------------------------------------- */

/* libzmq compares an address with filters of its own family alone.  The networks were checked when they were read. */
static int
add_filter(void *socket, const char *network, bool v6)
{
	char text[FILTER_TEXT];
	struct net net;
	const char *slash = strchr(network, '/');
	const int n = slash != NULL ? (int)(slash - network) : (int)strlen(network);

	if (!net_parse(network, &net) || (net.family == AF_INET6 && !v6))
		return 0; /* no such peer can come */
	if (net.family == AF_INET && v6)
		(void)snprintf(text, sizeof(text), MAPPED "%.*s/%u", n, network,
			MAPPED_BITS + (unsigned)net.bits);
	else
		(void)snprintf(text, sizeof(text), "%.*s/%u", n, network, (unsigned)net.bits);
	return zmq_setsockopt(socket, ZMQ_TCP_ACCEPT_FILTER, text, strlen(text));
}

int
peers_accept_networks(void *socket, char *const *networks, size_t n, bool v6)
{
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		struct net net;

		if (add_filter(socket, networks[i], v6) != 0)
			return -1;
		any = any || v6 || (net_parse(networks[i], &net) && net.family == AF_INET);
	}
	/* without a filter libzmq would accept all peers */
	return n == 0 || any ? 0 : add_filter(socket, "255.255.255.255", v6);
}

static int
watch(struct peers *p, enum peers_socket which, void *ctx, void *socket)
{
	char address[sizeof(ADDRESS) + 8];

	(void)snprintf(address, sizeof(address), ADDRESS, (int)which);
	if (zmq_socket_monitor(socket, address, ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_ACCEPT_FAILED) != 0)
		return -1;
	p->events[which] = zmq_socket(ctx, ZMQ_PAIR);
	return p->events[which] != NULL && zmq_connect(p->events[which], address) == 0 ? 0 : -1;
}

/* A peer with one of the addresses left out is a stranger, unless an engine brings its network. */
static void
read_interfaces(struct peers *p)
{
	const size_t nleft_out = nearby_read_interfaces(p->nearby);

	if (nleft_out > 0)
		log_warn("this machine has more addresses than the notifier remembers",
			LOG_U("left_out", nleft_out),
			LOG_S("cure", "all networks of engines in lmcache.networks"));
}

void
peers_begin(struct peers *p, const struct seg *seg, struct metrics_slab *slab, size_t fds)
{
	*p = (struct peers){.slab = slab,
		.nearby = nearby_new(seg),
		.connections = mem_array(fds, sizeof(*p->connections)),
		.nconnections = fds,
		.each = fds / SHARE < PEERS_EACH ? (unsigned)(fds / SHARE) : PEERS_EACH,
		.line_ms = clock_ms() + QUIET_MS};
	read_interfaces(p);
}

int
peers_accept_notices(struct peers *p, void *ctx, void *socket, const char *address,
	char *const *networks, size_t n)
{
	p->nearby_alone = n == 0 && strncmp(address, "tcp://", 6) == 0;
	return peers_accept_networks(socket, networks, n, strchr(address, '[') != NULL) == 0
		       ? watch(p, PEERS_NOTICES, ctx, socket)
		       : -1;
}

int
peers_accept_announcements(struct peers *p, void *ctx, void *socket)
{
	return watch(p, PEERS_ANNOUNCEMENTS, ctx, socket);
}

void
peers_end(struct peers *p)
{
	for (size_t i = 0; i < PEERS_N; i++) {
		if (p->events[i] != NULL)
			(void)zmq_close(p->events[i]);
		p->events[i] = NULL;
	}
	nearby_free(&p->nearby);
	free(p->connections);
	p->connections = NULL;
	p->nconnections = 0;
}

/* --- refused peers -------------------------------------------------------------------------- */

static bool
still_refused(const struct peers *p)
{
	return p->refused_why != PEERS_NOT_NEARBY || !nearby_has(p->nearby, &p->refused_ip);
}

static void
refuse(struct peers *p, enum metric_counter counter, const struct peer_ip *ip,
	enum peers_refusal why)
{
	metric_add(p->slab, counter, 1);
	if (p->refused == 0 || !still_refused(p)) {
		p->refused_ip = *ip;
		p->refused_why = why;
	}
	p->refused++;
}

/* At most one line a minute: a flood of connections does not flood the log.  An engine whose address became known
 * meanwhile needs none. */
static void
say_refused(struct peers *p)
{
	char text[INET6_ADDRSTRLEN] = "-";

	if (p->refused == 0 || clock_ms() < p->line_ms)
		return;
	if (still_refused(p)) {
		if (p->refused_ip.family != 0)
			(void)inet_ntop(p->refused_ip.family, p->refused_ip.ip, text, sizeof(text));
		log_warn("a peer was refused, further ones are only counted for a minute",
			LOG_S("from", text), LOG_U("refused", p->refused),
			LOG_S("reason", why_refused[p->refused_why].reason),
			LOG_S("cure", why_refused[p->refused_why].cure));
		p->line_ms = clock_ms() + LINES_MS;
	}
	p->refused = 0;
}

/* --- connections ---------------------------------------------------------------------------- */

static bool
take_address(const struct sockaddr_storage *ss, struct peers_connection *ret)
{
	struct sockaddr_in four;
	struct sockaddr_in6 six;

	*ret = (struct peers_connection){0};
	if (ss->ss_family == AF_INET) {
		memcpy(&four, ss, sizeof(four));
		ret->port = four.sin_port;
		ret->ip.family = AF_INET;
		memcpy(ret->ip.ip, &four.sin_addr, sizeof(four.sin_addr));
	} else if (ss->ss_family == AF_INET6) {
		memcpy(&six, ss, sizeof(six));
		ret->port = six.sin6_port;
		memcpy(ret->ip.ip, &six.sin6_addr, sizeof(six.sin6_addr));
		ret->ip.family = net_unmap(AF_INET6, ret->ip.ip);
	}
	return ret->ip.family != 0;
}

/* False: the descriptor is not a connection of TCP, perhaps not any more. */
static bool
read_peer(int fd, struct peers_connection *ret)
{
	struct sockaddr_storage ss = {0};
	socklen_t len = sizeof(ss);

	return getpeername(fd, (struct sockaddr *)&ss, &len) == 0 && take_address(&ss, ret);
}

/* Whether its own end has the port (network byte order) of the socket that should have accepted
 * it. */
static bool
was_accepted_at(int fd, uint16_t port)
{
	struct sockaddr_storage ss = {0};
	socklen_t len = sizeof(ss);
	struct peers_connection own;

	return getsockname(fd, (struct sockaddr *)&ss, &len) == 0 && take_address(&ss, &own) &&
	       own.port == port;
}

static bool
is_same(const struct peers_connection *a, const struct peers_connection *b)
{
	return a->port == b->port && memcmp(&a->ip, &b->ip, sizeof(a->ip)) == 0;
}

/* How many connections that address has.  `look`: at the descriptors, too, for libzmq does not tell what it has closed. */
static unsigned
count_of(struct peers *p, const struct peer_ip *ip, bool look)
{
	struct peers_connection now;
	unsigned n = 0;

	for (size_t fd = 0; fd < p->nconnections; fd++) {
		struct peers_connection *c = &p->connections[fd];

		if (memcmp(&c->ip, ip, sizeof(*ip)) != 0)
			continue;
		if (look && (!read_peer((int)fd, &now) || !is_same(c, &now)))
			*c = (struct peers_connection){0};
		else
			n++;
	}
	return n;
}

static bool
has_too_many(struct peers *p, const struct peer_ip *ip)
{
	return !nearby_knows(p->nearby, ip) && count_of(p, ip, false) >= p->each &&
	       count_of(p, ip, true) >= p->each;
}

/* An engine may have come since the networks were read. */
static bool
is_near(struct peers *p, const struct peer_ip *ip)
{
	if (nearby_has(p->nearby, ip))
		return true;
	nearby_refresh(p->nearby);
	return nearby_has(p->nearby, ip);
}

static enum peers_refusal
why_not(struct peers *p, enum peers_socket which, const struct peer_ip *ip)
{
	if (which == PEERS_NOTICES && p->nearby_alone && !is_near(p, ip))
		return PEERS_NOT_NEARBY;
	return has_too_many(p, ip) ? PEERS_TOO_MANY : PEERS_WELCOME;
}

/* The descriptor is libzmq's, which may have closed it.  Then it may be another peer's, which is
 * looked at twice, or a connection that this process has made, to an engine for example. */
static void
look_at(struct peers *p, enum peers_socket which, uint32_t fd, uint16_t port)
{
	struct peers_connection c;
	enum peers_refusal why;

	if (fd >= p->nconnections)
		return;
	p->connections[fd] = (struct peers_connection){0};
	if (!was_accepted_at((int)fd, port) || !read_peer((int)fd, &c))
		return;
	why = why_not(p, which, &c.ip);
	if (why == PEERS_WELCOME) {
		p->connections[fd] = c;
		return;
	}
	(void)shutdown((int)fd, SHUT_RDWR); /* libzmq then closes it */
	refuse(p, which == PEERS_NOTICES ? M_NOTICES_REFUSED : M_ANNOUNCED_REFUSED, &c.ip, why);
}

/* True if a connection was closed, and not merely accept() has failed: for want of descriptors it fails all the time. */
static bool
was_refused(uint32_t error)
{
	return error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM;
}

/* Of the listening socket, as libzmq writes its address: tcp://0.0.0.0:7500, tcp://[::]:7500.
 * In network byte order; 0: it is none of TCP. */
static uint16_t
port_of(const char *address, size_t n)
{
	const char *at = memrchr(address, ':', n);
	uint64_t port;

	if (at == NULL)
		return 0;
	at++;
	if (!decimal_read(&at, address + n, UINT16_MAX, &port) || at != address + n)
		return 0;
	return htons((uint16_t)port);
}

static void
take_event(struct peers *p, enum peers_socket which, zmq_msg_t *msg, zmq_msg_t *address)
{
	uint16_t event;
	uint32_t value;

	if (zmq_msg_size(msg) != sizeof(event) + sizeof(value))
		return;
	memcpy(&event, zmq_msg_data(msg), sizeof(event));
	memcpy(&value, (const char *)zmq_msg_data(msg) + sizeof(event), sizeof(value));
	if (event == ZMQ_EVENT_ACCEPTED)
		look_at(p, which, value, port_of(zmq_msg_data(address), zmq_msg_size(address)));
	else if (which == PEERS_NOTICES && was_refused(value))
		refuse(p, M_NOTICES_REFUSED, &(struct peer_ip){0}, PEERS_NOT_NAMED);
}

/* libzmq sends an event in two parts: what has happened, and the address of the socket.
 * False: there is none. */
static bool
take_one(struct peers *p, enum peers_socket which)
{
	zmq_msg_t event, address;
	bool got;

	(void)zmq_msg_init(&event);
	(void)zmq_msg_init(&address);
	got = zmq_msg_recv(&event, p->events[which], ZMQ_DONTWAIT) != -1;
	if (got && zmq_msg_more(&event) &&
		zmq_msg_recv(&address, p->events[which], ZMQ_DONTWAIT) != -1)
		take_event(p, which, &event, &address);
	(void)zmq_msg_close(&event);
	(void)zmq_msg_close(&address);
	return got;
}

int
peers_items(const struct peers *p, zmq_pollitem_t *items)
{
	int n = 0;

	for (size_t i = 0; i < PEERS_N; i++)
		if (p->events[i] != NULL)
			items[n++] = (zmq_pollitem_t){.socket = p->events[i], .events = ZMQ_POLLIN};
	return n;
}

bool
peers_take(struct peers *p)
{
	const uint64_t now_ms = clock_ms();
	bool any = false;

	if (now_ms >= p->refresh_ms) {
		p->refresh_ms = now_ms + REFRESH_MS;
		nearby_refresh(p->nearby);
	}
	for (enum peers_socket which = 0; which < PEERS_N; which++) {
		bool more = p->events[which] != NULL;

		for (int i = 0; more && i < BATCH; i++)
			more = take_one(p, which);
		any = any || more;
	}
	say_refused(p);
	return any;
}

bool
peers_may_notify(struct peers *p, const char *from)
{
	const struct peer_ip ip = peer_ip_of(from);

	if (!p->nearby_alone || (ip.family != 0 && is_near(p, &ip)))
		return true;
	refuse(p, M_NOTICES_REFUSED, &ip, PEERS_NOT_NEARBY);
	return false;
}
