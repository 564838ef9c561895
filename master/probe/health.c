#include "master/probe/health.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/probe/engine.h"
#include "master/probe/learn.h"
#include "master/probe/scrape.h"
#include "master/probe/probe.h"
#include "master/probe/resolve.h"
#include "master/probe/turns.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/eject.h"
#include "shm/metrics.h"

/*
 * One round finds out whether the engine answers.
 *
 *   REST --turn--> [NAME] --addresses--> PATH --2xx--> [LEARN] --gate open--> good --> REST
 *                     |                  |  ^             |
 *                     |        refused   |  '-- next address of the name
 *                     '------------------+----------------+--> bad --> REST
 *
 * NAME: only while no address is known.  LEARN: only while the engine is not UP and learn_gated().
 * learn.c runs all other queries beside these rounds, so they delay no round.
 *
 * STARTING --1 good--> UP --`fall` bad in a row--> DOWN --`rise` good in a row--> UP
 *                      |  ^                         |
 *         a new life   |  | 1 good                  | a new life
 *                      v  |                         v
 *                    RESTARTING <-------------------'
 *
 * Where UP stands, an engine that learn_misfit() names is MISCONFIGURED: it is asked all again in each round, and UP
 * after the first one in which it is named no more.
 *
 * The room above sees an engine that is STARTING or RESTARTING after `fall` bad rounds as down.
 *
 * A new life: no process listens any more (a round was refused), or a process that answers reports
 * that it is another one (engine.look_again).  What was learned of the former process is void, so
 * the gate is shut again.
 */
enum step { REST, NAME, PATH, LEARN };
enum standing { STARTING, RESTARTING, UP, DOWN, MISCONFIGURED };

/* between rounds while STARTING or RESTARTING: an engine is up soon after its start */
#define EAGER_MS 250
#define EAGER_FOR_MS 10000 /* later the engine is loading weights: probe at the usual interval */
/* Between two rounds for requests that met a sign of a restart; and two times that the engine is asked all for it. */
#define DOUBT_LEAST_MS 1000
/* The same after a round that failed: an engine that ends refuses connections a moment later. */
#define DOUBT_FAILED_MS 100
#define RENEW_MS 30000      /* between two lookups of a name */
#define RENEW_LEAST_MS 1000 /* between two lookups after failed rounds */
/*
 * Good rounds in a row on a kept connection.  Then a new one shows that the engine still accepts, which is
 * what workers need.  A worker whose connection failed has set a sign: that round opens a new one too.
 */
#define KEPT_ROUNDS 9
#define HEALTH_BODY_MAX (64u << 10) /* of a health answer, whose text is not used */

struct health {
	struct engine *engine;
	struct probe *probe;
	struct learn *learn;
	struct turn turn, renew;
	struct lookup *lookup;
	enum step step;
	enum standing standing;
	bool refused;     /* fact of the round: all addresses so far refused the connection */
	bool doubted;     /* fact: what is known is to be verified after the next good round */
	const char *sign; /* of a new life that begins with the next answer or turn; NULL: none */
	/* the last round for that, and the last time that the engine was asked all; clock_ms(); 0 = never */
	uint64_t doubted_ms, verified_ms;
	uint32_t good, bad;                     /* rounds in a row */
	uint32_t kept;                          /* rounds since the connection was new */
	uint64_t began_ms, round_ms, lookup_ms; /* clock_ms(); 0 = never */
	uint64_t interval_ms;                   /* the turn was armed by */
	bool literal;
	struct ep_addr addrs[RESOLVE_MAX];
	size_t naddrs, at, tried; /* at: index of the probed address */
	struct ep_addr probed;
	char reason[192];
};

static void send_probe(struct health *h);

static const struct conf *
conf_of(const struct health *h)
{
	return h->engine->prober->conf;
}

static void
reason_set(struct health *h, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(h->reason, sizeof(h->reason), fmt, ap);
	va_end(ap);
}

/* The first good round brings the engine up. */
static bool
is_new(const struct health *h)
{
	return h->standing == STARTING || h->standing == RESTARTING;
}

/* --- between rounds ---------------------------------------------------------------------- */

static uint64_t
least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Until a round for a sign of a restart may begin. */
static uint64_t
doubt_wait_ms(const struct health *h, uint64_t now)
{
	const uint64_t last = h->doubted_ms > h->verified_ms ? h->doubted_ms : h->verified_ms;
	const uint64_t due = last + (h->bad > 0 ? DOUBT_FAILED_MS : DOUBT_LEAST_MS);

	return last != 0 && due > now ? due - now : 0;
}

