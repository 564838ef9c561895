#include "master/notifier/nearby.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/base/net.h"
#include "shm/core/seg.h"
#include "shm/kv_events.h"

#define INTERFACES                                                                                 \
	1024 /* hosts of containers have some hundreds; a stranger costs a look at each */
#define BITS4 24
#define BITS6 64 /* of one link, by RFC 4291 */

struct interface {
	struct peer_ip own;
	struct net net;
	bool has_engine;
};

/* Addresses in order, for bsearch(). */
struct sorted {
	struct peer_ip *at; /* [max_endpoints] */
	size_t n;
};

struct nearby {
	const struct seg *seg;
	struct {
		uint64_t seq; /* of the sender */
		struct kv_sender sender;
	} * known;                    /* [max_endpoints] */
	struct interface *interfaces; /* [ninterfaces], INTERFACES at most */
	size_t ninterfaces, room;
	struct sorted engines;
	struct sorted
		networks; /* first addresses of those engines' /24 and /64 that no interface has */
};

struct peer_ip
peer_ip_of(const char *text)
{
	struct peer_ip ret = {0};
	char ip[INET6_ADDRSTRLEN];
	const size_t n = text != NULL ? strcspn(text, "%") : sizeof(ip);

	if (n >= sizeof(ip))
		return ret;
	memcpy(ip, text, n);
	ip[n] = '\0';
	if (inet_pton(AF_INET, ip, ret.ip) == 1)
		ret.family = AF_INET;
	else if (inet_pton(AF_INET6, ip, ret.ip) == 1)
		ret.family = net_unmap(AF_INET6, ret.ip);
	return ret;
}

struct nearby *
nearby_new(const struct seg *seg)
{
	struct nearby *n = mem_zero(sizeof(*n));

	n->seg = seg;
	n->known = mem_array(seg->hdr->max_endpoints, sizeof(*n->known));
	n->engines.at = mem_array(seg->hdr->max_endpoints, sizeof(*n->engines.at));
	n->networks.at = mem_array(seg->hdr->max_endpoints, sizeof(*n->networks.at));
	return n;
}

void
nearby_free(struct nearby **pn)
{
	struct nearby *n = *pn;

	if (n == NULL)
		return;
	free(n->known);
	free(n->interfaces);
	free(n->engines.at);
	free(n->networks.at);
	free(n);
	*pn = NULL;
}

/* --- interfaces ----------------------------------------------------------------------------- */

bool
nearby_add_interface(struct nearby *n, const struct peer_ip *own, unsigned bits)
{
	if (n->ninterfaces == INTERFACES)
		return false;
	if (n->ninterfaces == n->room) {
		n->room = n->room == 0 ? 16 : 2 * n->room;
		n->interfaces = mem_resize(n->interfaces, n->room, sizeof(*n->interfaces));
	}
	n->interfaces[n->ninterfaces++] =
		(struct interface){.own = *own, .net = net_of(own->family, own->ip, bits)};
	return true;
}

static bool
ip_of(const struct sockaddr *sa, struct peer_ip *ret)
{
	*ret = (struct peer_ip){0};
	if (sa == NULL || (sa->sa_family != AF_INET && sa->sa_family != AF_INET6))
		return false;
	ret->family = sa->sa_family;
	if (sa->sa_family == AF_INET)
		memcpy(ret->ip, &((const struct sockaddr_in *)(const void *)sa)->sin_addr, 4);
	else
		memcpy(ret->ip, &((const struct sockaddr_in6 *)(const void *)sa)->sin6_addr, 16);
	return true;
}

static unsigned
bits_of(const struct peer_ip *mask)
{
	unsigned n = 0;

	for (unsigned i = 0; i < sizeof(mask->ip); i++)
		n += (unsigned)__builtin_popcount(mask->ip[i]);
	return n;
}

size_t
nearby_read_interfaces(struct nearby *n)
{
	struct ifaddrs *all = NULL;
	size_t nleft_out = 0;

	if (getifaddrs(&all) != 0)
		return 0; /* an engine's /24 and /64 count all the same */
	for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
		struct peer_ip own, mask;

		if (ip_of(i->ifa_addr, &own) && ip_of(i->ifa_netmask, &mask) &&
			!nearby_add_interface(n, &own, bits_of(&mask)))
			nleft_out++;
	}
	freeifaddrs(all);
	return nleft_out;
}

