#include "master/pdfleet/steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/http_get.h"
#include "master/pdfleet/owned.h"
#include "master/topology/router_file.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"

#define POLL_MS 50       /* between two looks at engines and routers, at first */
#define POLL_MAX_MS 1000 /* an engine that loads for minutes is not asked more often */
#define WAITS_MS 2000    /* a step that takes longer is said to be a wait, once */

/* Says on one line what the engine waits for; the caller ends the line.  False: for other engines, which have lines of their own. */
typedef bool wait_fn(const struct steps *s, const struct member *m);
static wait_fn turn_waits, drain_waits, health_waits, up_waits;

/* What happens next to the engine: the same step to look again later. */
typedef enum step step_fn(struct steps *s, struct member *m);
static step_fn turn, drain, stop, start, health, up, back, back_health;
/* The time of the step is over. */
static step_fn turn_late, drain_late, health_late, up_late, back_late;

static const struct {
	step_fn *tick; /* NULL: the last step */
	size_t clock;  /* of struct steps; 0: none */
	uint64_t ms;   /* in place of `clock` */
	step_fn *late;
	wait_fn *waits;
} steps[STEP_N] = {
	// clang-format off
	[STEP_TURN]        = {turn,        offsetof(struct steps, start_ms), 0, turn_late, turn_waits},
	[STEP_DRAIN]       = {drain,       offsetof(struct steps, drain_ms), 0, drain_late, drain_waits},
	[STEP_STOP]        = {stop,        0, 0, NULL, NULL},
	[STEP_START]       = {start,       0, 0, NULL, NULL},
	[STEP_HEALTH]      = {health,      offsetof(struct steps, start_ms), 0, health_late, health_waits},
	[STEP_UP]          = {up,          0, ROUTERS_UP_MS, up_late, up_waits},
	[STEP_BACK]        = {back,        0, 0, NULL, NULL},
	[STEP_BACK_HEALTH] = {back_health, offsetof(struct steps, start_ms), 0, back_late, health_waits},
	[STEP_DONE]        = {NULL, 0, 0, NULL, NULL}, /* runs as the file says, and serves */
	[STEP_GONE]        = {NULL, 0, 0, NULL, NULL}, /* stopped, its files are removed */
	[STEP_LEFT]        = {NULL, 0, 0, NULL, NULL}, /* as it was: nothing has been done */
	[STEP_FAILED]      = {NULL, 0, 0, NULL, NULL},
	// clang-format on
};

bool
step_is_last(enum step step)
{
	return steps[step].tick == NULL;
}

/* The one writer of m->step. */
static void
step_enter(const struct steps *s, struct member *m, enum step step)
{
	uint64_t ms = steps[step].ms;

	if (steps[step].clock != 0)
		memcpy(&ms, (const char *)s + steps[step].clock, sizeof(ms));
	m->step = step;
	m->late_ms = steps[step].late != NULL ? clock_ms() + ms : UINT64_MAX;
	m->waits_ms = clock_ms() + WAITS_MS;
}

static void
act(const char *word, const struct member *m, const char *more)
{
	(void)printf("%s %s%s\n", word, m->name, more);
	(void)fflush(stdout);
}

/* Ends the drain of the URL, if there is one. */
static void
end_drain(const struct steps *s, const struct member *m, const char *url)
{
	if (!routers_have_drained(s->routers, url))
		return;
	act("undrain", m, "");
	routers_undrain(s->routers, url);
}

/* Also after a drain that a killed run has left. */
static void
undrain(const struct steps *s, struct member *m)
{
	if (m->drained != NULL || !s->keep_drains)
		end_drain(s, m, m->url);
}

/* Whatever has failed: the engine may serve, or serve later, at the URL that it had. */
static void
take_back(const struct steps *s, struct member *m)
{
	if (m->drained != NULL)
		end_drain(s, m, m->drained);
}

/* --- whose turn it is
 * ---------------------------------------------------------------------------- */

static bool
is_healthy(const struct steps *s, const char *url)
{
	return url != NULL && http_get(url, s->routers->health_path, NULL) == 200;
}

static const struct member *
member_of(const struct steps *s, const struct topo_engine *e)
{
	for (size_t i = 0; i < s->members->n; i++)
		if (s->members->v[i].engine == e)
			return &s->members->v[i];
	return NULL;
}