static uint64_t
wait_ms(const struct health *h)
{
	const uint64_t now = clock_ms(), interval = conf_of(h)->health_interval_ms;
	const uint64_t wait = engine_wait_ms(h->engine, now, interval);

	if (is_new(h) && now - h->began_ms < EAGER_FOR_MS)
		return least(interval, EAGER_MS);
	/* a sign that came while a round was running */
	if (h->standing == UP && h->doubted && h->bad == 0)
		return least(wait, doubt_wait_ms(h, now));
	return wait;
}

static void
rest(struct health *h)
{
	h->step = REST;
	h->interval_ms = conf_of(h)->health_interval_ms;
	turn_after(&h->turn, wait_ms(h));
}

/* Starts a round now, unless one is running. */
static void
round_now(struct health *h)
{
	if (h->step == REST)
		turn_after(&h->turn, 0);
}

/* --- outcomes ---------------------------------------------------------------------------- */

static void
go_up(struct health *h)
{
	struct engine *e = h->engine;
	char addr[EP_ADDR_TEXT];

	h->standing = UP;
	h->sign = NULL;
	h->reason[0] = '\0';
	log_info("endpoint up", LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
		LOG_S("pool", e->pool_name), LOG_S("addr", ep_addr_text(&e->addr, addr)));
	e->prober->ops->up(e);
	scrape_start(e);
}

static void
go_down(struct health *h)
{
	struct engine *e = h->engine;

	h->standing = DOWN;
	learn_forget(h->learn);
	log_warn("endpoint down, no requests go there until it answers again", LOG_S("url", e->url),
		LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name),
		LOG_S("reason", h->reason));
	e->prober->ops->down(e);
	scrape_stop(e);
}

/* The engine answers, but it is not what the configuration says. */
static void
go_astray(struct health *h, const char *misfit)
{
	struct engine *e = h->engine;

	reason_set(h, "%s", misfit);
	learn_again(h->learn);
	if (h->standing == MISCONFIGURED)
		return;
	h->standing = MISCONFIGURED;
	h->sign = NULL;
	log_warn("endpoint is misconfigured, no requests go there", LOG_S("url", e->url),
		LOG_S("role", role_name(e->role)), LOG_S("pool", e->pool_name),
		LOG_S("reason", misfit));
	e->prober->ops->misconfigured(e);
	scrape_stop(e);
}

/* One good round may still bring the engine up, but no request waits for it any more. */
static void
give_up_waiting(struct health *h)
{
	struct engine *e = h->engine;

	log_warn(h->standing == STARTING
			 ? "endpoint does not answer yet, still probing"
			 : "endpoint down, no requests go there until it answers again",
		LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
		LOG_S("pool", e->pool_name), LOG_S("reason", h->reason));
	e->prober->ops->down(e);
}

/* Another engine may stand there.  An engine that is DOWN stays so for the room above: no request waits
 * for it. */
static void
unlearn(struct health *h)
{
	const bool was_down = h->standing == DOWN;
	struct engine *e = h->engine;

	h->sign = NULL;
	h->doubted = false;
	h->standing = RESTARTING;
	h->began_ms = clock_ms();
	learn_forget(h->learn);
	if (was_down)
		return;
	h->good = h->bad = 0;
	scrape_stop(e);
	e->prober->ops->unlearned(e);
}

static const char restarted[] = "engine has restarted, what it reports is read again";

static void
begin_life(struct health *h, const char *event, const char *sign)
{
	struct engine *e = h->engine;

	log_info(event, LOG_S("url", e->url), LOG_S("role", role_name(e->role)),
		LOG_S("pool", e->pool_name), LOG_S("reason", sign));
	unlearn(h);
	e->start_s = 0;
	e->prober->ops->restarted(e);
}

/* From callbacks of its scrape and its queries, which a change of standing ends: so it waits for its own turn. */
static void
on_look_again(struct engine *e, const char *sign)
{
	struct health *h = e->health;

	if (h->standing != UP)
		return;
	if (sign != NULL)
		h->sign = sign;
	round_now(h);
}

/* A sign of a restart may have been met: the engine's own figures tell. */
static void
verify(struct health *h)
{
	const uint64_t now = clock_ms();

	if (!h->doubted || now - h->verified_ms < DOUBT_LEAST_MS)
		return;
	h->doubted = false;
	h->verified_ms = now;
	learn_now(h->learn);
	scrape_now(h->engine);
}

static void
stay_up(struct health *h)
{
	struct engine *e = h->engine;

	h->reason[0] = '\0';
	if (h->kept == 0)
		e->prober->ops->accepted(e);
}

static void
settle(struct health *h)
{
	struct engine *e = h->engine;
	char misfit[LEARN_SAID];

	if (learn_misfit(e, misfit, sizeof(misfit))[0] != '\0')
		go_astray(h, misfit);
	else if (h->standing != UP)
		go_up(h);
	else
		stay_up(h);
}

