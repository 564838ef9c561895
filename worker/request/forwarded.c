#include "worker/request/forwarded.h"

#include <arpa/inet.h>
#include <string.h>

#include "proto/http/http.h"
#include "shm/base/conf.h"
#include "shm/base/net.h"

bool
forwarded_by_proxy(const struct conf *conf, const struct address *a)
{
	for (size_t i = 0; i < conf->nproxies; i++)
		if (net_has(&conf->proxies[i], a->family, a->ip))
			return true;
	return false;
}

/* Without what may stand around the address: brackets, a port. */
static struct span
bare(struct span s)
{
	const char *colon;

	if (s.n == 0)
		return s;
	if (s.p[0] == '[') {
		const char *end = memchr(s.p, ']', s.n);

		return (struct span){s.p + 1, end != NULL ? (size_t)(end - s.p - 1) : 0};
	}
	colon = memchr(s.p, ':', s.n);
	if (colon != NULL && memrchr(s.p, ':', s.n) == colon) /* one alone: a port follows it */
		s.n = (size_t)(colon - s.p);
	return s;
}

/* False: it is no address, such as "unknown". */
static bool
read_address(struct span s, struct address *ret)
{
	char text[ADDRESS_TEXT];
	struct in6_addr six;

	s = bare(s);
	if (s.n == 0 || s.n >= sizeof(text))
		return false;
	memcpy(text, s.p, s.n);
	text[s.n] = '\0';
	*ret = (struct address){.family = AF_INET};
	if (inet_pton(AF_INET, text, ret->ip) == 1)
		return true;
	if (inet_pton(AF_INET6, text, &six) != 1)
		return false;
	*ret = address_of_ipv6(&six);
	return true;
}

struct address
forwarded_client(const struct conf *conf, const struct address *from, const struct http_head *h)
{
	struct address a = *from, next;

	if (!forwarded_by_proxy(conf, &a))
		return a;
	/* from the last proxy to the first; several headers are one list (RFC 9110, 5.3) */
	for (size_t i = h->nheaders; i > 0; i--) {
		struct span list = h->headers[i - 1].value, member;

		if (!span_is(h->headers[i - 1].name, "x-forwarded-for"))
			continue;
		while (http_list_last(&list, &member)) {
			if (member.n == 0)
				continue;
			if (!read_address(member, &next))
				return a;
			a = next;
			if (!forwarded_by_proxy(conf, &a))
				return a;
		}
	}
	return a;
}
