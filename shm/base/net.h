/* IP networks: "10.1.0.0/16", "2001:db8::/32", or a lone address; who may announce which addresses. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct net {
	uint16_t family; /* AF_INET, AF_INET6 */
	uint8_t bits;    /* of the prefix */
	uint8_t ip[16];  /* network byte order */
};

/* An IPv4 address that an IPv6 socket has in its IPv6 form (::ffff:10.0.0.1) becomes the IPv4 address: returns its family. */
uint16_t net_unmap(uint16_t family, uint8_t ip[16]);
/* The network of that prefix which has the address. */
struct net net_of(uint16_t family, const uint8_t *ip, unsigned bits);
/* False if the text is none; host bits beyond the prefix must be 0. */
bool net_parse(const char *text, struct net *ret);
/* Whether the network has that address: 4 or 16 bytes, by family. */
bool net_has(const struct net *n, uint16_t family, const uint8_t *ip);

/* Which engines may be announced: "10.1.0.0/16" by themselves, "10.1.0.0/16 from 10.9.0.0/24" by others. */
struct net_announced {
	struct net engines;
	struct net from; /* family 0: each announces its own address */
};

/* False if the text is none. */
bool net_announced_parse(const char *text, struct net_announced *ret);
/* Whether the peer may announce the engine; both are of 4 or 16 bytes, by family. */
bool net_announced_allows(const struct net_announced *a, uint16_t peer_family, const uint8_t *peer,
	uint16_t family, const uint8_t *engine);