static void
round_good(struct health *h)
{
	struct engine *e = h->engine;

	metric_add(e->prober->slab, M_PROBES_OK, 1);
	h->bad = 0;
	h->good++;
	if (!ep_addr_equal(&e->addr, &h->probed)) {
		e->addr = h->probed;
		e->prober->ops->changed(e, false);
	}
	if (h->standing != DOWN || h->good >= conf_of(h)->rise)
		settle(h);
	if (h->standing == UP) {
		learn_up(h->learn);
		verify(h);
	}
	rest(h);
}

static void look_up(struct health *h);

/* What `pdctl status` shows of an engine that is up says that it is. */
static void
say_still_up(struct health *h)
{
	char why[sizeof(h->reason)];

	memcpy(why, h->reason, sizeof(why));
	reason_set(h, "%u of %u probes failed: %s", h->bad, conf_of(h)->fall, why);
}

static void
round_bad(struct health *h)
{
	struct engine *e = h->engine;

	metric_add(e->prober->slab, M_PROBES_FAILED, 1);
	if (h->refused && !is_new(h))
		begin_life(h, "engine has stopped, its port refuses connections",
			"connection refused");
	h->good = 0;
	h->bad++;
	if (is_new(h) && h->bad == conf_of(h)->fall)
		give_up_waiting(h);
	else if (!is_new(h) && h->standing != DOWN && h->bad >= conf_of(h)->fall)
		go_down(h);
	else if (h->standing == UP)
		say_still_up(h);
	rest(h);
	if (!h->literal && clock_ms() - h->lookup_ms >= RENEW_LEAST_MS)
		look_up(h);
}

/* --- addresses --------------------------------------------------------------------------- */

static void
on_addresses(const struct ep_addr *addrs, size_t n, const char *error, void *arg)
{
	struct health *h = arg;
	bool still = false;

	turn_after(&h->renew, engine_wait_ms(h->engine, clock_ms(), RENEW_MS));
	if (n == 0 && h->naddrs == 0)
		reason_set(h, "cannot resolve %s: %s", h->engine->at.host, error);
	if (n > 0) { /* else the old ones stay: the name server may be failing */
		memcpy(h->addrs, addrs, n * sizeof(*addrs));
		h->naddrs = n;
		h->at = 0;
		for (size_t i = 0; i < n && !still; i++)
			if (ep_addr_equal(&addrs[i], &h->engine->addr)) {
				h->at = i;
				still = true;
			}
	}
	if (h->step == NAME && h->naddrs > 0)
		send_probe(h);
	else if (h->step == NAME)
		round_bad(h);
	else if (n > 0 && !still && h->standing == UP)
		round_now(h); /* the name has moved: probe the new address now */
}

static void
look_up(struct health *h)
{
	if (h->lookup != NULL)
		return;
	h->lookup_ms = clock_ms();
	resolve_start(h->engine->prober->resolver, h->engine->at.host, h->engine->at.port,
		on_addresses, h, &h->lookup);
}

static void
on_renew(void *arg)
{
	look_up(arg);
}

/* --- a round ----------------------------------------------------------------------------- */

static void
on_turn(void *arg)
{
	struct health *h = arg;

	h->round_ms = clock_ms();
	if (h->doubted)
		h->doubted_ms = h->round_ms;
	h->tried = 0;
	h->refused = h->naddrs > 0;
	if (h->sign != NULL && h->standing == UP)
		begin_life(h, restarted, h->sign);
	if (h->naddrs > 0) {
		send_probe(h);
	} else if (h->lookup != NULL || h->lookup_ms == 0 ||
		   h->round_ms - h->lookup_ms >= RENEW_LEAST_MS) {
		h->step = NAME;
		look_up(h);
	} else {
		round_bad(h);
	}
}

static uint64_t
time_left(const struct health *h)
{
	uint64_t spent = clock_ms() - h->round_ms, whole = conf_of(h)->health_timeout_ms;

	return spent < whole ? whole - spent : 0;
}

/* Whatever is not certain is asked on a new connection. */
static bool
kept_will_do(const struct health *h)
{
	const struct engine *e = h->engine;

	return h->standing == UP && h->bad == 0 && !h->doubted && h->tried == 0 &&
	       h->kept < KEPT_ROUNDS && !eject_is_out(e->prober->seg, e->slot);
}