/* The engine may be given requests: no step of this run keeps them from it. */
static bool
is_offered(const struct member *m)
{
	return m == NULL || m->step == STEP_TURN || m->step == STEP_DONE || m->step == STEP_LEFT;
}

static size_t
replicas(const struct steps *s, enum topo_role role)
{
	return s->plan->t->groups[role].line != 0 ? s->plan->t->groups[role].replicas : 0;
}

static const char draining[] = "draining";

/* Why the engine does not serve, on whatever host; NULL: it is healthy, and routers give it requests.  One that a killed run has
 * just restarted is healthy before its routers know. */
static const char *
why_not_serving(const struct steps *s, const struct topo_engine *e)
{
	const struct member *local = member_of(s, e);
	const char *why = NULL;
	char *url;

	if (!is_offered(local))
		return "not ready";
	url = local != NULL ? mem_strdup(local->url) : topo_url(e);
	if (!is_healthy(s, url))
		why = "not healthy";
	else if (routers_have_drained(s->routers, url))
		why = draining;
	else {
		const enum routers_view view = routers_see(s->routers, url);

		if (view > ROUTERS_UP)
			why = view == ROUTERS_DRAINED ? draining : "a router does not say up";
	}
	free(url);
	return why;
}

static bool
is_another(const struct topo_engine *e, const struct member *m)
{
	return e->role == m->role && e != m->engine;
}

static bool
another_serves(const struct steps *s, const struct member *m)
{
	for (size_t i = 0; i < s->plan->nengines; i++)
		if (is_another(&s->plan->engines[i], m) &&
			why_not_serving(s, &s->plan->engines[i]) == NULL)
			return true;
	return false;
}

/* Another one serves when someone else ends a drain, and not before. */
static bool
others_are_drained(const struct steps *s, const struct member *m)
{
	bool any = false;

	for (size_t i = 0; i < s->plan->nengines; i++)
		if (is_another(&s->plan->engines[i], m)) {
			if (why_not_serving(s, &s->plan->engines[i]) != draining)
				return false;
			any = true;
		}
	return any;
}

/* One engine of a role at a time. */
static bool
role_is_busy(const struct steps *s, const struct member *m)
{
	for (size_t i = 0; i < s->members->n; i++) {
		const struct member *o = &s->members->v[i];

		if (o != m && o->role == m->role && o->change != CHANGE_NONE &&
			o->step != STEP_TURN && !step_is_last(o->step))
			return true;
	}
	return false;
}

/* An engine that goes waits until another one of its role serves. */
static bool
role_waits_to_go(const struct steps *s, enum topo_role role)
{
	for (size_t i = 0; i < s->members->n; i++) {
		const struct member *m = &s->members->v[i];

		if (m->role == role && m->change == CHANGE_REMOVE && m->step == STEP_TURN)
			return true;
	}
	return false;
}

/* Engines whose change comes before that of `m` are not settled yet.  GPUs and ports go from role to role; whether an engine
 * serves matters to its own role.  An engine that goes may wait for `m`: then `m` waits for none that has not begun, since
 * engines of two roles could wait for each other. */
static bool
others_first(const struct steps *s, const struct member *m)
{
	const bool awaited = role_waits_to_go(s, m->role);

	for (size_t i = 0; i < s->members->n; i++) {
		const struct member *o = &s->members->v[i];

		if (o->change < m->change && !step_is_last(o->step) &&
			!(awaited && o->step == STEP_TURN) &&
			(o->change <= CHANGE_START || o->role == m->role))
			return true;
	}
	return false;
}

static bool
any_is(const struct steps *s, enum step step)
{
	for (size_t i = 0; i < s->members->n; i++)
		if (s->members->v[i].step == step)
			return true;
	return false;
}

/* Probes it once. */
static bool
is_down(const struct steps *s, struct member *m)
{
	if (m->url == NULL)
		return true; /* it has never served */
	m->failed = is_healthy(s, m->url) ? 0 : m->failed + 1;
	return m->failed > 0 && member_is_down(m->failed, routers_see(s->routers, m->url));
}

