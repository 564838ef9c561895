#include "master/supervise/takeover.h"

#include <assert.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/fleet/drain.h"
#include "master/fleet/fleet.h"
#include "master/supervise/control.h"
#include "master/supervise/inherit.h"
#include "master/supervise/listen.h"
#include "master/supervise/procs.h"
#include "master/supervise/reload.h"
#include "master/supervise/sd.h"
#include "master/supervise/talk.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/core/seg.h"
#include "shm/metrics.h"

/* Engines that have no outcome of their first probes by then are left to later probes. */
#define SETTLE_MS 10000
#define POLL_MS 10
/* with one more the oldest instance must end within drain_timeout */
#define OLD_USUAL 8

enum phase { TP_GIVEN_UP, TP_STARTING, TP_READY, TP_TRIAL, TP_FINAL };

/* An older instance that has yet to end. */
struct older {
	struct takeover *owner;
	uint32_t instance;
	struct talk *talk;
	int notices;
	uint64_t left; /* requests */
	bool stops;    /* fact: it has asked this instance to stop, and waits for it */
	uint64_t said; /* the last number it has answered to: takeover_tell() */
};

struct takeover {
	struct takeover_parts parts;
	struct takeover_hooks hooks;
	enum phase phase;
	uint64_t started_ms;
	struct event *ev_poll;
	struct older *older[INHERIT_OLD_MAX + 1]; /* the oldest first */
	size_t n;
	struct notices_to to[INHERIT_OLD_MAX + 1]; /* of those */
	int state;                                 /* the memfd; -1: none */
};

/* --- what is reported -------------------------------------------------------------------------- */

/* "message: why" */
static void
on_error(void *arg, const char *msg, const struct log_field *fields, size_t n)
{
	const struct inherit *in = arg;
	const char *why = "";

	for (size_t i = 0; i < n; i++)
		if (strcmp(fields[i].key, "error") == 0 && fields[i].type == LOG_T_STR)
			why = fields[i].v.s;
	talk_say_value_on(
		in->from.talk, TALK_ERROR, "%.100s%s%.300s", msg, why[0] != '\0' ? ": " : "", why);
}

void
takeover_report_errors(const struct inherit *in)
{
	union {
		const struct inherit *in;
		void *arg;
	} u = {in};

	log_errors_to(on_error, u.arg);
}

static void
show(const struct takeover *t)
{
	struct metrics_slab *slab = seg_slab(t->parts.seg, SLOT_MASTER(t->parts.seg));
	uint64_t left = 0;

	for (size_t i = 0; i < t->n; i++)
		left += t->older[i]->left;
	slab->gauges[G_INSTANCE] = t->parts.seg->hdr->instance;
	slab->gauges[G_OLD_INSTANCES] = t->phase >= TP_TRIAL ? (int64_t)t->n : 0;
	slab->gauges[G_OLD_REQUESTS] = (int64_t)left;
}

void
takeover_status(const struct takeover *t, struct evbuffer *out, bool json)
{
	const char *sep = "";

	if (json)
		(void)evbuffer_add_printf(out, "[");
	for (size_t i = 0; i < t->n; i++) {
		(void)evbuffer_add_printf(out,
			json ? "%s{\"instance\":%u,\"requests\":%llu}"
			     : "%solder instance=%u requests=%llu\n",
			sep, t->older[i]->instance, (unsigned long long)t->older[i]->left);
		sep = json ? "," : "";
	}
	if (json)
		(void)evbuffer_add_printf(out, "]");
}

/* --- older instances ---------------------------------------------------------------------------- */

static void
list_notices(struct takeover *t)
{
	for (size_t i = 0; i < t->n; i++)
		t->to[i] = (struct notices_to){t->older[i]->instance, t->older[i]->notices};
	procs_notices_to(t->parts.procs, t->to, t->n);
}

static void
older_drop(struct older *o)
{
	struct takeover *t = o->owner;
	size_t i = 0;

	while (t->older[i] != o)
		i++;
	t->n--;
	memmove(&t->older[i], &t->older[i + 1], (t->n - i) * sizeof(struct older *));
	talk_free(&o->talk);
	(void)close(o->notices);
	free(o);
	list_notices(t);
	show(t);
}

/* The newest of the older ones has started this instance. */
static bool
is_from(const struct older *o)
{
	return o->owner->phase != TP_FINAL && o->instance == o->owner->parts.in->from.instance;
}

static void
read_state(const struct takeover *t, struct membuf *out)
{
	char buf[4096];
	ssize_t n;

	while ((n = pread(t->state, buf, sizeof(buf), (off_t)out->n)) > 0)
		membuf_add(out, buf, (size_t)n);
}

static void
drop_state(struct takeover *t)
{
	if (t->state != -1)
		(void)close(t->state);
	t->state = -1;
}

