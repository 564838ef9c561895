#include "master/fleet/weight.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/keep.h"
#include "master/fleet/publish.h"
#include "master/fleet/wanted.h"
#include "shm/base/decimal.h"

/* A number of 1 to 100, or 0 for `default`; *what is then behind it. */
static bool
take_weight(const char **what, uint32_t *ret)
{
	static const char word[] = "default";
	const char *at = *what, *end = at + strcspn(at, " ");
	uint64_t n = 0;

	*what = end + (*end == ' ');
	*ret = 0;
	if ((size_t)(end - at) == strlen(word) && memcmp(at, word, strlen(word)) == 0)
		return true;
	if (!decimal_read(&at, end, CONF_WEIGHT_MAX, &n) || at != end)
		return false;
	*ret = (uint32_t)n;
	return n > 0;
}

static void
set(struct endpoint *ep, uint32_t weight, struct evbuffer *out)
{
	const uint32_t was = endpoint_weight(ep);
	const bool changed = ep->weight != weight;

	ep->weight = weight;
	ep->weight_configured = ep->engine.conf->weight;
	(void)evbuffer_add_printf(out, "weight %" PRIu32 "%s: %s, %s of pool %s: was %" PRIu32 "\n",
		endpoint_weight(ep), weight == 0 ? " as configured" : "", ep->engine.url,
		role_name(ep->engine.role), ep->engine.pool_name, was);
	if (changed)
		endpoint_log_weight(ep,
			weight != 0 ? "weight set by pdctl" : "weight is the configured one again");
}

/* Ends the weights of endpoints that are not there now. */
static bool
end_away(struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	bool any = false;

	for (struct away *a = keep_first(f->keep), *next; a != NULL; a = next) {
		next = TAILQ_NEXT(a, link);
		if (a->key.weight == 0 || !wanted_is_away(w, a))
			continue;
		any = true;
		(void)evbuffer_add_printf(out,
			"weight as configured: %s, %s of pool %s: not there now\n", a->key.url,
			role_name(a->key.role), a->key.pool);
		keep_forget(f->keep, a);
	}
	return any;
}

static void
set_all(struct fleet *f, const struct wanted *w, uint32_t weight, struct evbuffer *out)
{
	for (size_t i = 0; i < f->norder; i++)
		if (wanted_is(w, f->order[i]))
			set(f->order[i], weight, out);
	publish_now(f->publish);
	keep_changed(f->keep);
}

int
weight_set(struct fleet *f, const char *what, struct evbuffer *out)
{
	struct wanted w;
	uint32_t weight;
	bool away;

	if (!take_weight(&what, &weight)) {
		(void)evbuffer_add_printf(
			out, "a weight of 1 to %d is needed, or the word default", CONF_WEIGHT_MAX);
		return -1;
	}
	if (wanted_parse(what, &w, out) != 0)
		return -1;
	away = weight == 0 && end_away(f, &w, out);
	if (!away && wanted_resolve(f, &w, out) != 0)
		return -1;
	set_all(f, &w, weight, out);
	return 0;
}

void
weight_follow(struct fleet *f, const char *what)
{
	struct evbuffer *out = evbuffer_new();

	(void)weight_set(f, what, out);
	evbuffer_free(out);
}
