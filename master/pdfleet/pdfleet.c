/*
 * pdfleet: `pdctl fleet` starts it.  The command line, the table of commands, and the commands that look at the fleet
 * file alone: check, plan --output, render.  Exit codes: README.md.
 */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/pdfleet/apply.h"
#include "master/pdfleet/complain.h"
#include "master/pdfleet/runner.h"
#include "master/pdfleet/scale.h"
#include "master/pdfleet/status.h"
#include "master/pdfleet/this_host.h"
#include "master/pdfleet/tree.h"
#include "master/topology/beside.h"
#include "master/topology/kubernetes.h"
#include "master/topology/plan.h"
#include "master/topology/render.h"
#include "master/topology/template_find.h"
#include "shm/base/mem.h"

#define DEFAULT_FILE "/etc/pdrouter/fleet.yaml"
#define START_S 1200 /* a large model loads for minutes */
#define DRAIN_S 120
#define SECONDS_MAX (7 * 86400)
#define OTHERS_MAX 16

/* The command line. */
struct line {
	const char *command, *file, *templates, *host, *output, *plain; /* NULL: not given */
	const char *others[OTHERS_MAX]; /* check: fleet files beside it */
	size_t nothers;
	const char *to; /* render */
	struct topo_kubernetes kubernetes;
	char *const *words; /* behind the command */
	int nwords;
	bool user, then_apply;
	struct apply_options apply;
};

/* What a command works on. */
struct fleet {
	struct topology *t;
	struct topo_template *template;
	struct topo_plan *plan;
	struct runner *runner; /* of this host */
};

static void
usage(void)
{
	(void)printf(
		"usage: pdctl fleet COMMAND [-f FILE] [-t DIR] [--host NAME] [options]\n\n"
		"  check       says all that is wrong with the fleet file, else ok;\n"
		"              with --host: with this host, too\n"
		"  plan        shows what apply would do on this host; exits 3 if that is anything\n"
		"  plan --output DIR\n"
		"              writes the files of each host to DIR/HOST/; DIR must be new or empty\n"
		"  apply       makes this host what the fleet file says, one engine of a role at a time\n"
		"  roll [NAME...]\n"
		"              restarts these engines, or all engines, of this host, one of a role at a time\n"
		"  remove      drains and stops all engines of this host, stops its router, and removes\n"
		"              their files; without --yes it only shows that\n"
		"  status      shows what runs on this host; exits 3 if it is not as the file says\n"
		"  logs NAME   follows the log of prefill-1, or of pdrouter\n"
		"  scale ROLE=NUMBER...\n"
		"              writes so many replicas into the fleet file, and shows the engines;\n"
		"              with --apply: then does what apply does\n"
		"  render --to kubernetes --output DIR [--image IMAGE] [--router-image IMAGE]\n"
		"                         [--namespace NAME]\n"
		"              writes the fleet as objects of Kubernetes; DIR must be new or empty\n\n"
		"  -f FILE     the fleet file (" DEFAULT_FILE "); check: several that share hosts\n"
		"  -t DIR      folder with templates of your own, KIND.yaml (fleet.d beside FILE)\n"
		"  --host NAME this host, by its name in the fleet file; with --output: one host only\n"
		"  --user      this host: units of the user's systemd, files below ~/.config\n"
		"  --plain DIR this host: no systemd; files, logs and pid files below DIR\n"
		"  --yes       apply, roll: restart the only engine of a role, too; remove: do it\n"
		"  --keep-drains\n"
		"              apply, roll: engines that are drained stay drained\n"
		"  --start-timeout S\n"
		"              an engine is healthy by then, or its former files are put back (1200)\n"
		"  --drain-timeout S\n"
		"              longest wait for the requests of a drained engine (120)\n");
}

static int
wrong(const char *what, const char *why)
{
	(void)fprintf(stderr, "pdctl fleet: %s%s (see pdctl fleet --help)\n", what, why);
	return 2;
}

/* --- loading
 * ------------------------------------------------------------------------------------- */

/* What runs the units of this host; NULL after a message. */
static struct runner *
make_runner(const struct line *l)
{
	if (l->plain != NULL)
		return runner_plain(l->plain);
	return l->user ? runner_user() : runner_system();
}

static int
say_findings(const struct topo_plan *p)
{
	for (size_t i = 0; i < p->nfindings; i++)
		(void)complain_error(&p->findings[i]);
	return p->nfindings > 0 ? -1 : 0;
}

