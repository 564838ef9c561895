#include "master/fleet/keep.h"

#include <assert.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/publish.h"
#include "master/fleet/state.h"
#include "master/fleet/state_file.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"

#define RETRY_MS (10 * UINT64_C(1000)) /* after a write that failed */
#define SLOW_MS 5000                   /* a write that takes longer is reported */

struct keep {
	struct fleet *fleet;
	struct state_file *file; /* NULL: none */
	struct membuf written;   /* the text that the file has */
	struct membuf writing;   /* the text that it is to have when the write has ended */
	uint64_t begun_ms;       /* that write */
	bool held;               /* another instance writes the file */
	struct away_list away;
	size_t naway;
	struct event *turn; /* the next one to forget, or the next try to write */
};

static void on_turn(evutil_socket_t fd, short what, void *arg);

struct keep *
keep_new(struct fleet *f)
{
	struct keep *k = MEM_NEW(struct keep);

	k->fleet = f;
	TAILQ_INIT(&k->away);
	k->turn = evtimer_new(f->base, on_turn, k);
	assert(k->turn != NULL);
	return k;
}

void
keep_free(struct keep **pk)
{
	struct keep *k = *pk;

	if (k == NULL)
		return;
	while (!TAILQ_EMPTY(&k->away))
		keep_forget(k, TAILQ_FIRST(&k->away));
	event_free(k->turn);
	state_file_free(&k->file);
	membuf_free(&k->written);
	membuf_free(&k->writing);
	free(k);
	*pk = NULL;
}

/* --- endpoints that are away -------------------------------------------------------------- */

static bool
key_equal(const struct saved_one *key, const char *url, const char *pool, enum role role)
{
	return key->role == role && strcmp(key->url, url) == 0 && strcmp(key->pool, pool) == 0;
}

/* Its texts are copied. */
static void
add(struct keep *k, const struct saved_one *one)
{
	struct away *a = TAILQ_LAST(&k->away, away_list);

	if (a != NULL && key_equal(&a->key, one->url, one->pool, one->role) &&
		(a->key.weight > 0) == (one->weight > 0))
		return; /* a file may have one twice; the list is sorted */
	a = MEM_NEW(struct away);
	a->key = *one;
	a->key.url = mem_strdup(one->url);
	a->key.pool = mem_strdup(one->pool);
	a->since_ms = clock_ms();
	TAILQ_INSERT_TAIL(&k->away, a, link);
	k->naway++;
}

void
keep_forget(struct keep *k, struct away *a)
{
	TAILQ_REMOVE(&k->away, a, link);
	k->naway--;
	free(a->key.url);
	free(a->key.pool);
	free(a);
}

struct away *
keep_first(const struct keep *k)
{
	return TAILQ_FIRST(&k->away);
}

uint64_t
keep_left_ms(const struct away *a, uint64_t now_ms)
{
	const uint64_t end = a->since_ms + KEEP_AWAY_MS;

	return end > now_ms ? end - now_ms : 0;
}

/* What was set of the endpoint holds.  True: it is to be drained. */
static bool
holds(struct endpoint *ep, const struct saved_one *one)
{
	const struct engine *e = &ep->engine;

	if (one->weight > 0) {
		ep->weight = one->weight;
		ep->weight_configured = one->configured;
		log_info("endpoint still has the weight of pdctl", LOG_S("url", e->url),
			LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name),
			LOG_U("weight", one->weight));
		return false;
	}
	log_info("endpoint is still drained by pdctl", LOG_S("url", e->url),
		LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name));
	return true;
}

bool
keep_back(struct keep *k, struct endpoint *ep)
{
	const struct engine *e = &ep->engine;
	bool drained = false;

	for (struct away *a = TAILQ_FIRST(&k->away), *next; a != NULL; a = next) {
		next = TAILQ_NEXT(a, link);
		if (!key_equal(&a->key, e->url, e->pool_name, e->role))
			continue;
		drained = holds(ep, &a->key) || drained;
		keep_forget(k, a);
	}
	return drained;
}

/* At most two: a drain, a weight.  They use the endpoint's texts.  Returns their number. */
static size_t
ones_of(const struct endpoint *ep, struct saved_one ret[static 2])
{
	const struct engine *e = &ep->engine;
	size_t n = 0;

	if (ep->drained)
		ret[n++] = (struct saved_one){e->url, e->pool_name, e->role, 0, 0};
	if (ep->weight != 0)
		ret[n++] = (struct saved_one){
			e->url, e->pool_name, e->role, ep->weight, ep->weight_configured};
	return n;
}

