/* The runner that executes systemctl and journalctl. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/program.h"
#include "master/pdfleet/runner.h"

#define WORDS_MAX 12

/* PROGRAM [--user] WORDS... UNIT.service */
static void
compose(const struct runner *r, const char *const words[], const char *unit,
	const char *ret[WORDS_MAX])
{
	size_t n = 0;

	ret[n++] = words[0];
	if (r->user)
		ret[n++] = "--user";
	for (size_t i = 1; words[i] != NULL && n < WORDS_MAX - 2; i++)
		ret[n++] = words[i];
	if (unit != NULL)
		ret[n++] = unit;
	ret[n] = NULL;
}

static int
run(const struct runner *r, const char *const words[], const char *unit, struct membuf *out)
{
	char *service = unit != NULL ? mem_printf("%s.service", unit) : NULL;
	const char *argv[WORDS_MAX];
	int code;

	compose(r, words, service, argv);
	code = program_run(argv, out);
	if (code > 0)
		(void)complain("%s %s %s: exit code %d", words[0], words[1],
			service != NULL ? service : "", code);
	free(service);
	return code == 0 ? 0 : -1;
}

/* NAME=VALUE of the lines; NULL: not there. */
static const char *
property(const char *text, const char *name, char *buf, size_t size)
{
	const size_t n = strlen(name);
	const char *line = text;

	while (line != NULL && (strncmp(line, name, n) != 0 || line[n] != '=')) {
		line = strchr(line, '\n');
		line = line != NULL ? line + 1 : NULL;
	}
	if (line == NULL)
		return NULL;
	(void)snprintf(buf, size, "%.*s", (int)strcspn(line + n + 1, "\n"), line + n + 1);
	return buf;
}

/* systemd's ActiveState and SubState; the first row that fits counts. */
static const struct {
	const char *active, *sub; /* NULL: any */
	enum unit_state state;
} states[] = {
	{"active", NULL, UNIT_RUNNING},
	{"reloading", NULL, UNIT_RUNNING},
	{"deactivating", NULL, UNIT_STOPPING},
	{"activating", "auto-restart", UNIT_FAILED},
	{"activating", "auto-restart-queued", UNIT_FAILED},
	{"activating", NULL, UNIT_STARTING},
	{"failed", NULL, UNIT_FAILED},
	{"inactive", NULL, UNIT_STOPPED},
};

void
runner_systemd_parse(const char *text, struct unit_status *ret)
{
	char load[64] = "", active[64] = "", sub[64] = "", number[64] = "";

	*ret = (struct unit_status){.state = UNIT_STOPPED};
	(void)property(text, "LoadState", load, sizeof(load));
	(void)property(text, "ActiveState", active, sizeof(active));
	(void)property(text, "SubState", sub, sizeof(sub));
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
		if (strcmp(states[i].active, active) == 0 &&
			(states[i].sub == NULL || strcmp(states[i].sub, sub) == 0)) {
			ret->state = states[i].state;
			break;
		}
	/* without its drop-in the unit has no ExecStart, which is a bad setting */
	if (ret->state == UNIT_STOPPED && strcmp(load, "loaded") != 0)
		ret->state = UNIT_ABSENT;
	if (property(text, "MainPID", number, sizeof(number)) != NULL)
		ret->pid = (pid_t)strtol(number, NULL, 10);
	if (property(text, "StateChangeTimestamp", number, sizeof(number)) != NULL &&
		number[0] == '@')
		ret->since = (time_t)strtoll(number + 1, NULL, 10);
}

static int
status(const struct runner *r, const char *unit, struct unit_status *ret)
{
	static const char *const words[] = {"systemctl", "show", "--timestamp=unix", "--property",
		"LoadState,ActiveState,SubState,MainPID,StateChangeTimestamp", NULL};
	struct membuf b = {.p = NULL};
	int rc = run(r, words, unit, &b);

	membuf_add(&b, "", 1);
	if (rc == 0)
		runner_systemd_parse(b.p, ret);
	membuf_free(&b);
	return rc;
}

static int
start(const struct runner *r, const char *unit)
{
	static const char *const enable[] = {"systemctl", "enable", "--quiet", NULL};
	static const char *const begin[] = {"systemctl", "start", NULL};

	return run(r, enable, unit, NULL) == 0 ? run(r, begin, unit, NULL) : -1;
}

static int
stop(const struct runner *r, const char *unit)
{
	static const char *const words[] = {"systemctl", "stop", NULL};

	return run(r, words, unit, NULL);
}

static int
forget(const struct runner *r, const char *unit)
{
	static const char *const disable[] = {"systemctl", "disable", "--quiet", NULL};
	static const char *const failed[] = {"systemctl", "is-failed", "--quiet", NULL};
	static const char *const reset[] = {"systemctl", "reset-failed", NULL};
	char *service = mem_printf("%s.service", unit);
	const char *argv[WORDS_MAX];
	int rc = run(r, disable, unit, NULL);

	compose(r, failed, service, argv);
	if (rc == 0 && program_run(argv, NULL) == 0)
		rc = run(r, reset, unit, NULL);
	free(service);
	return rc;
}

static int
reload(const struct runner *r)
{
	static const char *const words[] = {"systemctl", "daemon-reload", NULL};

	return run(r, words, NULL, NULL);
}

static int
last(const struct runner *r, const char *unit, unsigned n, struct membuf *out)
{
	char *lines = mem_printf("--lines=%u", n);
	const char *const words[] = {
		"journalctl", "--quiet", "--no-pager", "--output=cat", lines, "--unit", NULL};
	int rc = run(r, words, unit, out);

	free(lines);
	return rc;
}

static int
follow(const struct runner *r, const char *unit, unsigned n)
{
	char *lines = mem_printf("--lines=%u", n), *service = mem_printf("%s.service", unit);
	const char *const words[] = {
		"journalctl", "--quiet", "--no-pager", "--follow", lines, "--unit", NULL};
	const char *argv[WORDS_MAX];

	compose(r, words, service, argv);
	(void)program_become(argv);
	free(lines);
	free(service);
	return -1;
}

const struct runner_ops runner_systemd_ops = {
	.name = "systemd",
	.status = status,
	.start = start,
	.stop = stop,
	.forget = forget,
	.reload = reload,
	.last = last,
	.follow = follow,
};