/* The older instance accepts no longer. */
static void
take(struct takeover *t)
{
	const struct takeover_parts *p = &t->parts;
	struct membuf drains = {0};

	if (t->phase != TP_READY)
		return;
	read_state(t, &drains);
	drop_state(t);
	fleet_take_drains(p->fleet, &drains);
	membuf_free(&drains);
	t->phase = TP_TRIAL;
	log_errors_to(NULL, NULL);
	procs_release(p->procs);
	/* the disk may take its time: this instance serves already */
	fleet_take_state(p->fleet, reload_conf(p->reload)->state_file, p->in->state_lock);
	control_pause(*p->control, false);
	for (size_t i = 0; i < t->n; i++)
		if (!is_from(t->older[i])) {
			talk_pause(t->older[i]->talk, false);
			talk_say(t->older[i]->talk, TALK_REPORT);
		}
	show(t);
	log_info("this instance serves in place of the older one",
		LOG_U("instance", p->seg->hdr->instance));
}

static void
make_room(const struct takeover *t)
{
	if (t->n <= OLD_USUAL)
		return;
	log_warn("the oldest instance must end: another upgrade has begun",
		LOG_U("instance", t->older[0]->instance), LOG_U("instances", t->n + 1));
	talk_say(t->older[0]->talk, TALK_END);
}

static void
final(struct takeover *t)
{
	const struct takeover_parts *p = &t->parts;

	if (t->phase != TP_TRIAL)
		return;
	t->phase = TP_FINAL;
	sd_mute(p->sd, false);
	sd_tell_ready(p->sd);
	listeners_own(p->listeners);
	reload_keep_listeners(p->reload);
	listeners_store(p->listeners, p->sd);
	control_own(*p->control, p->in);
	make_room(t);
	log_info("the older instance will not serve again",
		LOG_U("instance", p->seg->hdr->instance));
}

/* --- what they say -------------------------------------------------------------------------------- */

static void
on_left(void *arg, const char *value)
{
	struct older *o = arg;
	uint64_t left;

	if (!talk_number(&value, UINT32_MAX, &left))
		return;
	o->left = left;
	show(o->owner);
}

static void
on_left_at(void *arg, const char *value)
{
	struct older *o = arg;
	const struct takeover *t = o->owner;
	uint64_t number, in_flight, kv;

	if (!talk_number(&value, UINT64_MAX, &number) ||
		!talk_number(&value, UINT32_MAX, &in_flight) ||
		!talk_number(&value, UINT32_MAX, &kv))
		return;
	o->said = number;
	t->hooks.said(t->hooks.arg, number,
		&(struct drain_left){.in_flight = (uint32_t)in_flight, .kv = (uint32_t)kv});
}

static void
on_announced(void *arg, const char *value)
{
	const struct older *o = arg;

	fleet_take_announced(o->owner->parts.fleet, value);
}

static void
on_take(void *arg, const char *value)
{
	const struct older *o = arg;

	(void)value;
	take(o->owner);
}

static void
on_final(void *arg, const char *value)
{
	const struct older *o = arg;

	(void)value;
	final(o->owner);
}

static void
stops(struct older *o, bool now)
{
	o->stops = true;
	o->owner->hooks.stop(o->owner->hooks.arg, now);
}

static void
on_stop(void *arg, const char *value)
{
	(void)value;
	stops(arg, false);
}

static void
on_stop_now(void *arg, const char *value)
{
	(void)value;
	stops(arg, true);
}

/* Of any older instance, and of the one that has started this one. */
static talk_fn *const of_any[TALK_NWORDS] = {[TALK_LEFT] = on_left, [TALK_LEFT_AT] = on_left_at},
		      *const of_from[TALK_NWORDS] = {
			      [TALK_LEFT] = on_left,
			      [TALK_LEFT_AT] = on_left_at,
			      [TALK_ANNOUNCED] = on_announced,
			      [TALK_TAKE] = on_take,
			      [TALK_FINAL] = on_final,
			      [TALK_STOP] = on_stop,
			      [TALK_STOP_NOW] = on_stop_now,
};

static void
on_end(void *arg)
{
	struct older *o = arg;
	struct takeover *t = o->owner;

	if (is_from(o) && (t->phase == TP_STARTING || t->phase == TP_READY)) {
		t->phase = TP_GIVEN_UP;
		t->hooks.refused(t->hooks.arg);
		log_errors_to(NULL, NULL); /* no one reads there any more */
	} else {
		log_info("older instance gone", LOG_U("instance", o->instance));
		if (is_from(o))
			final(t); /* it has died */
		t->hooks.gone(t->hooks.arg, o->said);
	}
	older_drop(o);
}

static void
older_add(struct takeover *t, const struct inherit_old *old)
{
	struct older *o = MEM_NEW(struct older);
	struct talk_hooks hooks = {of_any, on_end, o};

	o->owner = t;
	o->instance = old->instance;
	o->notices = old->notices;
	if (is_from(o))
		hooks.on = of_from;
	o->talk = talk_new(t->parts.base, old->talk, &hooks);
	t->older[t->n++] = o;
	if (!is_from(o))
		talk_pause(o->talk, true);
}

/* --- this instance ------------------------------------------------------------------------------ */

static void
on_poll(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg; /* waking up is enough: takeover_turn() */
}

