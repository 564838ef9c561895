#include "master/notifier/peers.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <zmq.h>

#include "shm/base/net.h"

#define EVENTS "inproc://pdrouter-peers"
#define FILTER_TEXT 80
#define MAPPED "::ffff:" /* an IPv4 peer of a socket that speaks IPv6 */
#define MAPPED_BITS 96

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
peers_accept(struct peers *p, void *ctx, void *socket, char *const *networks, size_t n, bool v6)
{
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		struct net net;

		if (add_filter(socket, networks[i], v6) != 0)
			return -1;
		any = any || v6 || (net_parse(networks[i], &net) && net.family == AF_INET);
	}
	if (n == 0)
		return 0;
	/* without a filter libzmq would accept all peers */
	if (!any && add_filter(socket, "255.255.255.255", v6) != 0)
		return -1;
	if (zmq_socket_monitor(socket, EVENTS, ZMQ_EVENT_ACCEPT_FAILED) != 0)
		return -1;
	p->events = zmq_socket(ctx, ZMQ_PAIR);
	return p->events != NULL && zmq_connect(p->events, EVENTS) == 0 ? 0 : -1;
}

/* True if a connection was closed, and not merely accept() has failed: for want of descriptors it fails all the time. */
static bool
was_refused(zmq_msg_t *event)
{
	uint32_t error;

	if (zmq_msg_size(event) != sizeof(uint16_t) + sizeof(error))
		return false;
	memcpy(&error, (const char *)zmq_msg_data(event) + sizeof(uint16_t), sizeof(error));
	return error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM;
}

uint64_t
peers_refused(const struct peers *p, unsigned most)
{
	uint64_t refused = 0;
	zmq_msg_t part;

	for (unsigned i = 0; p->events != NULL && i < most; i++) {
		bool got, first = true;

		(void)zmq_msg_init(&part);
		/* the event, then the address of the socket */
		while ((got = zmq_msg_recv(&part, p->events, ZMQ_DONTWAIT) != -1)) {
			refused += first && was_refused(&part);
			first = false;
			if (!zmq_msg_more(&part))
				break;
		}
		(void)zmq_msg_close(&part);
		if (!got)
			break;
	}
	return refused;
}

void
peers_end(struct peers *p)
{
	if (p->events != NULL)
		(void)zmq_close(p->events);
	p->events = NULL;
}
