#include "master/pdfleet/runner.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"

#define STOP_S 150 /* TimeoutStopSec of systemd/pdrouter-engine@.service */

const char *
unit_state_name(enum unit_state state)
{
	static const char *const names[UNIT_STATE_N] = {
		[UNIT_ABSENT] = "absent",
		[UNIT_STOPPED] = "stopped",
		[UNIT_STARTING] = "starting",
		[UNIT_RUNNING] = "running",
		[UNIT_STOPPING] = "stopping",
		[UNIT_FAILED] = "failed",
	};

	return names[state];
}

static struct runner *
make(const struct runner_ops *ops, const struct topo_paths *paths, char *run)
{
	struct runner *r = MEM_NEW(struct runner);

	r->ops = ops;
	r->paths = *paths;
	r->run = run;
	r->stop_s = STOP_S;
	return r;
}

struct runner *
runner_system(void)
{
	const struct topo_paths paths = {
		.fleet = mem_strdup(topo_paths_system.fleet),
		.units = mem_strdup(topo_paths_system.units),
		.router = mem_strdup(topo_paths_system.router),
	};

	return make(&runner_systemd_ops, &paths, mem_strdup("/run/pdrouter-fleet/"));
}

struct runner *
runner_user(void)
{
	const char *home = getenv("HOME"), *run = getenv("XDG_RUNTIME_DIR");
	struct topo_paths paths;
	struct runner *r;

	if (home == NULL || home[0] != '/') {
		(void)complain("--user: HOME is not the path of a folder");
		return NULL;
	}
	paths = (struct topo_paths){
		.fleet = mem_printf("%s/.config/pdrouter/fleet/", home),
		.units = mem_printf("%s/.config/systemd/user/", home),
		.router = mem_printf("%s/.config/pdrouter/pdrouter.yaml", home),
		.control = run != NULL ? mem_printf("%s/pdrouter/control.sock", run)
				       : mem_printf("/run/user/%u/pdrouter/control.sock",
						 (unsigned)getuid()),
	};
	r = make(&runner_systemd_ops, &paths,
		run != NULL ? mem_printf("%s/pdrouter-fleet/", run)
			    : mem_printf("%s/.config/pdrouter/", home));
	r->user = true;
	return r;
}

struct runner *
runner_plain(const char *dir)
{
	struct topo_paths paths;
	char full[PATH_MAX];

	if ((mkdir(dir, 0755) != 0 && errno != EEXIST) || realpath(dir, full) == NULL) {
		(void)complain_of(dir, strerror(errno));
		return NULL;
	}
	paths = (struct topo_paths){
		.fleet = mem_printf("%s/etc/pdrouter/fleet/", full),
		.units = mem_printf("%s/etc/systemd/system/", full),
		.router = mem_printf("%s/etc/pdrouter/pdrouter.yaml", full),
		.control = mem_printf("%s/run/control.sock", full),
	};
	return make(&runner_plain_ops, &paths, mem_printf("%s/run/", full));
}

/* The texts are the runner's own, whatever the type that they are read by. */
static void
free_text(const char *text)
{
	union {
		const char *given;
		char *own;
	} u = {.given = text};

	free(u.own);
}

void
runner_free(struct runner **runner)
{
	struct runner *r = *runner;

	if (r == NULL)
		return;
	free_text(r->paths.fleet);
	free_text(r->paths.units);
	free_text(r->paths.router);
	free_text(r->paths.control);
	free(r->run);
	free(r);
	*runner = NULL;
}

void
runner_show_log(const struct runner *r, const char *unit)
{
	struct membuf b = {.p = NULL};

	if (r->ops->last(r, unit, RUNNER_LOG_LINES, &b) == 0)
		for (const char *line = b.p, *end = b.p + b.n; line < end;) {
			const char *eol = memchr(line, '\n', (size_t)(end - line));
			const int n = (int)((eol != NULL ? eol : end) - line);

			(void)fprintf(stderr, "  | %.*s\n", n, line);
			line += n + 1;
		}
	membuf_free(&b);
}

char *
runner_drop_in(const struct runner *r, const char *unit)
{
	return mem_printf("%s%s" TOPO_DROP_IN, r->paths.units, unit);
}