struct takeover *
takeover_new(const struct takeover_parts *parts, const struct takeover_hooks *hooks)
{
	struct takeover *t = MEM_NEW(struct takeover);
	const struct timeval poll = clock_tv(POLL_MS);

	t->parts = *parts;
	t->hooks = *hooks;
	t->phase = TP_FINAL;
	t->state = parts->in->state;
	t->started_ms = clock_ms();
	t->ev_poll = event_new(parts->base, -1, EV_PERSIST, on_poll, t);
	assert(t->ev_poll != NULL);
	if (parts->in->instance != 0) {
		t->phase = TP_STARTING;
		for (size_t i = 0; i < parts->in->nold; i++)
			older_add(t, &parts->in->old[i]);
		older_add(t, &parts->in->from);
		sd_mute(parts->sd, true);
		procs_hold(parts->procs);
		(void)event_add(t->ev_poll, &poll);
	}
	list_notices(t);
	show(t);
	return t;
}

void
takeover_free(struct takeover **pt)
{
	struct takeover *t = *pt;

	if (t == NULL)
		return;
	log_errors_to(NULL, NULL);
	takeover_leave(t);
	event_free(t->ev_poll);
	drop_state(t);
	free(t);
	*pt = NULL;
}

static void
get_ready(struct takeover *t)
{
	const struct talk *from;

	if (reload_number(t->parts.reload) == 0)
		return;
	if (!fleet_is_settled(t->parts.fleet) && clock_ms() - t->started_ms < SETTLE_MS)
		return;
	(void)event_del(t->ev_poll);
	from = t->older[t->n - 1]->talk;
	t->phase = TP_READY;
	talk_say_value(from, TALK_DRAIN_MS, "%llu",
		(unsigned long long)reload_conf(t->parts.reload)->upgrade_drain_ms);
	talk_say(from, TALK_READY);
}

void
takeover_turn(struct takeover *t)
{
	if (t->phase == TP_STARTING)
		get_ready(t);
	else if (t->phase == TP_TRIAL && procs_die_young(t->parts.procs))
		t->hooks.failed(t->hooks.arg, "a worker dies again and again");
}

bool
takeover_give_up(struct takeover *t, const char *why)
{
	if (t->phase == TP_FINAL)
		return false;
	if (t->phase != TP_GIVEN_UP)
		talk_say_value(t->older[t->n - 1]->talk, TALK_ERROR, "%.300s", why);
	t->phase = TP_GIVEN_UP;
	return true;
}

void
takeover_stop(struct takeover *t, bool now)
{
	if (t->phase < TP_TRIAL)
		t->phase = TP_GIVEN_UP; /* whatever the older one says now comes too late */
	for (size_t i = 0; t->phase >= TP_TRIAL && i < t->n; i++)
		if (!t->older[i]->stops)
			talk_say(t->older[i]->talk, now ? TALK_STOP_NOW : TALK_STOP);
}

unsigned
takeover_waits_for(const struct takeover *t)
{
	unsigned n = 0;

	for (size_t i = 0; t->phase >= TP_TRIAL && i < t->n; i++)
		n += !t->older[i]->stops;
	return n;
}

size_t
takeover_tell(struct takeover *t, enum drain_what what, uint64_t number, const char *words)
{
	static const enum talk_word said_as[] = {[DRAIN_BEGIN] = TALK_DRAIN,
		[DRAIN_END] = TALK_UNDRAIN,
		[DRAIN_LOOK] = TALK_IN_FLIGHT,
		[DRAIN_WEIGHT] = TALK_WEIGHT};

	if (t->phase < TP_TRIAL)
		return 0;
	for (size_t i = 0; i < t->n; i++)
		talk_say_value(t->older[i]->talk, said_as[what], "%" PRIu64 " %s", number, words);
	return what == DRAIN_WEIGHT ? 0 : t->n;
}

/* --- this instance is replaced ------------------------------------------------------------------ */

const char *
takeover_make_final(struct takeover *t)
{
	if (t->phase < TP_TRIAL)
		return "this instance has yet to take the place of an older one";
	if (t->n >= INHERIT_OLD_MAX)
		return "too many older instances still finish their requests";
	if (t->phase == TP_TRIAL)
		talk_say(t->older[t->n - 1]->talk, TALK_COMMIT);
	return NULL;
}

bool
takeover_is_final(const struct takeover *t)
{
	return t->phase == TP_FINAL;
}

void
takeover_pass(const struct takeover *t, struct inherit *in)
{
	for (size_t i = 0; i < t->n && in->nold < INHERIT_OLD_MAX; i++)
		in->old[in->nold++] = (struct inherit_old){
			t->older[i]->instance, talk_fd(t->older[i]->talk), t->older[i]->notices};
}

void
takeover_pause(struct takeover *t, bool pause)
{
	for (size_t i = 0; i < t->n; i++)
		talk_pause(t->older[i]->talk, pause);
}

void
takeover_leave(struct takeover *t)
{
	while (t->n > 0)
		older_drop(t->older[t->n - 1]);
}
