/*
 * Which peers a ZMQ socket accepts, by their address.  libzmq closes the connection of another peer as soon as it has
 * accepted it: such a peer holds no descriptor and no message.
 *
 * Process: notifier.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct peers {
	void *events; /* what libzmq reports of the socket; NULL: all peers are accepted */
};

/* Before zmq_bind(): peers in these networks are accepted; none: all.  `v6`: the socket speaks IPv6.  0, or -1 with errno
 * of libzmq. */
int peers_accept(
	struct peers *p, void *ctx, void *socket, char *const *networks, size_t n, bool v6);
/* Counts the connections that were closed since the last call, `most` at most. */
uint64_t peers_refused(const struct peers *p, unsigned most);
void peers_end(struct peers *p);
