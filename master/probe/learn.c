#include "master/probe/learn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/probe/engine.h"
#include "master/probe/probe.h"
#include "master/probe/turns.h"
#include "proto/json/json_small.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"

/*
 * A round sends the queries for this kind of engine one after the other, on one connection:
 *
 *   REST --FIRST_MS, then rest()-----> MODELS --> vLLM:   VERSION, seldom ---------> REST
 *                                              '--> SGLang: INFO --404--> INFO_OLD --> REST
 *
 * The gate is shut by MODELS: if the pool names no models, until a list has a name in it; else until
 * the engine was asked once.  The gate is shut by INFO of an SGLang engine, until the engine has
 * answered INFO.  Any whole HTTP answer counts: after a 404, 401 or 500 nothing is learned, which is
 * logged once, and the configured values are used.  Without an answer (refused, reset, too late) the
 * round has failed; the next round of health.c starts it again, UNANSWERED_MAX times at most.
 */
enum query { MODELS, INFO, INFO_OLD, VERSION, QUERY_N, REST = QUERY_N };

/*
 * Adapters come and go, SGLang's roles can be switched: every 15 health intervals, which are 30 s by
 * default.  At least once a minute, however seldom an operator asks for health.
 */
#define LEARN_ROUNDS 15
#define LEARN_MAX_MS 60000
/* The version of one life stays; a proxy may exchange the engine behind it unseen. */
#define VERSION_ROUNDS 10
/* From UP to the first round.  Not 0: reloads that add and remove hundreds of endpoints in quick
 * succession must not query them all. */
#define FIRST_MS 1000
#define TIMEOUT_MS 3000
#define SEEDS 16         /* replicas behind one address that are told from restarts */
#define UNANSWERED_MAX 5 /* SGLang queries all its ranks before it answers /server_info */
/* of a model list: 2,000 entries as vLLM writes them; of /server_info: 64 ranks.  Read in one turn. */
#define BODY_MAX (1u << 20)

typedef bool take_fn(struct learn *, const struct probe_answer *);
static take_fn take_models, take_info, take_version;

static const struct {
	const char *path;
	take_fn *take; /* false: no result, l->why has the reason */
	enum query next;
} queries[QUERY_N] = {
	[MODELS] = {"/v1/models", take_models, VERSION /* or INFO: next_of() */},
	[INFO] = {"/server_info", take_info, REST},
	[INFO_OLD] = {"/get_server_info", take_info, REST}, /* its name before SGLang 0.5.9 */
	[VERSION] = {"/version", take_version, REST},
};

struct learn {
	struct engine *engine;
	learn_fn *fn;
	void *arg;
	struct probe *probe;
	struct turn turn;
	enum query at;
	struct ep_addr addr;
	uint32_t rounds; /* ended */
	/* since the endpoint was down, or its engine began a new life: */
	bool models_asked, models_known, info_answered, complete;
	bool waited;           /* fn is to be called */
	uint32_t unanswered;   /* INFO, in a row */
	struct runtime next;   /* filled by this round */
	uint64_t list_digest;  /* of the list that engine->models was read from, if models_known */
	enum query refused_at; /* of `refused` */
	char refused[96];      /* learn_refused() */
	uint64_t seeds[SEEDS]; /* the latest different ones, of all lives; 0: none */
	uint32_t nseeds;       /* ever stored */
	bool logged[QUERY_N];  /* that this query taught nothing; since it was down */
	char logged_contradiction[LEARN_SAID]; /* the one in the log; since it was down */
	char why[192];                         /* what went wrong last */
};

static void
send_query(struct learn *l, enum query q)
{
	struct engine *e = l->engine;

	l->at = q;
	probe_get(l->probe, &(struct probe_request){.addr = &l->addr,
				    .authority = e->authority,
				    .prefix = e->at.prefix,
				    .path = queries[q].path,
				    .https = e->at.tls,
				    .tls = engine_tls(e),
				    .host = e->at.host,
				    .memory = &e->memory,
				    .api_key = engine_key(e),
				    .timeout_ms = TIMEOUT_MS,
				    .max_body = BODY_MAX,
				    .want_body = true,
				    .keep = true});
}

