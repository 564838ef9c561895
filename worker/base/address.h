/* The address that a client connects from. */
#pragma once
#include <stdint.h>
#include <sys/socket.h>

/* An IPv4 address that came in an IPv6 one is an IPv4 address. */
struct address {
	sa_family_t family; /* AF_INET, AF_INET6; AF_UNSPEC: not known */
	uint8_t ip[16];     /* network byte order; IPv4: the first 4 */
};

struct in6_addr;
struct address address_of(const struct sockaddr_storage *ss);
struct address address_of_ipv6(const struct in6_addr *ip);
/* Writes the address as text into `buf` and returns it; NULL: it is not known. */
#define ADDRESS_TEXT 46
const char *address_text(const struct address *a, char buf[ADDRESS_TEXT]);
