#include "master/fleet/drain.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/facts.h"
#include "master/fleet/keep.h"
#include "master/fleet/state.h"
#include "master/fleet/wanted.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/core/seg.h"

/* --- drain and undrain ------------------------------------------------------------------- */

/* Adds what is left at the endpoint. */
static void
left_add(struct drain_left *l, const struct endpoint *ep)
{
	const struct seg *seg = ep->fleet->seg;

	if (ep->engine.slot == ENGINE_NO_SLOT)
		return;
	/* in this order: load_kv_sum() */
	l->in_flight += load_count(seg, ep->engine.slot);
	l->kv += load_kv_sum(seg, ep->engine.slot);
}

static struct drain_left
left_at(const struct endpoint *ep)
{
	struct drain_left l = {0};

	left_add(&l, ep);
	return l;
}

static void
print_endpoint(struct evbuffer *out, const struct endpoint *ep, const char *word)
{
	const struct drain_left l = left_at(ep);

	(void)evbuffer_add_printf(out, "%s %s, %s of pool %s: %" PRIu32 " in flight", word,
		ep->engine.url, role_name(ep->engine.role), ep->engine.pool_name, l.in_flight);
	if (ep->engine.role == ROLE_PREFILL)
		(void)evbuffer_add_printf(out, ", %" PRIu32 " KV outstanding", l.kv);
	(void)evbuffer_add_printf(out, "\n");
}

static bool
others_serve(const struct fleet *f, const struct endpoint *ep)
{
	for (size_t i = 0; i < f->norder; i++) {
		const struct endpoint *o = f->order[i];

		if (o->engine.pool == ep->engine.pool && o->engine.role == ep->engine.role &&
			!o->drained && o->state == EP_UP)
			return true;
	}
	return false;
}

/* Calls `act` for each endpoint that is meant, and saves what has changed. */
static void
for_each_wanted(struct fleet *f, const struct wanted *w, struct evbuffer *out,
	void (*act)(struct endpoint *ep, struct evbuffer *out))
{
	for (size_t i = 0; i < f->norder; i++)
		if (wanted_is(w, f->order[i]))
			act(f->order[i], out);
	keep_changed(f->keep);
}

static void
drain(struct endpoint *ep, struct evbuffer *out)
{
	const bool was = ep->drained;

	state_drain(ep);
	print_endpoint(out, ep, was ? "draining as before:" : "draining:");
	if (!was)
		log_info("endpoint drained by pdctl", LOG_S("url", ep->engine.url),
			LOG_S("role", role_name(ep->engine.role)),
			LOG_S("pool", ep->engine.pool_name),
			LOG_U("in_flight", left_at(ep).in_flight),
			LOG_U("kv_outstanding", left_at(ep).kv));
	if (!others_serve(ep->fleet, ep))
		(void)evbuffer_add_printf(out, "  no other %s endpoint of pool %s is up: %s\n",
			role_name(ep->engine.role), ep->engine.pool_name,
			ep->engine.role == ROLE_PREFILL
				? "decode endpoints do prefill if `fallback` lets them, else new requests get 503"
				: "new requests get 503");
}

/* "undrained, ejection ended" */
static void
ended_text(unsigned ended, char *buf, size_t size)
{
	static const struct {
		unsigned what;
		const char *text;
	} words[] = {{ENDED_DRAIN, "undrained"}, {ENDED_EJECTION, "ejection ended"},
		{ENDED_BUSY, "no longer busy"}};
	size_t at = 0;

	(void)snprintf(buf, size, "was not drained");
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]) && at < size; i++)
		if ((ended & words[i].what) != 0)
			at += (size_t)snprintf(
				buf + at, size - at, "%s%s", at > 0 ? ", " : "", words[i].text);
}

static void
undrain(struct endpoint *ep, struct evbuffer *out)
{
	const unsigned ended = state_undrain(ep);
	const struct facts x = facts_of(ep, clock_ms());
	char text[64];

	ended_text(ended, text, sizeof(text));
	(void)evbuffer_add_printf(out, "%s: %s, %s of pool %s: %s\n", text, ep->engine.url,
		role_name(ep->engine.role), ep->engine.pool_name, facts_state(&x));
	if ((ended & ENDED_DRAIN) != 0)
		log_info("endpoint undrained by pdctl", LOG_S("url", ep->engine.url),
			LOG_S("role", role_name(ep->engine.role)),
			LOG_S("pool", ep->engine.pool_name), LOG_S("state", facts_state(&x)));
}

