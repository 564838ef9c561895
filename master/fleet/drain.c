#include "master/fleet/drain.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/facts.h"
#include "master/fleet/keep.h"
#include "master/fleet/state.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/core/seg.h"

#define NAMED_MAX 256 /* bytes of an endpoint or a pool as the operator writes it */
#define NEAR_MAX 5    /* similar endpoints in the answer to an unknown one */

/* Which endpoints are meant: one URL may be several, in other pools and roles. */
struct wanted {
	char endpoint[NAMED_MAX];
	char pool[NAMED_MAX]; /* "": all */
	int role;             /* enum role; -1: both */
	bool parsed;          /* `at` is the endpoint's */
	struct http_url at;
};

/* --- which endpoints are meant ------------------------------------------------------------------------ */

static int
refuse(struct evbuffer *out, const char *why, const char *word)
{
	(void)evbuffer_drain(out, evbuffer_get_length(out));
	(void)evbuffer_add_printf(out, "%s%.200s", why, word);
	return -1;
}

static bool
take_word(struct wanted *w, const char *word)
{
	if (w->endpoint[0] == '\0') {
		/* as the configuration takes them, "http://h:1/" is "http://h:1" */
		const char *why;
		size_t n = strlen(word);

		memcpy(w->endpoint, word, n + 1);
		if (n > 0 && word[n - 1] == '/')
			w->endpoint[n - 1] = '\0';
		w->parsed = http_url_parse(w->endpoint, &w->at, &why) == 0;
		return w->endpoint[0] != '\0';
	}
	if (strncmp(word, "pool=", 5) == 0) {
		memcpy(w->pool, word + 5, strlen(word + 5) + 1);
		return true;
	}
	for (enum role role = 0; role < ROLE_N; role++)
		if (strncmp(word, "role=", 5) == 0 && strcmp(word + 5, role_name(role)) == 0) {
			w->role = (int)role;
			return true;
		}
	return false;
}

/* 0 or -1, with the reason in *out. */
static int
parse(const char *what, struct wanted *w, struct evbuffer *out)
{
	char word[NAMED_MAX];

	*w = (struct wanted){.role = -1};
	while (*what != '\0') {
		size_t n = strcspn(what, " ");

		if (n >= sizeof(word))
			return refuse(out, "too long: ", what);
		memcpy(word, what, n);
		word[n] = '\0';
		if (n > 0 && !take_word(w, word))
			return refuse(
				out, "neither role=prefill, role=decode nor pool=NAME: ", word);
		what += n;
		what += *what == ' ';
	}
	return w->endpoint[0] != '\0' ? 0 : refuse(out, "an endpoint is needed", "");
}

/* However the URL is written. */
static bool
same_address(const struct http_url *a, const struct http_url *b)
{
	return strcasecmp(a->host, b->host) == 0 && a->port == b->port &&
	       strcmp(a->prefix, b->prefix) == 0;
}

static bool
names(const struct wanted *w, const struct http_url *at, const char *authority)
{
	return w->parsed ? same_address(&w->at, at) : strcasecmp(w->endpoint, authority) == 0;
}

static bool
takes(const struct wanted *w, enum role role, const char *pool)
{
	return (w->role == -1 || (enum role)w->role == role) &&
	       (w->pool[0] == '\0' || strcmp(w->pool, pool) == 0);
}

static bool
is_named(const struct wanted *w, const struct endpoint *ep)
{
	return names(w, &ep->engine.at, ep->engine.authority);
}

static bool
is_wanted(const struct wanted *w, const struct endpoint *ep)
{
	return is_named(w, ep) && takes(w, ep->engine.role, ep->engine.pool_name);
}

static bool
is_wanted_away(const struct wanted *w, const struct away *a)
{
	struct http_url at;
	const char *why;
	char *authority;
	bool yes;

	if (http_url_parse(a->key.url, &at, &why) != 0)
		return false;
	authority = engine_authority(&at);
	yes = names(w, &at, authority) && takes(w, a->key.role, a->key.pool);
	free(authority);
	return yes;
}

/* Edit distance: letters to change, add or leave out to turn one text into the other. */
static size_t
distance(const char *a, const char *b)
{
	size_t row[NAMED_MAX + 1], n = strlen(b), diagonal, up;

	n = n < NAMED_MAX ? n : NAMED_MAX;
	for (size_t k = 0; k <= n; k++)
		row[k] = k;
	for (size_t i = 0; a[i] != '\0'; i++) {
		diagonal = row[0];
		row[0] = i + 1;
		for (size_t k = 0; k < n; k++) {
			up = row[k + 1];
			row[k + 1] = diagonal + (a[i] != b[k]);
			if (up + 1 < row[k + 1])
				row[k + 1] = up + 1;
			if (row[k] + 1 < row[k + 1])
				row[k + 1] = row[k] + 1;
			diagonal = up;
		}
	}
	return row[n];
}

struct near {
	size_t distance;
	const char *url;
};

static bool
is_in(const struct near *near, size_t n, const char *url)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(near[i].url, url) == 0)
			return true;
	return false;
}