static const char *
file_of(const struct line *l)
{
	return l->file != NULL ? l->file : DEFAULT_FILE;
}

/* A plan without findings, or -1 after all of them were printed. */
static int
load(const struct line *l, const char *file, struct fleet *f)
{
	struct conf_error err;

	if (topo_load(file, &f->t, &err) != 0)
		return complain_error(&err);
	f->runner = make_runner(l);
	if (f->runner == NULL)
		return -1;
	if (topo_template_find(f->t, l->templates, &f->template, &err) != 0)
		return complain_error(&err);
	f->plan = topo_plan_make_at(f->t, f->template, &f->runner->paths);
	return say_findings(f->plan);
}

static void
unload(struct fleet *f)
{
	topo_plan_free(&f->plan);
	runner_free(&f->runner);
	topo_template_free(&f->template);
	topo_free(&f->t);
}

static int
no_host(const struct line *l, const struct fleet *f)
{
	(void)fprintf(stderr, "%s: no host is named %s\n", f->t->path, l->host);
	return 1;
}

/* --- commands
 * ------------------------------------------------------------------------------------ */

/* The fleet against the host that this is (NULL: unknown), and against all fleets before it. */
static int
check_one(const struct topo_host *here, const struct fleet *fleets, size_t i)
{
	const struct topology *t = fleets[i].t;

	for (size_t k = 0; here != NULL && k < t->nhosts; k++)
		if (topo_same_host(&t->hosts[k], here))
			this_host_check(fleets[i].plan, &t->hosts[k]);
	for (size_t k = 0; k < i; k++)
		topo_check_beside(fleets[i].plan, fleets[k].plan);
	return say_findings(fleets[i].plan);
}

static int
run_check(const struct line *l, const struct fleet *f)
{
	size_t n = 1 + l->nothers;
	struct fleet *fleets;
	const struct topo_host *here = l->host != NULL ? topo_host(f->t, l->host) : NULL;
	int rc = 0;

	if (l->host != NULL && here == NULL)
		return no_host(l, f);
	fleets = mem_array(n, sizeof(*fleets));
	fleets[0] = *f;
	for (size_t i = 1; i < n; i++)
		rc |= load(l, l->others[i - 1], &fleets[i]);
	for (size_t i = 0, loaded = rc == 0 ? n : 0; i < loaded; i++)
		rc |= check_one(here, fleets, i);
	for (size_t i = 1; i < n; i++)
		unload(&fleets[i]);
	free(fleets);
	return rc != 0 || puts("ok") < 0;
}

static void
show(const struct topo_engine *e)
{
	(void)printf("%s  host %s  gpus ", e->name, e->host->name);
	for (size_t i = 0; i < e->gpus.n; i++)
		(void)printf("%s%u", i > 0 ? "," : "", e->gpus.v[i]);
	(void)printf("%s ", e->gpus.n == 0 ? "-" : "");
	for (size_t i = 0; i < e->ports.n; i++) {
		const struct topo_claim *c = &e->ports.v[i];

		(void)printf(" %s %u", c->name, c->first);
		if (c->n > 1)
			(void)printf("-%u", c->first + c->n - 1);
	}
	(void)printf("\n");
}

static int
write_host(const struct fleet *f, const struct topo_host *h, const char *output)
{
	struct topo_files files = topo_render(f->plan, h);
	char *dir = mem_printf("%s/%s", output, h->name);
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < files.n; i++)
		rc = tree_write(dir, &files.v[i]);
	free(dir);
	topo_files_free(&files);
	return rc;
}

static int
run_output(const struct line *l, const struct fleet *f)
{
	const struct topo_host *only = l->host != NULL ? topo_host(f->t, l->host) : NULL;
	int rc = 0;

	if (l->host != NULL && only == NULL)
		return no_host(l, f);
	for (size_t i = 0; i < f->plan->nengines; i++)
		if (only == NULL || f->plan->engines[i].host == only)
			show(&f->plan->engines[i]);
	if (tree_begin(l->output) != 0)
		return 1;
	for (size_t i = 0; rc == 0 && i < f->t->nhosts; i++)
		if (only == NULL || only == &f->t->hosts[i])
			rc = write_host(f, &f->t->hosts[i], l->output);
	return rc != 0 || fflush(stdout) != 0;
}

static int
run_plan(const struct line *l, const struct fleet *f)
{
	if (l->output != NULL)
		return run_output(l, f);
	return apply_show(f->plan, f->runner, &l->apply);
}

static int
run_apply(const struct line *l, const struct fleet *f)
{
	return apply_run(f->plan, f->runner, &l->apply);
}