static void
send_probe(struct health *h)
{
	struct engine *e = h->engine;
	const uint64_t whole = conf_of(h)->health_timeout_ms, left = time_left(h);
	const bool fresh = !kept_will_do(h);

	h->step = PATH;
	h->probed = h->addrs[h->at];
	h->kept = fresh ? 0 : h->kept + 1;
	probe_get(h->probe, &(struct probe_request){.addr = &h->probed,
				    .authority = e->authority,
				    .prefix = e->at.prefix,
				    .path = e->pool->health_path,
				    .https = e->at.tls,
				    .tls = engine_tls(e),
				    .host = e->at.host,
				    .memory = &e->memory,
				    .api_key = engine_key(e),
				    .timeout_ms = whole,
				    .spent_ms = left > 0 ? whole - left : 0,
				    .max_body = HEALTH_BODY_MAX,
				    /* of an engine that may go at once nothing is left to close */
				    .keep = h->standing == UP,
				    .fresh = fresh});
}

static void
path_answered(struct health *h, const struct probe_answer *a)
{
	if (h->sign != NULL && h->standing == UP)
		begin_life(h, restarted, h->sign);
	if (probe_good(a, h->engine->pool->health_path, h->reason, sizeof(h->reason))) {
		if (h->standing == UP && !ep_addr_equal(&h->engine->addr, &h->probed))
			begin_life(h, restarted, "another address");
		if (h->standing != UP && learn_gated(h->learn)) {
			h->step = LEARN;
			learn_gate(h->learn, &h->probed);
		} else {
			round_good(h);
		}
		return;
	}
	h->refused = h->refused && a->error == -ECONNREFUSED;
	h->at = (h->at + 1) % h->naddrs;
	if (++h->tried < h->naddrs && time_left(h) > 0) {
		send_probe(h);
		return;
	}
	h->refused = h->refused && h->tried == h->naddrs;
	if (h->standing == DOWN || h->standing == RESTARTING)
		learn_forget(h->learn); /* another engine may come back */
	round_bad(h);                   /* what timed out leaves its turn to the next address */
}

static void
on_answer(const struct probe_answer *a, void *arg)
{
	struct health *h = arg;

	if (a->local) { /* this says nothing about the engine */
		engine_shortage(h->engine, a->why);
		rest(h);
		return;
	}
	path_answered(h, a);
}

static void
on_learned(const char *why, bool local, void *arg)
{
	struct health *h = arg;

	if (local) {
		rest(h);
	} else if (why == NULL) {
		round_good(h);
	} else {
		reason_set(h, "%s", why);
		h->refused = false;
		round_bad(h);
	}
}

/* --- life -------------------------------------------------------------------------------- */

void
health_start(struct engine *e)
{
	struct prober *p = e->prober;
	struct health *h = MEM_NEW(struct health);
	uint64_t interval = p->conf->health_interval_ms;

	e->health = h;
	e->look_again = on_look_again;
	h->engine = e;
	h->began_ms = clock_ms();
	h->probe = probe_new(p->env, on_answer, h);
	h->learn = learn_new(e, on_learned, h);
	turn_init(&h->turn, p->turns, on_turn, h);
	turn_init(&h->renew, p->turns, on_renew, h);
	h->literal = resolve_literal(e->at.host, e->at.port, &h->addrs[0]);
	if (h->literal) {
		h->naddrs = 1;
		e->addr = h->addrs[0];
	}
	h->interval_ms = interval;
	/* 1 ms apart: the first rounds of a fleet at start do not all fall into one turn of the
	 * loop */
	turn_after(&h->turn, e->number % (interval < EAGER_MS ? interval + 1 : EAGER_MS));
}

void
health_stop(struct engine *e)
{
	struct health *h = e->health;

	if (h == NULL)
		return;
	resolve_cancel(&h->lookup);
	probe_free(&h->probe);
	learn_free(&h->learn);
	turn_cancel(&h->turn);
	turn_cancel(&h->renew);
	free(h);
	e->health = NULL;
	e->look_again = NULL;
}

void
health_changed(struct engine *e)
{
	struct health *h = e->health;

	if (h == NULL || h->step != REST)
		return;
	if (h->standing == UP)
		learn_up(h->learn);
	if (h->interval_ms != e->prober->conf->health_interval_ms)
		rest(h); /* not at every reload: a storm of them would put the next round off for
			    ever */
}

void
health_doubt(struct engine *e)
{
	struct health *h = e->health;

	if (h == NULL || h->standing != UP)
		return;
	h->doubted = true;
	if (h->step == REST)
		turn_after(&h->turn, least(wait_ms(h), doubt_wait_ms(h, clock_ms())));
}

bool
health_learn_anew(struct engine *e)
{
	struct health *h = e->health;

	if (h == NULL || h->standing != UP)
		return false;
	unlearn(h);
	round_now(h);
	return true;
}

const char *
health_reason(const struct engine *e)
{
	return e->health != NULL ? e->health->reason : "";
}

const char *
health_refused(const struct engine *e)
{
	return e->health != NULL ? learn_refused(e->health->learn) : "";
}
