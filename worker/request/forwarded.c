#include "worker/request/forwarded.h"

#include <arpa/inet.h>
#include <string.h>

#include "proto/http/http.h"
#include "shm/base/conf.h"
#include "shm/base/net.h"
#include "worker/base/lines.h"

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

/* --- for the engines ---------------------------------------------------------------------------- */

static const char for_name[] = "x-forwarded-for", proto_name[] = "x-forwarded-proto",
		  forwarded_name[] = "forwarded";
/* the names of the lines, their ends, an address in each of two, and what stands around them */
#define OWN_BYTES 256

bool
forwarded_is_ours(struct span name)
{
	return span_is(name, for_name) || span_is(name, proto_name) ||
	       span_is(name, forwarded_name);
}

size_t
forwarded_room(const struct http_head *h)
{
	size_t room = OWN_BYTES;

	for (size_t i = 0; i < h->nheaders; i++)
		if (forwarded_is_ours(h->headers[i].name))
			room += h->headers[i].value.n + strlen(", ");
	return room;
}

/* Writes the values of all headers of this name as one list (RFC 9110, 5.3).  False: there is none. */
static bool
put_list(struct lines *l, const struct http_head *h, const char *name)
{
	bool any = false;

	for (size_t i = 0; i < h->nheaders; i++) {
		const struct http_header *f = &h->headers[i];

		if (f->hop || f->value.n == 0 || !span_is(f->name, name))
			continue;
		lines_put(l, any ? ", " : "");
		lines_add(l, f->value.p, f->value.n);
		any = true;
	}
	return any;
}

static void
put_for(const struct forwarded_peer *peer, const struct http_head *h, struct lines *l)
{
	const size_t before = l->n;
	char buf[ADDRESS_TEXT];
	const char *text = address_text(&peer->address, buf);
	bool any;

	lines_put(l, "X-Forwarded-For: ");
	any = peer->proxy && put_list(l, h, for_name);
	if (any && text != NULL)
		lines_put(l, ", ");
	if (text != NULL)
		lines_put(l, text);
	else if (!any) {
		l->n = before;
		return;
	}
	lines_put(l, "\r\n");
}

/* RFC 7239: an IPv6 address stands in brackets and quotes. */
static void
put_forwarded(const struct forwarded_peer *peer, const struct http_head *h, struct lines *l)
{
	const bool six = peer->address.family == AF_INET6;
	char buf[ADDRESS_TEXT];
	const char *text = address_text(&peer->address, buf);

	lines_put(l, "Forwarded: ");
	if (peer->proxy && put_list(l, h, forwarded_name))
		lines_put(l, ", ");
	lines_put(l, six ? "for=\"[" : "for=");
	lines_put(l, text != NULL ? text : "unknown");
	lines_put(l, six ? "]\";proto=" : ";proto=");
	lines_put(l, peer->proto);
	lines_put(l, "\r\n");
}

/* A proxy has seen what its client speaks. */
static void
put_proto(const struct forwarded_peer *peer, const struct http_head *h, struct lines *l)
{
	lines_put(l, "X-Forwarded-Proto: ");
	if (!peer->proxy || !put_list(l, h, proto_name))
		lines_put(l, peer->proto);
	lines_put(l, "\r\n");
}

void
forwarded_lines(const struct forwarded_peer *peer, const struct http_head *h, struct lines *l)
{
	put_for(peer, h, l);
	put_forwarded(peer, h, l);
	put_proto(peer, h, l);
}