static void
turn_within(struct learn *l, uint64_t ms)
{
	turn_after(&l->turn, engine_wait_ms(l->engine, clock_ms(), ms));
}

static void
rest(struct learn *l)
{
	uint64_t often = LEARN_ROUNDS * l->engine->prober->conf->health_interval_ms;

	l->at = REST;
	probe_cancel(
		l->probe); /* closes: an engine closes idle connections long before the next round */
	turn_within(l, often < LEARN_MAX_MS ? often : LEARN_MAX_MS);
}

/* --- the gate ------------------------------------------------------------------ */

static bool
models_gate(const struct learn *l)
{
	return l->engine->pool->nmodels == 0 ? !l->models_known : !l->models_asked;
}

static bool
info_gates(const struct learn *l)
{
	return l->engine->pool->engine == ENGINE_SGLANG && !l->info_answered;
}

bool
learn_gated(const struct learn *l)
{
	return models_gate(l) || info_gates(l);
}

static void
report(struct learn *l, const char *why, bool local)
{
	bool waited = l->waited;

	l->waited = false;
	if (waited)
		l->fn(why, local, l->arg);
}

/* --- contradictions -------------------------------------------------------------------- */

static const char *
missing_model(const struct engine *e)
{
	const struct model_set *m = &e->models;
	size_t next = 0; /* a configuration often has the engine's names in the same order */

	for (size_t i = 0; m->n > 0 && i < e->pool->nmodels; i++) {
		const char *name = e->pool->models[i];
		const struct model_card *card;

		if (next < m->n && strcmp(m->names[next], name) == 0) {
			next++;
			continue;
		}
		card = models_card(m, name);
		if (card == NULL)
			return name;
		next = (size_t)(card - m->cards) + 1;
	}
	return NULL;
}

/* None of the configured models; a single one may be an adapter that is loaded later. */
static bool
serves_others(const struct engine *e)
{
	for (size_t i = 0; i < e->pool->nmodels; i++)
		if (models_has(&e->models, e->pool->models[i]))
			return false;
	return e->models.n > 0 && e->pool->nmodels > 0;
}

const char *
learn_misfit(const struct engine *e, char *buf, size_t size)
{
	const char *mode = e->runtime.mode;

	buf[0] = '\0';
	if (e->pool == NULL) /* it drains */
		return buf;
	if ((strcmp(mode, "prefill") == 0 || strcmp(mode, "decode") == 0) &&
		strcmp(mode, role_name(e->role)) != 0)
		(void)snprintf(buf, size, "listed as %s engine, but says it is a %s engine",
			role_name(e->role), mode);
	else if (serves_others(e))
		(void)snprintf(buf, size, "serves %.128s, but none of the configured models",
			e->models.names[0]);
	return buf;
}

const char *
learn_contradiction(const struct engine *e, char *buf, size_t size)
{
	const struct runtime *rt = &e->runtime;
	const char *missing;

	if (learn_misfit(e, buf, size)[0] != '\0' || e->pool == NULL)
		return buf;
	missing = missing_model(e);
	if (e->conf->bootstrap_port != 0 && rt->bootstrap_port != 0 &&
		e->conf->bootstrap_port != rt->bootstrap_port)
		(void)snprintf(buf, size, "bootstrap_port is configured as %u, but it says %u",
			(unsigned)e->conf->bootstrap_port, (unsigned)rt->bootstrap_port);
	else if (missing != NULL)
		(void)snprintf(buf, size, "does not serve the configured model %.128s", missing);
	return buf;
}

static void
see_contradiction(struct learn *l)
{
	struct engine *e = l->engine;
	char now[sizeof(l->logged_contradiction)];

	if (learn_misfit(e, now, sizeof(now))[0] != '\0') {
		e->look_again(e, NULL);
		return;
	}
	(void)learn_contradiction(e, now, sizeof(now));
	if (strcmp(now, l->logged_contradiction) == 0)
		return;
	if (now[0] != '\0')
		log_warn("endpoint contradicts the configuration, configured values are used",
			LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
			LOG_S("pool", e->pool_name), LOG_S("contradiction", now));
	(void)snprintf(l->logged_contradiction, sizeof(l->logged_contradiction), "%s", now);
}

