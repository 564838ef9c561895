#include "worker/base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

struct address
address_of(const struct sockaddr_storage *ss)
{
	const struct sockaddr_in *in = (const void *)ss;
	const struct sockaddr_in6 *in6 = (const void *)ss;
	struct address a = {.family = AF_UNSPEC};

	if (ss->ss_family == AF_INET) {
		a.family = AF_INET;
		memcpy(a.ip, &in->sin_addr, 4);
	} else if (ss->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
		a.family = AF_INET;
		memcpy(a.ip, in6->sin6_addr.s6_addr + 12, 4);
	} else if (ss->ss_family == AF_INET6) {
		a.family = AF_INET6;
		memcpy(a.ip, &in6->sin6_addr, 16);
	}
	return a;
}

const char *
address_text(const struct address *a, char buf[ADDRESS_TEXT])
{
	return a->family == AF_UNSPEC ? NULL : inet_ntop(a->family, a->ip, buf, ADDRESS_TEXT);
}