void
keep_away(struct keep *k, const struct endpoint *ep)
{
	struct saved_one ones[2];
	const size_t n = ones_of(ep, ones);

	if (!ep->engine.found && conf_pool_file(ep->engine.pool) == NULL)
		return;
	for (size_t i = 0; i < n; i++)
		add(k, &ones[i]);
}

/* Whether programs say which endpoints the pool has, and not only the operator. */
static bool
is_named_by_programs(const struct conf *conf, const char *name)
{
	const struct conf_pool *pool = conf_pool_named(conf, name);

	return pool != NULL &&
	       (conf_pool_file(pool) != NULL || pool->ndns > 0 || pool->nannounce_networks > 0);
}

/* Why the endpoint is not waited for any longer; NULL: it is. */
static const char *
over(const struct keep *k, const struct away *a, uint64_t now)
{
	if (!is_named_by_programs(k->fleet->conf, a->key.pool))
		return "it is no longer configured";
	if (keep_left_ms(a, now) == 0)
		return "it was away for too long";
	return k->naway > KEEP_AWAY_MAX
		       ? "too many drains and weights are of endpoints that are away"
		       : NULL;
}

static void
forget_some(struct keep *k)
{
	const uint64_t now = clock_ms();

	for (struct away *a = TAILQ_FIRST(&k->away), *next; a != NULL; a = next) {
		const char *why = over(k, a, now);

		next = TAILQ_NEXT(a, link);
		if (why == NULL)
			continue;
		log_info(a->key.weight > 0 ? "weight forgotten" : "drain forgotten",
			LOG_S("url", a->key.url), LOG_S("role", role_name(a->key.role)),
			LOG_S("pool", a->key.pool), LOG_S("reason", why));
		keep_forget(k, a);
	}
}

/* --- the file ----------------------------------------------------------------------------- */

static void
count_failure(const struct keep *k)
{
	metric_add(k->fleet->slab, M_STATE_FAILED, 1);
}

void
keep_file(struct keep *k, const char *path)
{
	struct membuf text = {0};
	struct saved s = {0};
	const char *why;

	k->file = state_file_new(path, -1);
	if (!state_file_read(k->file, SAVED_BYTES_MAX, &text)) {
		count_failure(k);
	} else if (text.n > 0 && saved_parse(text.p, text.n, &s, &why) != 0) {
		state_file_set_aside(k->file, why);
		count_failure(k);
	}
	saved_write(s.all, s.n, &k->written);
	for (size_t i = 0; i < s.n; i++)
		add(k, &s.all[i]);
	saved_free(&s);
	membuf_free(&text);
}

/* The text that the file should have.  The keys belong to their endpoints. */
static struct membuf
text_now(const struct keep *k)
{
	const struct fleet *f = k->fleet;
	struct saved_one *all = mem_array(2 * f->norder + k->naway + 1, sizeof(*all));
	struct membuf text = {0};
	struct away *a;
	size_t n = 0;

	for (size_t i = 0; i < f->norder; i++)
		n += ones_of(f->order[i], &all[n]);
	TAILQ_FOREACH(a, &k->away, link) all[n++] = a->key;
	saved_write(all, n, &text);
	free(all);
	return text;
}

static bool
equal(const struct membuf *a, const struct membuf *b)
{
	return a->n == b->n && (a->n == 0 || memcmp(a->p, b->p, a->n) == 0);
}

static bool
begin_text(struct keep *k, const struct membuf *text)
{
	if (text->n <= SAVED_BYTES_MAX)
		return state_file_begin(k->file, text->p, text->n);
	state_file_fail(k->file, "there are too many drains and weights for one file");
	return false;
}

/* When the write ends, keep_sigchld() writes what has changed since. */
static void
report_slow(const struct keep *k)
{
	if (clock_ms() - k->begun_ms < SLOW_MS || state_file_error(k->file)[0] != '\0')
		return;
	state_file_fail(k->file, "the disk does not answer");
	count_failure(k);
}

/* When the file has to be looked at again, in ms.  After a failure the file is written even if its text is right: the
 * status shows the failure until then. */
