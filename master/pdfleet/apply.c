#include "master/pdfleet/apply.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/host.h"
#include "master/pdfleet/members.h"
#include "master/pdfleet/owned.h"
#include "master/pdfleet/router_unit.h"
#include "master/pdfleet/routers.h"
#include "master/pdfleet/steps.h"
#include "master/pdfleet/tree.h"
#include "shm/base/clock.h"
#include "shm/base/lockfile.h"
#include "shm/base/mem.h"

#define EXIT_DIFFERS 3
#define LOCK_TRIES 25 /* of 200 ms: a killed apply's child may still be about to start an engine */
#define POLL_MS 50

/* This host against the fleet file. */
struct host_view {
	const struct topo_host *host;
	struct routers routers;
	struct members members;
	struct router_unit router;
};

static void
view_free(struct host_view *v)
{
	members_free(&v->members);
	router_unit_free(&v->router);
	routers_free(&v->routers);
}

/* What this host is to become. */
enum goal {
	GOAL_FILE,       /* what the fleet file says */
	GOAL_FILE_AGAIN, /* the same, with engines that have started again */
	GOAL_NOTHING,    /* one without engines and router of the fleet */
};

static int
view_make(const struct topo_plan *p, const struct runner *r, const struct apply_options *o,
	enum goal goal, struct host_view *v)
{
	const struct members_options mo = {
		.remove = goal == GOAL_NOTHING,
		.again = goal == GOAL_FILE_AGAIN,
		.only = o->only,
		.nonly = o->nonly,
		.keep_drains = o->keep_drains,
	};

	*v = (struct host_view){.host = host_find(p->t, o->host)};
	if (v->host == NULL)
		return -1;
	v->routers = routers_of(p, v->host);
	if (router_unit_look(p, v->host, r, &v->routers, &v->router) != 0)
		return -1;
	if (goal == GOAL_NOTHING)
		router_unit_give_up(&v->router);
	return members_look(p, v->host, r, &v->routers, &mo, &v->members);
}

/* --- files of others
 * ------------------------------------------------------------------------ */

/* Before anything is changed. */
static int
view_refuse_foreign(const struct topo_plan *p, const struct host_view *v)
{
	int rc = owned_refuse(&v->router.files, p->t->name);

	for (size_t i = 0; i < v->members.n; i++)
		if (owned_refuse(&v->members.v[i].files, p->t->name) != 0)
			rc = -1;
	return rc;
}

/* --- plan
 * ---------------------------------------------------------------------------------------- */

/* True: a file differs. */
static bool
show_files(const struct topo_files *files, const char *fleet)
{
	bool any = false;

	for (size_t i = 0; i < files->n; i++)
		if (owned_look(&files->v[i], fleet) != OWNED_SAME) {
			owned_diff(&files->v[i]);
			any = true;
		}
	return any;
}

/* What is gone and does not run has files only. */
static bool
has_actions(const struct member *m)
{
	return m->change != CHANGE_REMOVE || m->status.pid != 0;
}

static bool
show_member(const struct runner *r, const struct member *m, const char *fleet)
{
	const char *const *words = change_words[m->change].actions;
	struct words spare = member_spare_files(r, fleet, m);
	bool any = show_files(&m->files, fleet) || spare.n > 0;

	for (; has_actions(m) && *words != NULL; words++) {
		(void)printf("%s %s\n", *words, m->name);
		any = true;
	}
	for (size_t i = 0; i < spare.n; i++)
		(void)printf("remove %s\n", spare.v[i]);
	words_free(&spare);
	return any;
}

static bool
show_router(const struct router_unit *u, const char *fleet)
{
	bool any = show_files(&u->files, fleet);

	if (u->change != ROUTER_NONE) {
		router_unit_say(u);
		any = true;
	}
	if (u->change == ROUTER_REMOVE)
		(void)printf("remove %s\n", u->runner->paths.router);
	return any;
}

static int
show(const struct topo_plan *p, const struct runner *r, const struct apply_options *o,
	enum goal goal)
{
	struct host_view v;
	int rc = view_make(p, r, o, goal, &v) == 0 ? 0 : 1;

	if (rc == 0 && view_refuse_foreign(p, &v) != 0)
		rc = 1;
	if (rc == 0 && v.router.change == ROUTER_START && show_router(&v.router, p->t->name))
		rc = EXIT_DIFFERS;
	for (size_t i = 0; rc != 1 && i < v.members.n; i++)
		if (show_member(r, &v.members.v[i], p->t->name))
			rc = EXIT_DIFFERS;
	if (rc != 1 && v.router.change != ROUTER_START && show_router(&v.router, p->t->name))
		rc = EXIT_DIFFERS;
	view_free(&v);
	return rc;
}

int
apply_show(const struct topo_plan *p, const struct runner *r, const struct apply_options *o)
{
	return show(p, r, o, GOAL_FILE);
}

/* --- apply
 * --------------------------------------------------------------------------------------- */

/* One run at a time for each host and fleet: a descriptor that nothing closes, or -1 after a message. */
static int
lock(const struct topo_plan *p, const struct runner *r)
{
	char *path = mem_printf("%s%s", r->run, p->t->name);
	int fd = tree_folders(path) == 0 ? lockfile_take(path) : -EIO;

	for (int i = 1; fd == -EWOULDBLOCK && i < LOCK_TRIES; i++)
		fd = lockfile_take(path);
	if (fd == -EWOULDBLOCK)
		(void)complain("another apply or roll of %s runs on this host", p->t->name);
	else if (fd < 0 && fd != -EIO)
		(void)complain("%s.lock: %s", path, strerror(-fd));
	free(path);
	return fd < 0 ? -1 : fd;
}