/* An engine that serves is taken away: not the last one of its role. */
static enum step
take_away(const struct steps *s, struct member *m)
{
	const size_t others = replicas(s, m->role) - (m->engine != NULL);

	if (role_is_busy(s, m))
		return STEP_TURN;
	if (replicas(s, m->role) == 0 || is_down(s, m) || another_serves(s, m))
		return STEP_DRAIN;
	if (s->yes)
		return STEP_DRAIN;
	if (s->keep_drains && others_are_drained(s, m)) {
		(void)complain(
			"%s: all other %s engines are drained, and their drains are kept: this "
			"one is kept, too",
			m->name, topo_role_name(m->role));
		return STEP_LEFT;
	}
	if (others > 0 || m->failed > 0)
		return STEP_TURN;
	(void)complain("%s: it is the only %s engine, and requests would fail meanwhile: say --yes",
		m->name, topo_role_name(m->role));
	return STEP_LEFT;
}

/* The engine runs as the fleet file says, the files may not: such as those of a change that was taken back. */
static enum step
settle_files(const struct steps *s, const struct member *m)
{
	const struct runner *r = s->runner;
	bool changed;

	if (owned_write(&m->files, s->plan->t->name, &changed) != 0 ||
		(changed && r->ops->reload(r) != 0))
		return STEP_FAILED;
	return STEP_HEALTH;
}

/* What is said of an engine that is left alone because another one has failed; NULL: it has nothing to lose. */
static const char *const untouched[CHANGE_N] = {
	[CHANGE_REMOVE] = "not removed",
	[CHANGE_START] = "not started",
	[CHANGE_RESTART] = "not restarted",
};

static enum step
turn(struct steps *s, struct member *m)
{
	if (any_is(s, STEP_FAILED) && untouched[m->change] != NULL) {
		(void)complain("%s: %s", m->name, untouched[m->change]);
		return STEP_LEFT;
	}
	if (others_first(s, m))
		return STEP_TURN;
	switch (m->change) {
	case CHANGE_START:
		return STEP_START;
	case CHANGE_NONE:
	case CHANGE_UNDRAIN:
		return settle_files(s, m);
	case CHANGE_REMOVE:
		if (m->status.pid == 0)
			return STEP_STOP;
		return take_away(s, m);
	case CHANGE_RESTART:
		return take_away(s, m);
	case CHANGE_N:
		break;
	}
	abort(); /* no change has another value */
}

static enum step
turn_late(struct steps *s, struct member *m)
{
	if (others_first(s, m) || role_is_busy(s, m)) {
		step_enter(s, m, STEP_TURN); /* its time counts when it is its turn */
		return STEP_TURN;
	}
	(void)complain("%s: no other %s engine has become healthy: this one is kept", m->name,
		topo_role_name(m->role));
	return STEP_FAILED;
}

/* --- taking away
 * ------------------------------------------------------------------------------ */

/* A drain by a killed run, or by the operator, is the same drain. */
static enum step
drain(struct steps *s, struct member *m)
{
	if (m->url == NULL)
		return STEP_STOP;
	if (m->drained == NULL && !routers_have_drained(s->routers, m->url)) {
		act("drain", m, "");
		routers_drain(s->routers, m->url);
		m->drained = mem_strdup(m->url);
	}
	return routers_load_at(s->routers, m->url) == ROUTERS_IDLE ? STEP_STOP : STEP_DRAIN;
}

static enum step
drain_late(struct steps *s, struct member *m)
{
	m->left = routers_load_at(s->routers, m->url);
	if (m->left == ROUTERS_BUSY)
		(void)complain(
			"%s: still has requests after %llu s: they get the time that its stop has",
			m->name, (unsigned long long)(s->drain_ms / 1000));
	return STEP_STOP;
}

static int
remove_spare_files(const struct steps *s, const struct member *m)
{
	struct words spare = member_spare_files(s->runner, s->plan->t->name, m);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < spare.n; i++)
		rc = owned_remove(spare.v[i], s->plan->t->name);
	words_free(&spare);
	return rc;
}

/* All files of an engine that is gone, and their folder. */
static int
remove_files(const struct steps *s, const struct member *m)
{
	char *folder = runner_drop_in(s->runner, m->unit);
	int rc = remove_spare_files(s, m);

	*strrchr(folder, '/') = '\0';
	if (rc == 0)
		(void)rmdir(folder); /* the user may have a drop-in beside it */
	free(folder);
	return rc;
}

