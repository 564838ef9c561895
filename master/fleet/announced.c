#include "master/fleet/announced.h"

#include <assert.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/discover.h"
#include "master/fleet/endpoint.h"
#include "master/probe/resolve.h"
#include "shm/announce.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/base/net.h"
#include "shm/core/suspect.h"

/* removes engines that have fallen silent, and reads what a wake-up has left (fleet.c) */
#define POLL_MS 1000

/* Copies of the announcements, since a restarted notifier has lost its own. */
struct announced_engines {
	struct fleet *fleet;
	found_fn *found;
	struct event *turn;
	bool held; /* the engines speak to another instance */
	struct announcement known[ANNOUNCED_MAX];
	size_t n;
};

static void
note(struct announced_engines *a, const struct announcement *one)
{
	uint64_t seen_ms = one->seen_ms;
	size_t i = 0;

	while (i < a->n &&
		(a->known[i].role != one->role || strcmp(a->known[i].http, one->http) != 0))
		i++;
	if (i == ANNOUNCED_MAX)
		return;
	if (i == a->n)
		a->n++;
	else if (a->known[i].seen_ms > seen_ms)
		seen_ms =
			a->known[i]
				.seen_ms; /* of announced_hold(), or of a notifier that has died */
	a->known[i] = *one;
	a->known[i].seen_ms = seen_ms;
}

static void
forget(struct announced_engines *a, uint64_t now_ms, uint64_t forget_ms)
{
	size_t kept = 0;

	for (size_t i = 0; i < a->n; i++)
		if (now_ms <= a->known[i].seen_ms + forget_ms)
			a->known[kept++] = a->known[i];
	a->n = kept;
}

static bool
has_network(const struct conf_pool *pool, const struct ep_addr *addr)
{
	struct net_announced net;

	for (size_t i = 0; i < pool->nannounce_networks; i++)
		if (net_announced_parse(pool->announce_networks[i], &net) &&
			net_has(&net.engines, addr->family, addr->ip))
			return true;
	return false;
}

/* The first pool with a network the address is in, or NULL. */
static const struct conf_pool *
pool_of(const struct conf *conf, const struct announcement *one)
{
	struct http_url at;
	struct ep_addr addr;
	char url[ANNOUNCED_ADDRESS + 8];
	const char *why;

	(void)snprintf(url, sizeof(url), "http://%s", one->http);
	if (http_url_parse(url, &at, &why) != 0 || !resolve_literal(at.host, at.port, &addr))
		return NULL;
	for (size_t i = 0; i < conf->npools; i++)
		if (has_network(&conf->pools[i], &addr))
			return &conf->pools[i];
	return NULL;
}

static int
compare(const void *pa, const void *pb)
{
	const struct announcement *a = pa, *b = pb;
	int r = strcmp(a->http, b->http);

	return r != 0 ? r : (a->role > b->role) - (a->role < b->role);
}

/* Reports the engines that belong to this pool; pools[i] is the pool of known[i]. */
static void
report_pool(struct announced_engines *a, const struct conf_pool *const pools[],
	const struct conf_pool *pool)
{
	struct found *list = mem_array(a->n + 1, sizeof(*list));
	char(*urls)[ANNOUNCED_ADDRESS + 8] = mem_array(a->n + 1, sizeof(*urls));
	size_t n = 0;

	for (size_t i = 0; i < a->n; i++) {
		const struct announcement *one = &a->known[i];

		if (pools[i] != pool)
			continue;
		(void)snprintf(urls[n], sizeof(urls[n]), "http://%s", one->http);
		list[n].as = (struct conf_endpoint){.url = urls[n], .role = one->role, .weight = 1};
		memcpy(list[n].kv_addr, one->kv, sizeof(list[n].kv_addr));
		n++;
	}
	a->found(a->fleet, pool->name, DISCOVER_ANNOUNCED, list, n);
	free(urls);
	free(list);
}

static void
update(struct announced_engines *a)
{
	const struct conf *conf = a->fleet->conf;
	const struct conf_pool *pools[ANNOUNCED_MAX];
	struct timeval tv = clock_tv(POLL_MS);
	struct announcement one;

	if (conf == NULL || conf->announce_listen == NULL) {
		a->n = 0;
		(void)event_del(a->turn);
		return;
	}
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++)
		if (announce_get(a->fleet->seg, i, &one) &&
			!suspect(SUSPECT_ANNOUNCEMENTS, i,
				one.seen_ms > clock_ms() + ANNOUNCED_AHEAD_MS))
			note(a, &one);
	if (!a->held)
		forget(a, clock_ms(), conf->announce_forget_ms);
	qsort(a->known, a->n, sizeof(a->known[0]), compare);
	for (size_t i = 0; i < a->n; i++)
		pools[i] = pool_of(conf, &a->known[i]);
	for (size_t i = 0; i < conf->npools; i++)
		if (conf->pools[i].nannounce_networks > 0)
			report_pool(a, pools, &conf->pools[i]);
	(void)event_add(a->turn, &tv);
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	update(arg);
}

struct announced_engines *
announced_new(struct fleet *f, found_fn *found)
{
	struct announced_engines *a = MEM_NEW(struct announced_engines);

	a->fleet = f;
	a->found = found;
	a->turn = event_new(f->base, -1, 0, on_turn, a);
	assert(a->turn != NULL);
	return a;
}

void
announced_free(struct announced_engines **pa)
{
	struct announced_engines *a = *pa;

	if (a == NULL)
		return;
	event_free(a->turn);
	free(a);
	*pa = NULL;
}

void
announced_changed(struct announced_engines *a)
{
	update(a);
}

void
announced_hold(struct announced_engines *a, bool hold)
{
	for (size_t i = 0; i < a->n; i++)
		a->known[i].seen_ms = clock_ms();
	a->held = hold;
}

void
announced_pass(
	const struct announced_engines *a, void (*fn)(const char *line, void *arg), void *arg)
{
	char line[2 * ANNOUNCED_ADDRESS + 32];

	for (size_t i = 0; i < a->n; i++) {
		(void)snprintf(line, sizeof(line), "%s %s %s", role_name(a->known[i].role),
			a->known[i].http, a->known[i].kv);
		fn(line, arg);
	}
}

void
announced_take(struct announced_engines *a, const char *line)
{
	struct announcement one = {.seen_ms = clock_ms()};
	char role[16];

	static_assert(ANNOUNCED_ADDRESS == 64, "the widths below");
	if (sscanf(line, "%15s %63s %63s", role, one.http, one.kv) != 3)
		return;
	for (one.role = 0; one.role < ROLE_N; one.role++)
		if (strcmp(role, role_name(one.role)) == 0)
			break;
	if (one.role == ROLE_N)
		return;
	note(a, &one);
	if (a->fleet->conf != NULL)
		update(a);
}
