/*
 * Which peers count as engines while `lmcache.networks` names none: this machine, and the networks of the engines of
 * pools with `connector: lmcache`.  The network of an engine is the one of the router's interface that has the engine's
 * address, else its /24 (IPv4) or /64 (IPv6).
 *
 * Process: notifier.  The master writes the engines' addresses into shm/kv_events.h, after each publication.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/core/seg.h"

/* An address of a peer; family 0: none.  Bytes after the address are 0. */
struct peer_ip {
	uint16_t family; /* AF_INET, also of an IPv4 peer of an IPv6 socket; AF_INET6 */
	uint8_t ip[16];
};

/* Of an IP literal as libzmq has it, a scope (fe80::1%eth0) included; NULL: none. */
struct peer_ip peer_ip_of(const char *text);

struct nearby;

/* Without an interface and without an engine: loopback alone. */
struct nearby *nearby_new(const struct seg *seg);
void nearby_free(struct nearby **);
/* Reads the addresses of the machine's interfaces, which takes a socket: before the sandbox.
 * Returns how many of them found no room, and do not count. */
size_t nearby_read_interfaces(struct nearby *n);
/* One of them.  False: no room, there are 1,024. */
bool nearby_add_interface(struct nearby *n, const struct peer_ip *own, unsigned bits);
/* Takes over what the master has published since the last call. */
void nearby_refresh(struct nearby *n);
bool nearby_has(const struct nearby *n, const struct peer_ip *peer);
/* Whether the peer has the address of an engine or of this machine, and not merely one of their networks. */
bool nearby_knows(const struct nearby *n, const struct peer_ip *peer);
