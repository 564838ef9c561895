/*
 * Which peers may connect to the sockets for notices and announcements, and how often.
 *
 * Networks that the configuration names: libzmq compares a peer's address with them when it accepts, and closes the
 * connection of another peer itself.  Without such networks nearby.h decides, since engines come and go while libzmq takes
 * networks before zmq_bind() alone: libzmq reports the descriptor that it has accepted, and this file ends that connection.
 * A message that libzmq has read meanwhile is dropped (peers_may_notify()).
 *
 * One address may have an eighth of all connections, unless it is this machine's or an engine's.
 *
 * Process: notifier.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "master/notifier/nearby.h"

struct metrics_slab;

enum peers_socket { PEERS_NOTICES, PEERS_ANNOUNCEMENTS, PEERS_N };
enum peers_refusal { PEERS_WELCOME, PEERS_NOT_NEARBY, PEERS_NOT_NAMED, PEERS_TOO_MANY };
#define PEERS_EACH                                                                                 \
	128 /* connections of one address at most; fewer, if there are fewer descriptors */

/* A connection, while `ip` and `port` are those of its descriptor. */
struct peers_connection {
	struct peer_ip ip;
	uint16_t port;
};

struct peers {
	struct metrics_slab *slab;
	struct nearby *nearby;
	uint64_t refresh_ms;   /* of the next look at the engines' addresses */
	bool nearby_alone;     /* notices come over TCP, and lmcache.networks is empty */
	void *events[PEERS_N]; /* what libzmq reports of the socket; NULL: there is none */
	struct peers_connection *connections; /* [nconnections], by descriptor */
	size_t nconnections;
	unsigned each; /* connections of one address */
	/* of the next log line: the first of them that is still refused */
	uint64_t refused, line_ms;
	struct peer_ip refused_ip; /* family 0: not known */
	enum peers_refusal refused_why;
};

/* Before the sandbox.  `fds`: descriptors that this process may have. */
void peers_begin(struct peers *p, const struct seg *seg, struct metrics_slab *slab, size_t fds);
/* Before zmq_bind() to the address.  `networks`: of the peers that are accepted; none: nearby ones.  0, or -1 with errno of
 * libzmq. */
int peers_accept_notices(struct peers *p, void *ctx, void *socket, const char *address,
	char *const *networks, size_t n);
/* Before zmq_bind(): libzmq accepts peers of these networks alone; none: all peers.  `v6`: the socket speaks IPv6.  0, or -1
 * with errno of libzmq. */
int peers_accept_networks(void *socket, char *const *networks, size_t n, bool v6);
/* The same for announcements, which any peer may send: notifier.c decides about each. */
int peers_accept_announcements(struct peers *p, void *ctx, void *socket);
/* Adds what is to be polled for peers_take(); returns how many there are, PEERS_N at most. */
int peers_items(const struct peers *p, zmq_pollitem_t *items);
/* Decides about connections that were accepted since the last call.  True if more may wait. */
bool peers_take(struct peers *p);
/* Whether a notice of that peer counts. */
bool peers_may_notify(struct peers *p, const char *from);
void peers_end(struct peers *p);