/* The closest network that has the address.  One of 0 bits would have all peers: such tunnels exist. */
static struct interface *
interface_of(struct nearby *n, const struct peer_ip *ip)
{
	struct interface *best = NULL;

	for (size_t i = 0; i < n->ninterfaces; i++) {
		struct interface *it = &n->interfaces[i];

		if (it->net.bits != 0 && net_has(&it->net, ip->family, ip->ip) &&
			(best == NULL || it->net.bits > best->net.bits))
			best = it;
	}
	return best;
}

/* --- engines -------------------------------------------------------------------------------- */

static int
compare(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct peer_ip));
}

static void
sort(struct sorted *s)
{
	qsort(s->at, s->n, sizeof(*s->at), compare);
}

static bool
find(const struct sorted *s, const struct peer_ip *ip)
{
	return bsearch(ip, s->at, s->n, sizeof(*s->at), compare) != NULL;
}

static struct peer_ip
network_of(const struct peer_ip *ip)
{
	const struct net net = net_of(ip->family, ip->ip, ip->family == AF_INET ? BITS4 : BITS6);
	struct peer_ip ret = {.family = net.family};

	memcpy(ret.ip, net.ip, sizeof(ret.ip));
	return ret;
}

/* False: they are those of the last call. */
static bool
read_engines(struct nearby *n)
{
	bool changed = false;

	for (uint32_t i = 0; i < n->seg->hdr->max_endpoints; i++)
		if (kv_sender_get(n->seg, i, &n->known[i].seq, &n->known[i].sender))
			changed = true;
	if (!changed)
		return false;
	n->engines.n = 0;
	for (uint32_t i = 0; i < n->seg->hdr->max_endpoints; i++) {
		const struct kv_sender *sender = &n->known[i].sender;
		struct peer_ip ip = {0};

		if (sender->family == 0)
			continue;
		memcpy(ip.ip, sender->ip, sizeof(ip.ip));
		ip.family = net_unmap((uint16_t)sender->family, ip.ip);
		n->engines.at[n->engines.n++] = ip;
	}
	return true;
}

void
nearby_refresh(struct nearby *n)
{
	if (!read_engines(n))
		return;
	n->networks.n = 0;
	for (size_t i = 0; i < n->ninterfaces; i++)
		n->interfaces[i].has_engine = false;
	for (size_t i = 0; i < n->engines.n; i++) {
		struct interface *at = interface_of(n, &n->engines.at[i]);

		if (at != NULL)
			at->has_engine = true;
		else
			n->networks.at[n->networks.n++] = network_of(&n->engines.at[i]);
	}
	sort(&n->engines);
	sort(&n->networks);
}

/* --- peers ---------------------------------------------------------------------------------- */

static bool
is_this_machine(const struct nearby *n, const struct peer_ip *peer)
{
	static const struct in6_addr loopback = IN6ADDR_LOOPBACK_INIT;

	if (peer->family == AF_INET ? peer->ip[0] == IN_LOOPBACKNET
				    : memcmp(peer->ip, &loopback, sizeof(loopback)) == 0)
		return true;
	for (size_t i = 0; i < n->ninterfaces; i++)
		if (compare(&n->interfaces[i].own, peer) == 0)
			return true;
	return false;
}

bool
nearby_knows(const struct nearby *n, const struct peer_ip *peer)
{
	return find(&n->engines, peer) || is_this_machine(n, peer);
}

bool
nearby_has(const struct nearby *n, const struct peer_ip *peer)
{
	const struct peer_ip network = network_of(peer);

	if (nearby_knows(n, peer) || find(&n->networks, &network))
		return true;
	for (size_t i = 0; i < n->ninterfaces; i++)
		if (n->interfaces[i].has_engine &&
			net_has(&n->interfaces[i].net, peer->family, peer->ip))
			return true;
	return false;
}