static bool
takes_away(const struct members *ms)
{
	for (size_t i = 0; i < ms->n; i++)
		if (ms->v[i].change == CHANGE_REMOVE || ms->v[i].change == CHANGE_RESTART)
			return true;
	return false;
}

static void
tell_of_remote(const struct host_view *v)
{
	for (size_t i = 0; takes_away(&v->members) && i < v->routers.n; i++)
		if (v->routers.v[i].control == NULL)
			(void)printf("the router on %s cannot be asked for drains from here: its "
				     "requests get the time of --drain-timeout\n",
				v->routers.v[i].host->name);
}

/* Whether the routers give the engine requests; one that this run has not touched is their matter. */
static bool
is_listed(const struct host_view *v, const struct member *m)
{
	if (m->step != STEP_DONE || m->change == CHANGE_NONE)
		return true;
	if (v->router.control != NULL && !routers_know(&v->routers, m->url))
		return false;
	return routers_are_settled(&v->routers, m->url);
}

static int
wait_listed(const struct host_view *v)
{
	const uint64_t end = clock_ms() + ROUTERS_UP_MS;

	for (size_t i = 0; i < v->members.n; i++)
		while (!is_listed(v, &v->members.v[i])) {
			if (clock_ms() >= end)
				return routers_say_late(
					&v->routers, v->members.v[i].name, v->members.v[i].url);
			(void)usleep(POLL_MS * 1000);
		}
	return 0;
}

/* A router that does not run starts first: it serves with the engines that are there.  One that runs gets its new file last: it
 * has no endpoint that was never there. */
static int
bring(struct host_view *v, struct steps *s)
{
	const bool first = v->router.change == ROUTER_START;

	if (first && router_unit_apply(&v->router) != 0)
		return 1;
	if (steps_run(s) != 0)
		return 1;
	if (!first && router_unit_apply(&v->router) != 0)
		return 1;
	return wait_listed(v) == 0 ? 0 : 1;
}

static int
converge(const struct topo_plan *p, const struct runner *r, const struct apply_options *o,
	struct host_view *v)
{
	struct steps s = {
		.plan = p,
		.runner = r,
		.routers = &v->routers,
		.members = &v->members,
		.start_ms = o->start_s * 1000ull,
		.drain_ms = o->drain_s * 1000ull,
		.keep_drains = o->keep_drains,
		.yes = o->yes,
	};
	const int rc = bring(v, &s);

	return steps_say_cut(&s) ? 1 : rc;
}

static int
run_locked(const struct topo_plan *p, const struct runner *r, const struct apply_options *o,
	enum goal goal)
{
	struct host_view v;
	int rc = 1;

	if (view_make(p, r, o, goal, &v) == 0 && view_refuse_foreign(p, &v) == 0) {
		tell_of_remote(&v);
		rc = converge(p, r, o, &v);
	}
	view_free(&v);
	return rc;
}

static int
run(const struct topo_plan *p, const struct runner *r, const struct apply_options *o,
	enum goal goal)
{
	int fd = lock(p, r), rc = fd != -1 ? run_locked(p, r, o, goal) : 1;

	if (fd != -1)
		(void)close(fd);
	return rc;
}

int
apply_run(const struct topo_plan *p, const struct runner *r, const struct apply_options *o)
{
	return run(p, r, o, GOAL_FILE);
}

int
apply_remove(const struct topo_plan *p, const struct runner *r, const struct apply_options *o)
{
	int rc;

	if (o->yes)
		return run(p, r, o, GOAL_NOTHING);
	rc = show(p, r, o, GOAL_NOTHING);
	if (rc != EXIT_DIFFERS)
		return rc;
	(void)fflush(stdout);
	(void)complain("that would be the end of the fleet on this host: say --yes");
	return 1;
}

/* A roll that was killed has left an engine that does not run; that is no reason to refuse the next one. */
static bool
is_as_the_file(const struct host_view *v)
{
	bool yes = v->router.change == ROUTER_NONE;

	for (size_t i = 0; i < v->members.n; i++)
		yes = yes && v->members.v[i].change != CHANGE_REMOVE &&
		      v->members.v[i].change != CHANGE_RESTART;
	return yes;
}

/* Each engine that is to be restarted is on this host. */
static int
find_named(const struct topo_plan *p, const struct host_view *v, const struct apply_options *o)
{
	int rc = 0;

	for (int k = 0; k < o->nonly; k++) {
		size_t i = 0;

		while (i < v->members.n &&
			!member_is_named(v->members.v[i].name, p->t->name, o->only[k]))
			i++;
		if (i == v->members.n)
			rc = complain("this host has no engine %s", o->only[k]);
	}
	return rc;
}

int
apply_roll(const struct topo_plan *p, const struct runner *r, const struct apply_options *o)
{
	int fd = lock(p, r), rc = 1;
	struct host_view v;

	if (fd == -1)
		return 1;
	if (view_make(p, r, o, GOAL_FILE, &v) == 0 && view_refuse_foreign(p, &v) == 0) {
		if (is_as_the_file(&v))
			rc = find_named(p, &v, o) == 0 ? 0 : 1;
		else
			(void)complain("this host differs from the fleet file: see plan, and apply "
				       "it first");
	}
	view_free(&v);
	if (rc == 0)
		rc = run_locked(p, r, o, GOAL_FILE_AGAIN);
	(void)close(fd);
	return rc;
}
