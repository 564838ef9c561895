#include "master/supervise/drains.h"

#include <assert.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "master/fleet/fleet.h"
#include "master/fleet/weight.h"
#include "master/supervise/takeover.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"

#define WAIT_MS 2000 /* for older instances; pdctl waits for 5 s */

/* A command that waits for older instances, or for the disk. */
struct command {
	TAILQ_ENTRY(command) link;
	struct drains *owner;
	enum drain_what what;
	uint64_t ticket;
	size_t waits_for;         /* older instances */
	struct drain_left own;    /* LOOK: what this instance has left there */
	struct drain_left others; /* what those have that have answered */
	struct evbuffer *text;
	struct event *late;
};
TAILQ_HEAD(command_list, command);

struct drains {
	struct event_base *base;
	struct fleet *fleet;
	struct takeover *takeover;
	struct drains_hooks hooks;
	struct command_list commands; /* as many as the control socket has clients */
};

static void
command_free(struct command *c)
{
	TAILQ_REMOVE(&c->owner->commands, c, link);
	evbuffer_free(c->text);
	event_free(c->late);
	free(c);
}

static void
finish(struct command *c, const char *error)
{
	struct drains *d = c->owner;

	if (error == NULL && c->what == DRAIN_LOOK)
		(void)evbuffer_add_printf(c->text,
			"%" PRIu32 " in flight, %" PRIu32 " KV outstanding, %s (%" PRIu32
			" of %" PRIu32 " up)\n",
			c->own.in_flight + c->others.in_flight, c->own.kv + c->others.kv,
			c->own.word, c->own.up, c->own.n);
	else if (error == NULL && c->others.in_flight + c->others.kv > 0)
		(void)evbuffer_add_printf(c->text,
			"Older instances: %" PRIu32 " in flight, %" PRIu32 " KV outstanding.\n",
			c->others.in_flight, c->others.kv);
	if (error == NULL && c->what != DRAIN_LOOK)
		drain_print_unsaved(
			d->fleet, c->what == DRAIN_WEIGHT ? "weights" : "drains", c->text);
	d->hooks.done(d->hooks.arg, c->ticket, c->text, error);
	command_free(c);
}

static void
finish_if_done(struct command *c)
{
	if (c->waits_for > 0)
		return;
	(void)evtimer_del(c->late);
	if (c->what == DRAIN_LOOK || fleet_state_is_settled(c->owner->fleet))
		finish(c, NULL);
}

static void
on_late(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	finish(arg, "an older instance does not answer: its requests may still go there");
}

/* What this instance does.  0, or -1 with the reason in c->text. */
static int
act(struct command *c, const char *words)
{
	struct fleet *f = c->owner->fleet;

	if (c->what == DRAIN_BEGIN)
		return drain_begin(f, words, c->text);
	if (c->what == DRAIN_END)
		return drain_end(f, words, c->text);
	if (c->what == DRAIN_WEIGHT)
		return weight_set(f, words, c->text);
	return drain_look(f, words, &c->own, c->text);
}

static struct command *
command_new(struct drains *d, enum drain_what what, uint64_t ticket)
{
	struct command *c = MEM_NEW(struct command);

	c->owner = d;
	c->what = what;
	c->ticket = ticket;
	c->text = evbuffer_new();
	c->late = evtimer_new(d->base, on_late, c);
	assert(c->text != NULL && c->late != NULL);
	TAILQ_INSERT_TAIL(&d->commands, c, link);
	return c;
}

/* The reason is in c->text. */
static void
refuse(struct command *c)
{
	char why[4096];
	const ev_ssize_t n = evbuffer_remove(c->text, why, sizeof(why) - 1);

	why[n > 0 ? n : 0] = '\0';
	(void)evbuffer_drain(c->text, evbuffer_get_length(c->text));
	finish(c, why);
}

void
drains_ask(struct drains *d, enum drain_what what, uint64_t ticket, const char *words)
{
	const struct timeval late = clock_tv(WAIT_MS);
	struct command *c = command_new(d, what, ticket);

	if (fleet_state_is_held(d->fleet)) {
		finish(c, "an upgrade has replaced this instance: ask the new one");
		return;
	}
	if (act(c, words) != 0) {
		refuse(c);
		return;
	}
	c->waits_for = takeover_tell(d->takeover, what, ticket, words);
	if (c->waits_for > 0)
		(void)evtimer_add(c->late, &late);
	finish_if_done(c);
}

static struct command *
find(const struct drains *d, uint64_t ticket)
{
	struct command *c;

	TAILQ_FOREACH(c, &d->commands, link)
	if (c->ticket == ticket)
		return c;
	return NULL;
}

void
drains_forget(struct drains *d, uint64_t ticket)
{
	struct command *c = find(d, ticket);

	if (c != NULL)
		command_free(c);
}

static void
one_less(struct command *c)
{
	if (c->waits_for > 0)
		c->waits_for--;
	finish_if_done(c);
}

void
drains_said(struct drains *d, uint64_t ticket, const struct drain_left *left)
{
	struct command *c = find(d, ticket);

	if (c == NULL)
		return; /* it was too late, or another instance has asked */
	c->others.in_flight += left->in_flight;
	c->others.kv += left->kv;
	one_less(c);
}

void
drains_gone(struct drains *d, uint64_t said)
{
	for (struct command *c = TAILQ_FIRST(&d->commands), *next; c != NULL; c = next) {
		next = TAILQ_NEXT(c, link);
		if (c->ticket > said)
			one_less(c);
	}
}

void
drains_turn(struct drains *d)
{
	for (struct command *c = TAILQ_FIRST(&d->commands), *next; c != NULL; c = next) {
		next = TAILQ_NEXT(c, link);
		finish_if_done(c);
	}
}

struct drains *
drains_new(struct event_base *base, struct fleet *fleet, struct takeover *takeover,
	const struct drains_hooks *hooks)
{
	struct drains *d = MEM_NEW(struct drains);

	d->base = base;
	d->fleet = fleet;
	d->takeover = takeover;
	d->hooks = *hooks;
	TAILQ_INIT(&d->commands);
	return d;
}

void
drains_free(struct drains **pd)
{
	struct drains *d = *pd;

	if (d == NULL)
		return;
	while (!TAILQ_EMPTY(&d->commands))
		command_free(TAILQ_FIRST(&d->commands));
	free(d);
	*pd = NULL;
}