static int
run_roll(const struct line *l, const struct fleet *f)
{
	struct apply_options o = l->apply;

	o.only = l->words;
	o.nonly = l->nwords;
	return apply_roll(f->plan, f->runner, &o);
}

static int
run_remove(const struct line *l, const struct fleet *f)
{
	return apply_remove(f->plan, f->runner, &l->apply);
}

static int
run_status(const struct line *l, const struct fleet *f)
{
	return status_show(f->plan, f->runner, l->host);
}

static int
run_logs(const struct line *l, const struct fleet *f)
{
	return status_logs(f->plan, f->runner, l->words[0]);
}

static int
run_render(const struct line *l, const struct fleet *f)
{
	struct topo_kubernetes how = l->kubernetes;
	struct topo_files files;
	int rc = 0;

	if (l->to == NULL || strcmp(l->to, "kubernetes") != 0)
		return wrong("render needs --to kubernetes", "");
	if (how.image == NULL)
		how.image = f->t->engine.container;
	if (l->output == NULL || how.image == NULL)
		return wrong(
			"render needs --output, and an image: --image or engine.container", "");
	files = topo_render_kubernetes(f->plan, &how);
	for (size_t i = 0; i < f->plan->nfindings; i++)
		(void)complain_error(&f->plan->findings[i]);
	if (f->plan->nfindings > 0 || tree_begin(l->output) != 0)
		rc = 1;
	for (size_t i = 0; rc == 0 && i < files.n; i++)
		rc = tree_write(l->output, &files.v[i]) != 0;
	topo_files_free(&files);
	return rc;
}

/* Before the file is loaded. */
static int
begin_scale(const struct line *l)
{
	if (l->nwords == 0)
		return wrong("scale needs words such as prefill=3", "");
	return scale_file(file_of(l), l->templates, l->words, l->nwords);
}

static int
run_scale(const struct line *l, const struct fleet *f)
{
	for (size_t i = 0; i < f->plan->nengines; i++)
		show(&f->plan->engines[i]);
	if (printf("written to %s%s\n", file_of(l),
		    l->then_apply ? "" : "; next, on each host: pdctl fleet apply") < 0 ||
		fflush(stdout) != 0)
		return 1;
	return l->then_apply ? run_apply(l, f) : 0;
}

static const struct {
	const char *name;
	int (*run)(const struct line *l, const struct fleet *f);
	/* before the file is loaded; the command ends unless it returns 0 */
	int (*begin)(const struct line *l);
	enum { NO_WORD, A_NAME, WORDS } takes; /* behind the command */
	bool writes;                           /* has --output */
} commands[] = {
	{"check", run_check, NULL, NO_WORD, false},
	{"plan", run_plan, NULL, NO_WORD, true},
	{"apply", run_apply, NULL, NO_WORD, false},
	{"roll", run_roll, NULL, WORDS, false},
	{"remove", run_remove, NULL, NO_WORD, false},
	{"status", run_status, NULL, NO_WORD, false},
	{"logs", run_logs, NULL, A_NAME, false},
	{"scale", run_scale, begin_scale, WORDS, false},
	{"render", run_render, NULL, NO_WORD, true},
};

static int
run(const struct line *l)
{
	struct fleet f = {.t = NULL};
	size_t i = 0, n = sizeof(commands) / sizeof(commands[0]);
	int rc;

	if (l->command == NULL)
		return wrong("a command is needed", "");
	while (i < n && strcmp(l->command, commands[i].name) != 0)
		i++;
	if (i == n)
		return wrong(l->command, " is not a command");
	if (commands[i].takes == A_NAME && l->nwords == 0)
		return wrong(l->command, " needs a name");
	if (commands[i].takes != WORDS && l->nwords > (int)commands[i].takes)
		return wrong("one command only; too much: ", l->words[commands[i].takes]);
	if (l->output != NULL && !commands[i].writes)
		return wrong("--output is for plan and render only", "");
	if (l->nothers > 0 && commands[i].run != run_check)
		return wrong("several files are for check only", "");
	if (l->then_apply && commands[i].run != run_scale)
		return wrong("--apply is for scale only", "");
	rc = commands[i].begin != NULL ? commands[i].begin(l) : 0;
	if (rc == 0)
		rc = load(l, file_of(l), &f) == 0 ? commands[i].run(l, &f) : 1;
	unload(&f);
	return rc;
}