static enum step
stop(struct steps *s, struct member *m)
{
	const struct runner *r = s->runner;
	const bool gone = m->engine == NULL;

	if (!gone || m->status.pid != 0)
		act(gone ? "stop" : "restart", m, "");
	if (r->ops->stop(r, m->unit) != 0)
		return STEP_FAILED;
	if (!gone)
		return STEP_START;
	if (r->ops->forget(r, m->unit) != 0 || remove_files(s, m) != 0 || r->ops->reload(r) != 0)
		return STEP_FAILED;
	return STEP_GONE;
}

/* --- starting
 * --------------------------------------------------------------------------------- */

/* The files change while the engine does not run: so it never runs with others than those on disk. */
static enum step
start(struct steps *s, struct member *m)
{
	const struct runner *r = s->runner;
	bool changed;

	if (m->change == CHANGE_START)
		act("start", m, "");
	/* S1: it may still be ending; systemd may be about to start it again, with the old definition and the
	 * new environment file */
	if ((m->status.state == UNIT_STOPPING || m->status.state == UNIT_FAILED) &&
		r->ops->stop(r, m->unit) != 0)
		return STEP_FAILED;
	if (owned_write(&m->files, s->plan->t->name, &changed) != 0 ||
		(changed && r->ops->reload(r) != 0))
		return STEP_BACK;
	free(m->url);
	m->url = topo_url(m->engine);
	return r->ops->start(r, m->unit) == 0 ? STEP_HEALTH : STEP_BACK;
}

/* True: the unit's process is there. */
static bool
look(const struct steps *s, struct member *m)
{
	return s->runner->ops->status(s->runner, m->unit, &m->status) == 0 &&
	       (m->status.state == UNIT_RUNNING || m->status.state == UNIT_STARTING);
}

/* The engine runs well with its files: the former ones go, and those that it does not need any more. */
static int
confirm_files(const struct steps *s, const struct member *m)
{
	return owned_confirm(&m->files) == 0 ? remove_spare_files(s, m) : -1;
}

static enum step
health(struct steps *s, struct member *m)
{
	const bool there = look(s, m);

	if (!there && (m->change == CHANGE_NONE || m->change == CHANGE_UNDRAIN)) {
		m->change = CHANGE_START; /* as members_look() would say now */
		return STEP_START;
	}
	if (!there) {
		(void)complain("%s: has ended by itself", m->name);
		return STEP_BACK;
	}
	if (!is_healthy(s, m->url))
		return STEP_HEALTH;
	if (confirm_files(s, m) != 0)
		return STEP_FAILED;
	undrain(s, m);
	/* the routers know one that runs on; whether they give it requests is their matter */
	return m->change == CHANGE_NONE ? STEP_DONE : STEP_UP;
}

static enum step
health_late(struct steps *s, struct member *m)
{
	(void)complain("%s: does not answer GET %s with 200 after %llu s", m->name,
		s->routers->health_path, (unsigned long long)(s->start_ms / 1000));
	return STEP_BACK;
}

static enum step
up(struct steps *s, struct member *m)
{
	undrain(s, m); /* again, if the router did not answer the first time */
	return routers_are_settled(s->routers, m->url) ? STEP_DONE : STEP_UP;
}

static enum step
up_late(struct steps *s, struct member *m)
{
	(void)routers_say_late(s->routers, m->name, m->url);
	return STEP_FAILED;
}

/* --- back to the former files
 * -------------------------------------------------------------------- */

static enum step
back(struct steps *s, struct member *m)
{
	const struct runner *r = s->runner;

	runner_show_log(s->runner, m->unit);
	if (!owned_has_former(&m->files)) {
		(void)complain("%s: there are no former files: it is left as it is", m->name);
		return STEP_FAILED;
	}
	if (r->ops->stop(r, m->unit) != 0 || owned_restore(&m->files) != 0 ||
		r->ops->reload(r) != 0)
		return STEP_FAILED;
	act("restart", m, " (former files)");
	return r->ops->start(r, m->unit) == 0 ? STEP_BACK_HEALTH : STEP_FAILED;
}

static enum step
back_health(struct steps *s, struct member *m)
{
	if (!look(s, m))
		return back_late(s, m);
	free(m->url);
	m->url = member_url(s->runner, m); /* that of its former files */
	if (!is_healthy(s, m->url))
		return STEP_BACK_HEALTH;
	undrain(s, m);
	return STEP_FAILED;
}