/* Names the NEAR_MAX most similar endpoints, the nearest first. */
static int
refuse_unknown(const struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	struct near near[NEAR_MAX + 1];
	size_t n = 0;

	(void)refuse(out, "no such endpoint: ", w->endpoint);
	for (size_t i = 0; i < f->norder; i++) {
		const struct endpoint *ep = f->order[i];
		const bool bare = strstr(w->endpoint, "://") == NULL;
		const size_t d =
			distance(w->endpoint, bare ? ep->engine.authority : ep->engine.url);
		size_t at = n;

		if (is_in(near, n, ep->engine.url))
			continue;
		for (; at > 0 && near[at - 1].distance > d; at--)
			near[at] = near[at - 1];
		near[at] = (struct near){d, ep->engine.url};
		n += n < NEAR_MAX;
	}
	for (size_t i = 0; i < n; i++)
		(void)evbuffer_add_printf(out, "%s%s", i == 0 ? "; there is " : ", ", near[i].url);
	return -1;
}

/* The endpoint exists, but not in the given pool or role. */
static int
refuse_pool(const struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	const char *sep = " is not there, it is ";

	(void)refuse(out, "", w->endpoint);
	for (size_t i = 0; i < f->norder; i++)
		if (is_named(w, f->order[i])) {
			(void)evbuffer_add_printf(out, "%s%s of pool %s", sep,
				role_name(f->order[i]->engine.role), f->order[i]->engine.pool_name);
			sep = ", ";
		}
	return -1;
}

/* host:port is not enough where two URLs differ in their paths. */
static int
refuse_ambiguous(const struct endpoint *a, const struct endpoint *b, struct evbuffer *out)
{
	(void)refuse(out, "which one? ", a->engine.url);
	(void)evbuffer_add_printf(out, " or %.200s", b->engine.url);
	return -1;
}

/* 0 if at least one endpoint is meant, and all that are meant have one URL. */
static int
resolve(const struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	const struct endpoint *first = NULL;
	bool named = false;

	for (size_t i = 0; i < f->norder; i++) {
		const struct endpoint *ep = f->order[i];

		named = named || is_named(w, ep);
		if (!is_wanted(w, ep))
			continue;
		if (first != NULL && !same_address(&first->engine.at, &ep->engine.at))
			return refuse_ambiguous(first, ep, out);
		first = first != NULL ? first : ep;
	}
	if (first != NULL)
		return 0;
	return named ? refuse_pool(f, w, out) : refuse_unknown(f, w, out);
}

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
		if (is_wanted(w, f->order[i]))
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
		(void)evbuffer_add_printf(out,
			"  no other %s endpoint of pool %s is up: new requests get 503\n",
			role_name(ep->engine.role), ep->engine.pool_name);
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
		if (!is_wanted_away(w, a))
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
		if (is_wanted(w, f->order[i]))
			return false;
	for (struct away *a = keep_first(f->keep); a != NULL && !away; a = TAILQ_NEXT(a, link))
		away = is_wanted_away(w, a);
	return away;
}

void
drain_print_unsaved(const struct fleet *f, struct evbuffer *out)
{
	const char *error = keep_error(f->keep);

	if (error != NULL && error[0] != '\0')
		(void)evbuffer_add_printf(out,
			"The state_file cannot be written (%s): after a restart of pdrouter the "
			"former drains hold.\n",
			error);
}

int
drain_begin(struct fleet *f, const char *what, struct evbuffer *out)
{
	struct wanted w;

	if (parse(what, &w, out) != 0 || resolve(f, &w, out) != 0)
		return -1;
	for_each_wanted(f, &w, out, drain);
	(void)evbuffer_add_printf(out,
		"It gets no new requests until `pdctl undrain`%s or its removal from the "
		"configuration.\n",
		keep_path(f->keep) != NULL ? "" : ", a restart of pdrouter,");
	return 0;
}

int
drain_end(struct fleet *f, const char *what, struct evbuffer *out)
{
	struct wanted w;

	if (parse(what, &w, out) != 0 || (!is_away(f, &w) && resolve(f, &w, out) != 0))
		return -1;
	undrain_away(f, &w, out);
	for_each_wanted(f, &w, out, undrain);
	return 0;
}

static struct drain_left
look(const struct fleet *f, const struct wanted *w)
{
	struct drain_left l = {.word = "gone"};
	struct endpoint *ep;

	TAILQ_FOREACH(ep, &f->draining, link)
	if (is_wanted(w, ep)) {
		left_add(&l, ep);
		l.word = "draining";
	}
	TAILQ_FOREACH(ep, &f->live, link)
	if (is_wanted(w, ep)) {
		left_add(&l, ep);
		if (strcmp(l.word, "serving") != 0)
			l.word = ep->drained ? "draining" : "serving";
	}
	return l;
}

int
drain_look(const struct fleet *f, const char *what, struct drain_left *ret, struct evbuffer *out)
{
	struct wanted w;

	if (parse(what, &w, out) != 0)
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
	const bool known = parse(words, &w, out) == 0;

	if (known) {
		follow(f, what, &w, out);
		*ret = look(f, &w);
	}
	evbuffer_free(out);
	return known;
}