/* --- reading answers ---------------------------------------------------------------- */

/* Versions and modes go into tables, logs and status: short, printable ASCII. */
static bool
is_word(const char *s)
{
	for (const char *p = s; *p != '\0'; p++)
		if (*p <= ' ' || *p > '~')
			return false;
	return s[0] != '\0';
}

/* buf is "" if the answer has no such word. */
static bool
read_word(const struct probe_answer *a, const char *name, char *buf, size_t size)
{
	if (json_member_text(a->body, a->len, name, buf, size) && is_word(buf))
		return true;
	buf[0] = '\0';
	return false;
}

static bool
runtime_equal(const struct runtime *a, const struct runtime *b)
{
	return strcmp(a->version, b->version) == 0 && strcmp(a->mode, b->mode) == 0 &&
	       a->bootstrap_port == b->bootstrap_port && a->max_context == b->max_context;
}

static bool
words_differ(const char *a, const char *b)
{
	return a[0] != '\0' && b[0] != '\0' && strcmp(a, b) != 0;
}

static bool
numbers_differ(uint64_t a, uint64_t b)
{
	return a != 0 && b != 0 && a != b;
}

/* Both reports cannot be of one process. */
static bool
processes_differ(const struct runtime *a, const struct runtime *b)
{
	return words_differ(a->version, b->version) || words_differ(a->mode, b->mode) ||
	       numbers_differ(a->bootstrap_port, b->bootstrap_port);
}

/*
 * True if the seed is the first one that differs from all that came before.  Replicas behind one address
 * answer in turn: a seed that comes again is of one of them, and of no new process.
 */
static bool
seed_is_new(struct learn *l, uint64_t seed)
{
	if (seed == 0)
		return false;
	for (size_t i = 0; i < SEEDS; i++)
		if (l->seeds[i] == seed)
			return false;
	l->seeds[l->nseeds++ % SEEDS] = seed;
	return l->nseeds > 1;
}

/* Takes over what this round has learned.  What another process reports waits for the gate: no request
 * may go there before. */
static void
commit(struct learn *l)
{
	struct engine *e = l->engine;
	const bool new_seed = seed_is_new(l, l->next.seed);

	if (l->complete && (new_seed || processes_differ(&e->runtime, &l->next))) {
		e->look_again(e, "another version, mode, bootstrap port or seed");
		return;
	}
	if (runtime_equal(&e->runtime, &l->next))
		return;
	e->runtime = l->next;
	e->models_number++;
	e->prober->ops->changed(e, true);
}

/* What workers show of the pool's models may change. */
static bool
tells_same(const struct engine *e, const struct model_set *a, const struct model_set *b)
{
	const char *const *names = (const char *const *)e->pool->models;
	size_t n = e->pool->nmodels;

	if (n == 0) { /* learned ones: these */
		names = (const char *const *)a->names;
		n = a->n;
	}
	for (size_t i = 0; i < n; i++)
		if (!models_tell_same(a, b, names[i]))
			return false;
	return true;
}

/* Takes the names and what is told of each. */
static void
commit_models(struct engine *e, struct model_set *set)
{
	const bool same = models_equal(set, &e->models), told = !tells_same(e, set, &e->models);

	models_clear(&e->models);
	e->models = *set;
	if (!same && e->pool->nmodels == 0) { /* else the table has the configured ones */
		e->models_number++;
		e->prober->ops->changed(e, false);
	} else if (told) {
		e->prober->ops->changed(e, true);
	}
}