static enum step
back_late(struct steps *s, struct member *m)
{
	(void)complain("%s: does not come up with its former files either", m->name);
	runner_show_log(s->runner, m->unit);
	return STEP_FAILED;
}

/* --- waits that last
 * --------------------------------------------------------------------------------- */

static bool
turn_waits(const struct steps *s, const struct member *m)
{
	const char *sep = "(";

	if (others_first(s, m) || role_is_busy(s, m))
		return false;
	(void)printf("%s waits for another %s engine ", m->name, topo_role_name(m->role));
	for (size_t i = 0; i < s->plan->nengines; i++) {
		const struct topo_engine *e = &s->plan->engines[i];
		const char *why = is_another(e, m) ? why_not_serving(s, e) : NULL;

		if (why == NULL)
			continue;
		(void)printf("%s%s: %s", sep, e->name, why);
		sep = ", ";
	}
	(void)printf("%s", sep[0] == '(' ? "" : ")");
	return true;
}

static bool
drain_waits(const struct steps *s, const struct member *m)
{
	(void)s;
	(void)printf("%s waits for the end of its requests", m->name);
	return true;
}

static bool
health_waits(const struct steps *s, const struct member *m)
{
	(void)printf("%s waits for 200 from GET %s", m->name, s->routers->health_path);
	return true;
}

static bool
up_waits(const struct steps *s, const struct member *m)
{
	char *why = routers_why_not_up(s->routers, m->url);

	(void)printf("%s waits for a router to say up (%s)", m->name, why);
	free(why);
	return true;
}

/* Once for each step. */
static void
say_wait(const struct steps *s, struct member *m)
{
	const uint64_t now = clock_ms();

	if (now < m->waits_ms || steps[m->step].waits == NULL || !steps[m->step].waits(s, m))
		return;
	(void)printf(", at most %llu s\n", (unsigned long long)((m->late_ms - now) / 1000 + 1));
	(void)fflush(stdout);
	m->waits_ms = UINT64_MAX;
}

/* --- the loop
 * --------------------------------------------------------------------------------- */

/* Goes on until the engine's step has to wait; true: it has moved. */
static bool
advance(struct steps *s, struct member *m)
{
	bool moved = false;

	while (!step_is_last(m->step)) {
		enum step next = steps[m->step].tick(s, m);

		if (next == m->step && clock_ms() >= m->late_ms)
			next = steps[m->step].late(s, m);
		if (next == m->step) {
			say_wait(s, m);
			break;
		}
		if (next == STEP_FAILED)
			take_back(s, m);
		step_enter(s, m, next);
		moved = true;
	}
	return moved;
}

/* Longer and longer while nothing happens. */
static uint64_t
pause_ms(uint64_t idle_ms)
{
	const uint64_t ms = POLL_MS + idle_ms / 8;

	return ms < POLL_MAX_MS ? ms : POLL_MAX_MS;
}

int
steps_run(struct steps *s)
{
	struct members *ms = s->members;
	uint64_t idle_ms = 0;
	size_t open;

	for (size_t i = 0; i < ms->n; i++)
		step_enter(s, &ms->v[i], STEP_TURN);
	do {
		bool moved = false;

		open = 0;
		for (size_t i = 0; i < ms->n; i++) {
			moved = advance(s, &ms->v[i]) || moved;
			open += !step_is_last(ms->v[i].step);
		}
		idle_ms = moved ? 0 : idle_ms + pause_ms(idle_ms);
		if (open > 0 && !moved)
			(void)usleep((useconds_t)pause_ms(idle_ms) * 1000);
	} while (open > 0);
	return any_is(s, STEP_FAILED) || any_is(s, STEP_LEFT);
}

bool
steps_say_cut(const struct steps *s)
{
	static const char *const whether[] = {
		[ROUTERS_UNKNOWN] = "and whether requests were left is not known",
		[ROUTERS_BUSY] = "although requests were left",
	};
	bool any = false;

	for (size_t i = 0; i < s->members->n; i++) {
		const struct member *m = &s->members->v[i];

		if (m->left == ROUTERS_IDLE)
			continue;
		(void)complain(
			"%s: was stopped after --drain-timeout %s", m->name, whether[m->left]);
		any = true;
	}
	return any;
}