static bool
take_seconds(const char *text, unsigned *ret)
{
	char *end;
	unsigned long n;

	if (text == NULL)
		return false;
	n = strtoul(text, &end, 10);
	if (end == text || *end != '\0' || text[0] == '-' || n > SECONDS_MAX)
		return false;
	*ret = (unsigned)n;
	return true;
}

/* --- the command line
 * ----------------------------------------------------------------------------- */

/* Rows of the same letter as getopt's short options; 0: there is a long one only. */
static const struct {
	const char *name;
	int letter;
	enum { TEXT, SWITCH, SECONDS, FLEET_FILE, USAGE } kind;
	size_t at; /* of the member of struct line */
} options[] = {
	{"file", 'f', FLEET_FILE, 0},
	{"templates", 't', TEXT, offsetof(struct line, templates)},
	{"host", 0, TEXT, offsetof(struct line, host)},
	{"output", 0, TEXT, offsetof(struct line, output)},
	{"user", 0, SWITCH, offsetof(struct line, user)},
	{"plain", 0, TEXT, offsetof(struct line, plain)},
	{"yes", 0, SWITCH, offsetof(struct line, apply.yes)},
	{"keep-drains", 0, SWITCH, offsetof(struct line, apply.keep_drains)},
	{"start-timeout", 0, SECONDS, offsetof(struct line, apply.start_s)},
	{"drain-timeout", 0, SECONDS, offsetof(struct line, apply.drain_s)},
	{"apply", 0, SWITCH, offsetof(struct line, then_apply)},
	{"to", 0, TEXT, offsetof(struct line, to)},
	{"image", 0, TEXT, offsetof(struct line, kubernetes.image)},
	{"router-image", 0, TEXT, offsetof(struct line, kubernetes.router_image)},
	{"namespace", 0, TEXT, offsetof(struct line, kubernetes.namespace)},
	{"help", 'h', USAGE, 0},
};
#define NOPTIONS (sizeof(options) / sizeof(options[0]))
#define LONG_ONLY 256 /* and the row's number: what getopt returns for it */

/* 0, or 2 after a message. */
static int
take_option(struct line *l, size_t i, const char *value)
{
	char *member = (char *)l + options[i].at;

	switch (options[i].kind) {
	case TEXT:
		*(const char **)(void *)member = value;
		return 0;
	case SWITCH:
		*(bool *)member = true;
		return 0;
	case SECONDS:
		if (take_seconds(value, (unsigned *)(void *)member))
			return 0;
		return wrong(value, " is no number of seconds");
	case FLEET_FILE:
		if (l->nothers == OTHERS_MAX)
			return wrong("too many files: ", value);
		if (l->file == NULL)
			l->file = value;
		else
			l->others[l->nothers++] = value;
		return 0;
	case USAGE:
		break;
	}
	return 0;
}

/* The row of what getopt_long() has returned; NOPTIONS: none. */
static size_t
row_of(int opt)
{
	size_t i = 0;

	if (opt >= LONG_ONLY)
		return (size_t)(opt - LONG_ONLY);
	while (i < NOPTIONS && options[i].letter != opt)
		i++;
	return i;
}

int
main(int argc, char **argv)
{
	struct option longs[NOPTIONS + 1] = {{.name = NULL}};
	struct line l = {
		.apply = {.start_s = START_S, .drain_s = DRAIN_S},
		.kubernetes = {.router_image = "pdrouter:" PDROUTER_VERSION,
			.namespace = "default"},
	};
	size_t row;
	int opt, rc;

	for (size_t i = 0; i < NOPTIONS; i++)
		longs[i] = (struct option){.name = options[i].name,
			.has_arg = options[i].kind == SWITCH || options[i].kind == USAGE
					   ? no_argument
					   : required_argument,
			.val = LONG_ONLY + (int)i};
	while ((opt = getopt_long(argc, argv, ":f:t:h", longs, NULL)) != -1) {
		row = row_of(opt);
		if (row == NOPTIONS)
			return wrong(argv[optind - 1],
				opt == ':' ? " needs a value" : " is not an option");
		if (options[row].kind == USAGE) {
			usage();
			return 0;
		}
		rc = take_option(&l, row, optarg);
		if (rc != 0)
			return rc;
	}
	l.apply.host = l.host;
	l.command = optind < argc ? argv[optind] : NULL;
	if (l.command != NULL) {
		l.words = argv + optind + 1;
		l.nwords = argc - optind - 1;
	}
	if (l.user && l.plain != NULL)
		return wrong("--user and --plain exclude each other", "");
	return run(&l);
}
