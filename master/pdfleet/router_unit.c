#include "master/pdfleet/router_unit.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/control.h"
#include "master/pdfleet/owned.h"
#include "master/pdfleet/process.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"

#define START_MS 60000 /* from its start until it answers */
#define POLL_MS 50
#define CONTROL_PATH_MAX sizeof(((struct sockaddr_un *)0)->sun_path)

const struct router_words router_words[] = {
	[ROUTER_NONE] = {NULL, NULL},
	[ROUTER_START] = {"start", "it does not run"},
	[ROUTER_RELOAD] = {"reload", "it runs with another configuration"},
	[ROUTER_REMOVE] = {"stop", "the fleet file has no router on this host"},
};

static bool
answers(const struct router_unit *u, const char *command, struct membuf *b)
{
	b->n = 0;
	return control_say(u->control, command, b) == CONTROL_OK;
}

/* What the router says of its file on this host. */
enum file_use {
	FILE_UNKNOWN, /* it does not answer, or refuses the file */
	FILE_WAITS,   /* for a reload */
	FILE_IN_FORCE, /* a reload would change nothing; keys that need a restart stay as they are until then */
};

static bool
needs_restart(const char *line, size_t n)
{
	static const char end[] = "(restart)";
	const size_t len = sizeof(end) - 1;

	return n >= len && memcmp(line + n - len, end, len) == 0;
}

static enum file_use
file_use(const struct router_unit *u)
{
	struct membuf b = {.p = NULL};
	enum file_use ret = answers(u, "config diff", &b) ? FILE_IN_FORCE : FILE_UNKNOWN;

	for (size_t at = 0; ret == FILE_IN_FORCE && at < b.n;) {
		const char *line = b.p + at, *eol = memchr(line, '\n', b.n - at);
		const size_t n = eol != NULL ? (size_t)(eol - line) : b.n - at;

		if (!needs_restart(line, n))
			ret = FILE_WAITS;
		at += n + 1;
	}
	membuf_free(&b);
	return ret;
}

static enum router_change
change_of(const struct router_unit *u)
{
	if (u->files.n == 0)
		return owned_is(u->runner->paths.router, u->plan->t->name) ? ROUTER_REMOVE
									   : ROUTER_NONE;
	if (u->status.state != UNIT_RUNNING)
		return ROUTER_START;
	if (owned_look(&u->files.v[0], u->plan->t->name) != OWNED_SAME || file_use(u) == FILE_WAITS)
		return ROUTER_RELOAD;
	return ROUTER_NONE;
}

/* A router of another configuration answers where ours should: -1 after a message. */
static int
refuse_another(const struct router_unit *u)
{
	const pid_t pid = control_peer(u->control);
	char *file = pid != 0 ? process_file(pid, ROUTER_UNIT) : NULL, full[PATH_MAX];
	const char *ours =
		realpath(u->runner->paths.router, full) != NULL ? full : u->runner->paths.router;
	int rc = 0;

	if (file != NULL && strcmp(file, ours) != 0)
		rc = complain(
			"%s: a router that is not of this fleet answers there: process %d, with "
			"%s; set another control_socket in router.config",
			u->control, (int)pid, file);
	free(file);
	return rc;
}

int
router_unit_look(const struct topo_plan *p, const struct topo_host *h, const struct runner *r,
	const struct routers *routers, struct router_unit *ret)
{
	*ret = (struct router_unit){.plan = p, .runner = r, .files = topo_render_router(p, h)};
	for (size_t i = 0; i < routers->n; i++)
		if (routers->v[i].host == h)
			ret->control = routers->v[i].control;
	if (ret->files.n > 0 && ret->control == NULL)
		return complain("the router needs a control_socket");
	if (ret->files.n > 0 && strlen(ret->control) >= CONTROL_PATH_MAX)
		return complain(
			"%s: too long for a control socket: set control_socket in router.config",
			ret->control);
	if (ret->files.n > 0 && refuse_another(ret) != 0)
		return -1;
	if (r->ops->status(r, ROUTER_UNIT, &ret->status) != 0)
		return -1;
	ret->change = change_of(ret);
	return 0;
}

void
router_unit_give_up(struct router_unit *u)
{
	topo_files_free(&u->files);
	u->change = change_of(u);
}

void
router_unit_free(struct router_unit *u)
{
	topo_files_free(&u->files);
}

void
router_unit_say(const struct router_unit *u)
{
	(void)printf("%s " ROUTER_UNIT "\n", router_words[u->change].action);
	(void)fflush(stdout);
}

static bool
wait_for_answer(const struct router_unit *u)
{
	const uint64_t end = clock_ms() + START_MS;
	struct membuf b = {.p = NULL};
	struct unit_status status;
	bool yes = false, runs = true;

	while (!yes && runs && clock_ms() < end) {
		yes = answers(u, "ping", &b);
		runs = u->runner->ops->status(u->runner, ROUTER_UNIT, &status) == 0 &&
		       (status.state == UNIT_RUNNING || status.state == UNIT_STARTING);
		if (!yes)
			(void)usleep(POLL_MS * 1000);
	}
	membuf_free(&b);
	return yes;
}

/* The router's former file is only kept where there was one that it ran with. */
static int
go_back(const struct router_unit *u, const char *what)
{
	(void)complain_of(ROUTER_UNIT, what);
	runner_show_log(u->runner, ROUTER_UNIT);
	(void)owned_restore(&u->files);
	return -1;
}

static int
start(const struct router_unit *u)
{
	bool changed;

	router_unit_say(u);
	if (owned_write(&u->files, u->plan->t->name, &changed) != 0)
		return -1;
	if (u->runner->ops->start(u->runner, ROUTER_UNIT) != 0 || !wait_for_answer(u))
		return go_back(u, "does not start");
	return owned_confirm(&u->files);
}

static int
reload(const struct router_unit *u)
{
	struct membuf b = {.p = NULL};
	enum control_answer a;
	bool changed;
	int rc;

	/* a former one that a killed run has left is older than this one */
	if (file_use(u) == FILE_IN_FORCE && owned_confirm(&u->files) != 0)
		return -1;
	if (owned_write(&u->files, u->plan->t->name, &changed) != 0)
		return -1;
	router_unit_say(u);
	a = control_say(u->control, "reload", &b);
	if (a == CONTROL_OK)
		rc = owned_confirm(&u->files);
	else
		rc = go_back(u, a == CONTROL_ERR ? b.p : "no answer on its control socket");
	membuf_free(&b);
	return rc;
}

static int
drop(const struct router_unit *u)
{
	const struct runner *r = u->runner;

	router_unit_say(u);
	if (r->ops->stop(r, ROUTER_UNIT) != 0 || r->ops->forget(r, ROUTER_UNIT) != 0)
		return -1;
	return owned_remove(r->paths.router, u->plan->t->name);
}

int
router_unit_apply(const struct router_unit *u)
{
	switch (u->change) {
	case ROUTER_NONE:
		return owned_confirm(&u->files); /* a killed run may have left a former one */
	case ROUTER_START:
		return start(u);
	case ROUTER_RELOAD:
		return reload(u);
	case ROUTER_REMOVE:
		return drop(u);
	}
	return -1;
}