static bool
take_models(struct learn *l, const struct probe_answer *a)
{
	struct engine *e = l->engine;
	const char *const *wanted = (const char *const *)e->pool->models;
	const size_t nwanted = e->pool->nmodels;
	const uint64_t digest = models_digest(a->body, a->len, wanted, nwanted);
	struct model_set set = {0};
	size_t left_out = 0;
	int n;

	if (l->models_known && digest == l->list_digest) {
		l->next.max_context = e->models.max_context;
		return true;
	}
	n = models_read(a->body, a->len, wanted, nwanted, &set, &left_out);
	if (n <= 0) {
		(void)snprintf(l->why, sizeof(l->why), "GET %s: %s", queries[MODELS].path,
			n == 0 ? "no model in the list" : "not a model list");
		models_clear(&set);
		return false;
	}
	if (left_out > 0 && !models_equal(&set, &e->models))
		log_warn("model names left out", LOG_S("url", e->url), LOG_U("kept", n),
			LOG_U("left_out", left_out));
	l->next.max_context = set.max_context;
	l->models_known = true;
	l->list_digest = digest;
	commit_models(e, &set);
	return true;
}

/*
 * protocols.md 5.4.  Every SGLang engine reports the port, which has a default; only a prefill engine
 * listens there.  Versions without a mode report the port alone.
 */
static bool
take_info(struct learn *l, const struct probe_answer *a)
{
	uint64_t port = 0;
	bool any, has_port;

	any = read_word(a, "version", l->next.version, sizeof(l->next.version));
	any = read_word(a, "disaggregation_mode", l->next.mode, sizeof(l->next.mode)) || any;
	l->next.seed = 0;
	(void)json_member_number(a->body, a->len, "random_seed", UINT64_MAX, &l->next.seed);
	has_port = json_member_number(
		a->body, a->len, "disaggregation_bootstrap_port", UINT16_MAX, &port);
	if (l->engine->role != ROLE_PREFILL || strcmp(l->next.mode, "decode") == 0 ||
		strcmp(l->next.mode, "null") == 0)
		port = 0;
	l->next.bootstrap_port = (uint32_t)port;
	if (!any && !has_port)
		(void)snprintf(l->why, sizeof(l->why), "GET %s: no known member in it",
			queries[l->at].path);
	return any || has_port;
}

static bool
take_version(struct learn *l, const struct probe_answer *a)
{
	if (read_word(a, "version", l->next.version, sizeof(l->next.version)))
		return true;
	(void)snprintf(l->why, sizeof(l->why), "GET %s: no version in it", queries[VERSION].path);
	return false;
}

/* --- a round ----------------------------------------------------------------------------- */

static void
log_nothing_learned(struct learn *l, enum query q, int status)
{
	struct engine *e = l->engine;

	if (l->logged[q])
		return;
	l->logged[q] = true;
	if (q == INFO || q == INFO_OLD)
		log_warn("endpoint reports nothing about itself, configured values are used",
			LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
			LOG_S("pool", e->pool_name), LOG_S("reason", l->why));
	else if (status == 401 || status == 403)
		log_warn("engine refuses our key, see the pool's engine_api_key_file",
			LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
			LOG_S("pool", e->pool_name), LOG_S("reason", l->why));
	else
		log_debug("query taught nothing about the endpoint", LOG_S("url", e->url),
			LOG_S("reason", l->why));
}

static void
see_key(struct learn *l, enum query q, const struct probe_answer *a)
{
	if (probe_key_refused(a)) {
		l->refused_at = q;
		(void)snprintf(l->refused, sizeof(l->refused),
			"GET %s: status %d, engine refuses our key", queries[q].path, a->status);
	} else if (a->error == 0 && q == l->refused_at) {
		l->refused[0] = '\0';
	}
}

static enum query
next_of(const struct learn *l, enum query q)
{
	enum query next = queries[q].next;

	if (q == MODELS && l->engine->pool->engine == ENGINE_SGLANG)
		next = INFO;
	if (next == VERSION && l->next.version[0] != '\0' && l->rounds % VERSION_ROUNDS != 0)
		next = REST;
	return next;
}

/* Sends the next query; after the last one the round is over. */
static void
go_on(struct learn *l)
{
	enum query next = next_of(l, l->at);

	if (next == REST) {
		commit(l);
		l->complete = true;
		l->rounds++;
		see_contradiction(l);
		rest(l);
	} else {
		send_query(l, next);
	}
	if (!learn_gated(l))
		report(l, NULL, false);
}

