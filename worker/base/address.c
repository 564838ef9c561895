#include "worker/base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>

#include "worker/base/lines.h"

struct address
address_of_ipv6(const struct in6_addr *ip)
{
	const bool mapped = IN6_IS_ADDR_V4MAPPED(ip);
	struct address a = {.family = mapped ? AF_INET : AF_INET6};

	memcpy(a.ip, ip->s6_addr + (mapped ? 12 : 0), mapped ? 4 : 16);
	return a;
}

struct address
address_of(const struct sockaddr_storage *ss)
{
	const struct sockaddr_in *in = (const void *)ss;
	const struct sockaddr_in6 *in6 = (const void *)ss;
	struct address a = {.family = AF_UNSPEC};

	if (ss->ss_family == AF_INET6)
		return address_of_ipv6(&in6->sin6_addr);
	if (ss->ss_family == AF_INET) {
		a.family = AF_INET;
		memcpy(a.ip, &in->sin_addr, 4);
	}
	return a;
}

/* Without inet_ntop(), which prints: it would cost 1% of a small request. */
static const char *
ipv4_text(const uint8_t ip[4], char buf[ADDRESS_TEXT])
{
	struct lines l = {buf, ADDRESS_TEXT, 0};

	for (int i = 0; i < 4; i++) {
		lines_number(&l, ip[i]);
		lines_add(&l, i < 3 ? "." : "", 1); /* the last one with its NUL */
	}
	return buf;
}

const char *
address_text(const struct address *a, char buf[ADDRESS_TEXT])
{
	if (a->family == AF_INET)
		return ipv4_text(a->ip, buf);
	return a->family == AF_INET6 ? inet_ntop(AF_INET6, a->ip, buf, ADDRESS_TEXT) : NULL;
}