/* Ends the drains of endpoints that are not there now. */
static void
undrain_away(struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	for (struct away *a = keep_first(f->keep), *next; a != NULL; a = next) {
		next = TAILQ_NEXT(a, link);
		if (a->key.weight > 0 || !wanted_is_away(w, a))
			continue;
		(void)evbuffer_add_printf(out, "undrained: %s, %s of pool %s: not there now\n",
			a->key.url, role_name(a->key.role), a->key.pool);
		log_info("endpoint undrained by pdctl", LOG_S("url", a->key.url),
			LOG_S("role", role_name(a->key.role)), LOG_S("pool", a->key.pool),
			LOG_S("state", "away"));
		keep_forget(f->keep, a);
	}
}

/* Only endpoints that are not there now are meant. */
static bool
is_away(const struct fleet *f, const struct wanted *w)
{
	bool away = false;

	for (size_t i = 0; i < f->norder; i++)
		if (wanted_is(w, f->order[i]))
			return false;
	for (struct away *a = keep_first(f->keep); a != NULL && !away; a = TAILQ_NEXT(a, link))
		away = a->key.weight == 0 && wanted_is_away(w, a);
	return away;
}

void
drain_print_unsaved(const struct fleet *f, const char *what, struct evbuffer *out)
{
	const char *error = keep_error(f->keep);

	if (error != NULL && error[0] != '\0')
		(void)evbuffer_add_printf(out,
			"The state_file cannot be written (%s): after a restart of pdrouter the "
			"former %s hold.\n",
			error, what);
}

int
drain_begin(struct fleet *f, const char *what, struct evbuffer *out)
{
	struct wanted w;
	bool one;

	if (wanted_parse(what, &w, out) != 0 || wanted_resolve(f, &w, out) != 0)
		return -1;
	one = w.endpoint[0] != '\0';
	for_each_wanted(f, &w, out, drain);
	(void)evbuffer_add_printf(out,
		"%s no new requests until `pdctl undrain`%s or %s removal from the "
		"configuration.\n",
		one ? "It gets" : "They get",
		keep_path(f->keep) != NULL ? "" : ", a restart of pdrouter,",
		one ? "its" : "their");
	return 0;
}

int
drain_end(struct fleet *f, const char *what, struct evbuffer *out)
{
	struct wanted w;

	if (wanted_parse(what, &w, out) != 0 ||
		(!is_away(f, &w) && wanted_resolve(f, &w, out) != 0))
		return -1;
	undrain_away(f, &w, out);
	for_each_wanted(f, &w, out, undrain);
	return 0;
}

/* Requests go there. */
static bool
is_up(const struct endpoint *ep)
{
	return ep->engine.slot != ENGINE_NO_SLOT &&
	       ep_state_get(ep->fleet->seg, ep->engine.slot) == EP_UP;
}

static struct drain_left
look(const struct fleet *f, const struct wanted *w)
{
	struct drain_left l = {.word = "gone"};
	struct endpoint *ep;

	TAILQ_FOREACH(ep, &f->draining, link)
	if (wanted_is(w, ep)) {
		left_add(&l, ep);
		l.word = "draining";
	}
	TAILQ_FOREACH(ep, &f->live, link)
	if (wanted_is(w, ep)) {
		left_add(&l, ep);
		if (strcmp(l.word, "serving") != 0)
			l.word = ep->drained ? "draining" : "serving";
		l.up += is_up(ep);
		l.n++;
	}
	return l;
}

int
drain_look(const struct fleet *f, const char *what, struct drain_left *ret, struct evbuffer *out)
{
	struct wanted w;

	if (wanted_parse(what, &w, out) != 0)
		return -1;
	*ret = look(f, &w);
	return 0;
}

/* --- an older instance ------------------------------------------------------------------- */

static void
follow(struct fleet *f, enum drain_what what, const struct wanted *w, struct evbuffer *out)
{
	if (what == DRAIN_END)
		undrain_away(f, w, out);
	if (what != DRAIN_LOOK)
		for_each_wanted(f, w, out, what == DRAIN_BEGIN ? drain : undrain);
}

bool
drain_follow(struct fleet *f, enum drain_what what, const char *words, struct drain_left *ret)
{
	struct evbuffer *out = evbuffer_new(); /* for the operator: the newest instance answers */
	struct wanted w;
	const bool known = wanted_parse(words, &w, out) == 0;

	if (known) {
		follow(f, what, &w, out);
		*ret = look(f, &w);
	}
	evbuffer_free(out);
	return known;
}