/* The gate stays shut; the rest of the round could not open it. */
static void
fail(struct learn *l, bool local)
{
	l->at = REST;
	probe_cancel(l->probe);
	report(l, l->why, local);
}

/* A configured pool waits for one try.  Without a list, that of a former life is void. */
static void
models_settled(struct learn *l, const struct probe_answer *a)
{
	struct engine *e = l->engine;

	l->models_asked = l->models_asked || !a->local;
	if (l->models_asked && !l->models_known && e->pool->nmodels > 0)
		models_clear(&e->models);
}

/* SGLang's answer has come, or is not awaited any more. */
static bool
info_settled(struct learn *l, const struct probe_answer *a)
{
	if (a->local)
		return false;
	l->unanswered = a->error == 0 ? 0 : l->unanswered + 1;
	return a->error == 0 || l->unanswered >= UNANSWERED_MAX;
}

static void
on_answer(const struct probe_answer *a, void *arg)
{
	struct learn *l = arg;
	enum query q = l->at;
	bool info = q == INFO || q == INFO_OLD;
	bool good, settled = true;

	if (a->local)
		engine_shortage(l->engine, a->why);
	see_key(l, q, a);
	if (q == INFO && a->error == 0 && a->status == 404) {
		send_query(l, INFO_OLD);
		return;
	}
	good = probe_good(a, queries[q].path, l->why, sizeof(l->why)) && queries[q].take(l, a);
	if (q == MODELS)
		models_settled(l, a);
	if (info)
		settled = info_settled(l, a);
	if (!good && settled && !a->local)
		log_nothing_learned(l, q, a->status);
	l->info_answered = l->info_answered || (info && settled);
	if (l->waited && (info ? info_gates(l) : models_gate(l)))
		fail(l, a->local);
	else
		go_on(l);
}

/* A query without an answer keeps what the round before has learned since the engine was down. */
static void
begin(struct learn *l, const struct ep_addr *addr)
{
	turn_cancel(&l->turn);
	probe_cancel(l->probe);
	l->addr = *addr;
	l->next = l->complete ? l->engine->runtime : (struct runtime){0};
	send_query(l, MODELS);
}

static void
on_turn(void *arg)
{
	struct learn *l = arg;

	begin(l, &l->engine->addr);
}

void
learn_gate(struct learn *l, const struct ep_addr *addr)
{
	l->waited = true;
	begin(l, addr);
}

void
learn_up(struct learn *l)
{
	uint64_t often = l->engine->prober->conf->health_interval_ms;

	if (l->at != REST)
		return;
	if (learn_gated(l)) /* a reload has changed its pool */
		begin(l, &l->engine->addr);
	else if (!turn_is_set(&l->turn))
		turn_within(l, often < FIRST_MS ? often : FIRST_MS);
}

void
learn_now(struct learn *l)
{
	if (l->at == REST)
		begin(l, &l->engine->addr);
}

void
learn_again(struct learn *l)
{
	turn_cancel(&l->turn);
	probe_cancel(l->probe);
	l->at = REST;
	l->waited = l->models_asked = l->models_known = l->info_answered = l->complete = false;
	l->unanswered = 0;
	l->refused[0] = '\0';
}

const char *
learn_refused(const struct learn *l)
{
	return l->refused;
}

void
learn_forget(struct learn *l)
{
	learn_again(l);
	memset(l->logged, 0, sizeof(l->logged));
	l->logged_contradiction[0] = '\0';
}

/* --- life -------------------------------------------------------------------------------- */

struct learn *
learn_new(struct engine *e, learn_fn *fn, void *arg)
{
	struct learn *l = MEM_NEW(struct learn);

	l->engine = e;
	l->fn = fn;
	l->arg = arg;
	l->at = REST;
	l->probe = probe_new(e->prober->env, on_answer, l);
	turn_init(&l->turn, e->prober->turns, on_turn, l);
	return l;
}

void
learn_free(struct learn **pl)
{
	struct learn *l = *pl;

	if (l == NULL)
		return;
	probe_free(&l->probe);
	turn_cancel(&l->turn);
	free(l);
	*pl = NULL;
}
