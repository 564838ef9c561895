#include "shm/base/net.h"

#include <arpa/inet.h>
#include <string.h>

static unsigned
width(uint16_t family)
{
	return family == AF_INET ? 32 : 128;
}

/* The bits of byte i that belong to the prefix. */
static uint8_t
mask(unsigned bits, unsigned i)
{
	if (bits >= 8 * (i + 1))
		return 0xff;
	if (bits <= 8 * i)
		return 0;
	return (uint8_t)(0xffu << (8 * (i + 1) - bits));
}

uint16_t
net_unmap(uint16_t family, uint8_t ip[16])
{
	static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

	if (family != AF_INET6 || memcmp(ip, mapped, sizeof(mapped)) != 0)
		return family;
	memmove(ip, ip + sizeof(mapped), 4);
	memset(ip + 4, 0, sizeof(mapped));
	return AF_INET;
}

struct net
net_of(uint16_t family, const uint8_t *ip, unsigned bits)
{
	struct net net = {.family = family, .bits = (uint8_t)bits};

	for (unsigned i = 0; i < width(family) / 8; i++)
		net.ip[i] = ip[i] & mask(bits, i);
	return net;
}

/* One to three digits without a leading zero, at most `max`; false if it is none. */
static bool
prefix_parse(const char *text, unsigned max, uint8_t *ret)
{
	unsigned v = 0;
	size_t n = 0;

	for (; n < 3 && text[n] >= '0' && text[n] <= '9'; n++)
		v = v * 10 + (unsigned)(text[n] - '0');
	if (n == 0 || text[n] != '\0' || v > max || (n > 1 && text[0] == '0'))
		return false;
	*ret = (uint8_t)v;
	return true;
}

bool
net_parse(const char *text, struct net *ret)
{
	const char *slash = strchr(text, '/');
	size_t n = slash != NULL ? (size_t)(slash - text) : strlen(text);
	char ip[INET6_ADDRSTRLEN];
	struct net net = {.family = AF_INET};

	if (n >= sizeof(ip))
		return false;
	memcpy(ip, text, n);
	ip[n] = '\0';
	if (inet_pton(AF_INET, ip, net.ip) != 1) {
		net.family = AF_INET6;
		if (inet_pton(AF_INET6, ip, net.ip) != 1)
			return false;
	}
	net.bits = (uint8_t)width(net.family);
	if (slash != NULL && !prefix_parse(slash + 1, width(net.family), &net.bits))
		return false;
	for (unsigned i = 0; i < width(net.family) / 8; i++)
		if ((net.ip[i] & ~mask(net.bits, i)) != 0)
			return false;
	*ret = net;
	return true;
}

bool
net_has(const struct net *n, uint16_t family, const uint8_t *ip)
{
	if (family != n->family)
		return false;
	for (unsigned i = 0; i < width(family) / 8; i++)
		if (((ip[i] ^ n->ip[i]) & mask(n->bits, i)) != 0)
			return false;
	return true;
}

bool
net_announced_parse(const char *text, struct net_announced *ret)
{
	static const char word[] = " from ";
	const char *from = strstr(text, word);
	char engines[INET6_ADDRSTRLEN + sizeof("/128")];
	size_t n = from != NULL ? (size_t)(from - text) : strlen(text);

	*ret = (struct net_announced){0};
	if (n >= sizeof(engines))
		return false;
	memcpy(engines, text, n);
	engines[n] = '\0';
	return net_parse(engines, &ret->engines) &&
	       (from == NULL || net_parse(from + strlen(word), &ret->from));
}

bool
net_announced_allows(const struct net_announced *a, uint16_t peer_family, const uint8_t *peer,
	uint16_t family, const uint8_t *engine)
{
	if (!net_has(&a->engines, family, engine))
		return false;
	if (a->from.family != 0)
		return net_has(&a->from, peer_family, peer);
	return peer_family == family && memcmp(peer, engine, width(family) / 8) == 0;
}
