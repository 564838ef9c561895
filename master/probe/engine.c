#include "master/probe/engine.h"

#include <assert.h>
#include <stdlib.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"

#define SHORTAGE_LOG_MS 10000
/* In an interval.  Probes of the same turn share the master's wake-ups, which cost more than a probe. */
#define TURNS 20

char *
engine_authority(const struct http_url *at)
{
	return mem_printf(at->ipv6 ? "[%s]:%u" : "%s:%u", at->host, (unsigned)at->port);
}

void
engine_init(struct engine *e, struct prober *prober, const struct conf_pool *pool,
	const struct conf_endpoint *conf, uint64_t number)
{
	const char *why;
	int r = http_url_parse(conf->url, &e->at, &why);

	assert(r == 0); /* the configuration accepted the URL by the same function */
	e->prober = prober;
	e->url = mem_strdup(conf->url);
	e->pool_name = mem_strdup(pool->name);
	e->authority = engine_authority(&e->at);
	e->role = conf->role;
	e->number = number;
	e->slot = ENGINE_NO_SLOT;
}

void
engine_fini(struct engine *e)
{
	assert(e->health == NULL && e->scrape == NULL);
	models_clear(&e->models);
	tls_memory_clear(&e->memory);
	free(e->url);
	free(e->pool_name);
	free(e->authority);
}

uint64_t
engine_wait_ms(const struct engine *e, uint64_t now_ms, uint64_t interval_ms)
{
	/* Multiples of the golden ratio's fraction, in 2^-32, spread any run of numbers evenly. */
	const uint32_t fraction = (uint32_t)(e->number * 2654435769u);
	const uint64_t turn_ms = interval_ms < TURNS ? 1 : interval_ms / TURNS;
	const uint64_t turns = interval_ms / turn_ms;
	uint64_t phase = ((turns * fraction) >> 32) * turn_ms;
	uint64_t wait = interval_ms - (now_ms + interval_ms - phase) % interval_ms;

	return wait < interval_ms / 2 ? wait + interval_ms : wait;
}

void
engine_shortage(struct engine *e, const char *why)
{
	struct prober *p = e->prober;
	uint64_t now = clock_ms();

	if (p->shortage_ms != 0 && now - p->shortage_ms < SHORTAGE_LOG_MS)
		return;
	p->shortage_ms = now;
	log_error("engines cannot be probed: this machine lacks resources; their states stay",
		LOG_S("reason", why));
}

struct tls_client *
engine_tls(const struct engine *e)
{
	return e->at.tls ? e->pool->tls.client : NULL;
}

const char *
engine_key(const struct engine *e)
{
	return e->found && e->pool->trust_found == 0 ? NULL : e->pool->api_key;
}