static uint64_t
write_changed(struct keep *k)
{
	struct membuf text;

	if (state_file_is_written(k->file)) {
		report_slow(k);
		return SLOW_MS;
	}
	text = text_now(k);
	if (state_file_error(k->file)[0] == '\0' && equal(&text, &k->written)) {
		membuf_free(&text);
		return UINT64_MAX;
	}
	if (!begin_text(k, &text)) {
		count_failure(k);
		membuf_free(&text);
		return RETRY_MS;
	}
	membuf_free(&k->writing);
	k->writing = text;
	k->begun_ms = clock_ms();
	return SLOW_MS;
}

static void
wait_for(const struct keep *k, uint64_t ms)
{
	const uint64_t away = TAILQ_EMPTY(&k->away)
				      ? UINT64_MAX
				      : keep_left_ms(TAILQ_FIRST(&k->away), clock_ms());
	struct timeval tv;

	ms = ms < away ? ms : away;
	(void)evtimer_del(k->turn);
	if (ms == UINT64_MAX)
		return;
	tv = clock_tv(ms);
	(void)evtimer_add(k->turn, &tv);
}

void
keep_changed(struct keep *k)
{
	if (k->fleet->conf == NULL)
		return;
	forget_some(k);
	wait_for(k, k->file != NULL && !k->held ? write_changed(k) : UINT64_MAX);
}

bool
keep_is_settled(const struct keep *k)
{
	return k->file == NULL || !state_file_is_written(k->file);
}

/* A text that could not be written is tried again at once only if there is another one now. */
void
keep_sigchld(struct keep *k)
{
	struct membuf text;
	bool good, same;

	if (k->file == NULL || !state_file_end(k->file, &good))
		return;
	text = text_now(k);
	same = equal(&text, &k->writing);
	membuf_free(&text);
	if (good) {
		membuf_free(&k->written);
		k->written = k->writing;
		k->writing = (struct membuf){0};
	} else {
		count_failure(k);
	}
	if (good || !same)
		keep_changed(k);
	else
		wait_for(k, RETRY_MS);
}

void
keep_pass(const struct keep *k, struct membuf *out)
{
	struct membuf text = text_now(k);

	membuf_add(out, text.p, text.n);
	membuf_free(&text);
}

int
keep_lock(const struct keep *k)
{
	return k->file != NULL ? state_file_lock(k->file) : -1;
}

void
keep_hold(struct keep *k, bool hold)
{
	k->held = hold;
	if (!hold)
		membuf_free(&k->written); /* the other one may have written another text */
	keep_changed(k);
}

void
keep_leave(struct keep *k)
{
	state_file_free(&k->file);
}

bool
keep_is_held(const struct keep *k)
{
	return k->held;
}

/* What the file has, so that it is written only if it has to change. */
static void
read_written(struct keep *k)
{
	if (!state_file_read(k->file, SAVED_BYTES_MAX, &k->written))
		membuf_free(&k->written);
}

/* The endpoints are known already, and workers do not serve yet. */
static void
take_one(struct keep *k, const struct saved_one *one)
{
	const struct fleet *f = k->fleet;

	for (size_t i = 0; i < f->norder; i++) {
		struct endpoint *ep = f->order[i];

		if (!key_equal(one, ep->engine.url, ep->engine.pool_name, ep->engine.role))
			continue;
		if (holds(ep, one))
			state_drain(ep);
		else
			endpoint_check_weight(ep);
		return;
	}
	add(k, one);
}

void
keep_take(struct keep *k, const struct membuf *text)
{
	struct saved s = {0};
	const char *why;

	if (saved_parse(text->p, text->n, &s, &why) != 0)
		log_error("drains and weights of the older instance are lost", LOG_S("error", why));
	for (size_t i = 0; i < s.n; i++)
		take_one(k, &s.all[i]);
	saved_free(&s);
	publish_now(k->fleet->publish); /* the weights */
}

void
keep_take_file(struct keep *k, const char *path, int lock)
{
	if (path != NULL) {
		k->file = state_file_new(path, lock);
		read_written(k);
	} else if (lock != -1) {
		(void)close(lock);
	}
	keep_changed(k);
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	keep_changed(arg);
}

const char *
keep_path(const struct keep *k)
{
	return k->file != NULL ? state_file_path(k->file) : NULL;
}

const char *
keep_error(const struct keep *k)
{
	return k->file != NULL ? state_file_error(k->file) : NULL;
}
