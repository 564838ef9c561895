#include "master/fleet/targets.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/http.h"
#include "shm/base/mem.h"

#define TARGETS_MAX 256 /* of one name and type; the last ones in order are left out */
#define WEIGHT_MAX 100u /* of an endpoint (master/config/conf_keys.h) */

void
targets_clear(struct targets *s)
{
	for (size_t i = 0; i < s->n; i++)
		free(s->v[i].url);
	free(s->v);
	*s = (struct targets){0};
}

/* Addresses no engine has: "any" (which would be this machine), and groups. */
static bool
is_usable(const uint8_t *ip, size_t n)
{
	static const uint8_t any[16] = {0};

	if (memcmp(ip, any, n) == 0)
		return false;
	return n == 4 ? ip[0] < 224 : ip[0] != 0xff;
}

static char *
service_url(const struct dns_record *r, const char *scheme)
{
	struct http_url at;
	const char *why;
	char *url;

	if (r->port == 0 || r->target[0] == '\0') /* ".": decidedly not available (RFC 2782) */
		return NULL;
	url = mem_printf("%s://%s:%u", scheme, r->target, r->port);
	if (http_url_parse(url, &at, &why) == 0)
		return url;
	free(url);
	return NULL;
}

/* NULL if the record is of no use. */
static char *
url_of(enum dns_type type, const struct dns_record *r, const struct conf_dns *entry)
{
	const char *scheme = scheme_name(entry->scheme);
	char ip[INET6_ADDRSTRLEN];

	if (type == DNS_SRV)
		return service_url(r, scheme);
	if (!is_usable(r->ip, type == DNS_A ? 4 : 16))
		return NULL;
	(void)inet_ntop(type == DNS_A ? AF_INET : AF_INET6, r->ip, ip, sizeof(ip));
	return mem_printf(type == DNS_A ? "%s://%s:%u" : "%s://[%s]:%u", scheme, ip, entry->port);
}

static int
compare_target(const void *pa, const void *pb)
{
	const struct target *a = pa, *b = pb;
	int r = strcmp(a->url, b->url);

	return r != 0 ? r : (a->weight < b->weight) - (a->weight > b->weight);
}

/* Sorted, so that the order of the answer does not matter; duplicates and surplus entries are
 * removed. */
static void
put_in_order(struct targets *s)
{
	size_t n = 0;

	qsort(s->v, s->n, sizeof(*s->v), compare_target);
	for (size_t i = 0; i < s->n; i++) {
		bool twice = n > 0 && strcmp(s->v[n - 1].url, s->v[i].url) == 0;

		if (!twice && n < TARGETS_MAX) {
			s->v[n++] = s->v[i];
			continue;
		}
		s->left_out += !twice;
		free(s->v[i].url);
	}
	s->n = n;
}

/*
 * SRV weights are shares of the set, ours are from 1 to 100: taken as they are, scaled down if one is
 * above 100, and 0 ("hardly ever", RFC 2782) is 1.  Where all are equal they say nothing, whatever the
 * figure (CoreDNS divides 100 by the number of records): the entry's weight holds.
 */
static void
weigh(struct targets *s)
{
	uint32_t most = 0, least = UINT32_MAX;

	for (size_t i = 0; i < s->n; i++) {
		most = s->v[i].weight > most ? s->v[i].weight : most;
		least = s->v[i].weight < least ? s->v[i].weight : least;
	}
	for (size_t i = 0; i < s->n; i++) {
		uint32_t w = s->v[i].weight;

		if (most > WEIGHT_MAX)
			w = (w * WEIGHT_MAX + most / 2) / most;
		s->v[i].weight = most == least ? 0 : w > 0 ? w : 1;
	}
}

/* Of services only those of the best priority: the others are meant for when these are gone. */
static unsigned
best_priority(const struct dns_record *records, size_t n)
{
	unsigned best = UINT16_MAX;

	for (size_t i = 0; i < n; i++)
		if (records[i].port != 0 && records[i].target[0] != '\0' &&
			records[i].priority < best)
			best = records[i].priority;
	return best;
}

struct targets
targets_read(const struct dns_record *records, size_t n, enum dns_type type,
	const struct conf_dns *entry)
{
	struct targets s = {.v = mem_array(n + 1, sizeof(struct target))};
	unsigned best = best_priority(records, n);

	for (size_t i = 0; i < n; i++) {
		char *url = type != DNS_SRV || records[i].priority == best
				    ? url_of(type, &records[i], entry)
				    : NULL;

		if (url != NULL)
			s.v[s.n++] = (struct target){url, records[i].weight};
	}
	put_in_order(&s);
	weigh(&s);
	return s;
}

bool
targets_equal(const struct targets *a, const struct targets *b)
{
	if (a->n != b->n)
		return false;
	for (size_t i = 0; i < a->n; i++)
		if (compare_target(&a->v[i], &b->v[i]) != 0)
			return false;
	return true;
}

bool
targets_have(const struct targets *s, const char *url)
{
	for (size_t i = 0; i < s->n; i++)
		if (strcmp(s->v[i].url, url) == 0)
			return true;
	return false;
}
