/*
 * The command line: our few options, and the flags of other routers, which describe the pools without -c so
 * that their command lines move over unchanged.  The flags' rows are in conf_flags.h, what they amount to in
 * conf_draft.c.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_draft.h"
#include "shm/base/mem.h"

_Static_assert(FLAG_N <= CONF_ARGS_FLAGS, "a value for each flag");

enum { OPT_HOST = 256, OPT_PORT, OPT_CONTROL, OPT_VERSION, OPT_PRINT, OPT_FIRST };

static const struct option own_options[] = {
	{"config", required_argument, NULL, 'c'},
	{"host", required_argument, NULL, OPT_HOST},
	{"port", required_argument, NULL, OPT_PORT},
	{"control-socket", required_argument, NULL, OPT_CONTROL},
	{"print-config", no_argument, NULL, OPT_PRINT},
	{"version", no_argument, NULL, OPT_VERSION},
	{"help", no_argument, NULL, 'h'},
};
#define OWN_OPTIONS (sizeof(own_options) / sizeof(own_options[0]))

static int
fail_text(struct conf_error *err, const char *word, const char *what)
{
	struct conf_read r = {.flag = word, .err = err};

	return conf_fail(&r, 0, "%s", what);
}

/* --- a pasted command line -------------------------------------------------------------------- */

static bool
is_one_of(const char *word, const char *const *list)
{
	while (*list != NULL && strcmp(word, *list) != 0)
		list++;
	return *list != NULL;
}

static const char *
base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

/* The words of "python3 -u -m MODULE" with another router's module; 0: it is something else. */
static int
python_words(char *const *words)
{
	static const char *const modules[] = {"vllm_router", "vllm_router.app", "sglang_router",
		"sglang_router.launch_router", "smg", "smg.launch_router", NULL};
	int n = 1;

	if (strncmp(base_name(words[0]), "python", strlen("python")) != 0)
		return 0;
	while (words[n] != NULL && words[n][0] == '-' && strcmp(words[n], "-m") != 0)
		n++;
	if (words[n] == NULL || words[n + 1] == NULL || !is_one_of(words[n + 1], modules))
		return 0;
	return n + 2;
}

/*
 * How many of the words name another router's program: "vllm-router", "smg launch",
 * "python3 -m vllm_router.app".  So a whole command line may be given, as it was copied.
 * 0: the words name none.
 */
static int
program_words(char *const *words)
{
	static const char *const programs[] = {"vllm-router", "sglang-router", "smg", "amg", NULL};
	int n;

	if (words[0] == NULL)
		return 0;
	n = is_one_of(base_name(words[0]), programs) ? 1 : python_words(words);
	if (n > 0 && words[n] != NULL && strcmp(words[n], "launch") == 0)
		n++;
	return n;
}

/* The words without those of another router's program, which may stand behind -t and
 * --print-config.  The caller frees the list, not the words. */
static char **
without_program(int argc, char **argv, int *ret_argc)
{
	static const char *const before[] = {"-t", "--print-config", NULL};
	char **ret = mem_array((size_t)argc + 1, sizeof(*ret));
	int at = argc > 0, n;

	while (at < argc && is_one_of(argv[at], before))
		at++;
	n = program_words(argv + at);
	memcpy(ret, argv, (size_t)at * sizeof(*ret));
	memcpy(ret + at, argv + at + n, (size_t)(argc - at - n) * sizeof(*ret));
	*ret_argc = argc - n;
	return ret;
}

/* --- reading ---------------------------------------------------------------------------------- */

static int
add_url(struct conf_args *a, enum conf_flag f, const char *url, struct conf_error *err)
{
	if (a->nurls == CONF_ARGS_URLS)
		return conf_flag_fail(err, f, "too many engines for a command line: use -c FILE");
	a->urls[a->nurls++] = (struct conf_args_url){.flag = (int)f, .url = url};
	return 0;
}

static int
take_flag(struct conf_args *a, enum conf_flag f, char **argv, struct conf_error *err)
{
	a->flag[f] = optarg != NULL ? optarg : "";
	/* sglang-router's is a switch: the next word is not its value */
	if (f == FLAG_SERVICE_DISCOVERY && a->flag[f][0] == '-' && optarg == argv[optind - 1]) {
		a->flag[f] = "";
		optind--;
	}
	if (f == FLAG_PREFILL || f == FLAG_DECODE || f == FLAG_WORKER_URLS)
		return add_url(a, f, optarg, err);
	return 0;
}

/* Whether its value is as many words as there are: "HEADER...", but not "URL,URL,...". */
static bool
takes_words(enum conf_flag f)
{
	const char *dots =
		conf_flag_rows[f].arg != NULL ? strstr(conf_flag_rows[f].arg, "...") : NULL;

	return conf_flag_rows[f].kind != CONF_FLAG_USED && dots != NULL && dots[-1] != ',';
}

/* A word that is no option: what the flag before it takes beside its value. */
static int
take_word(struct conf_args *a, int last, const char *word, struct conf_error *err)
{
	struct conf_args_url *url = a->nurls > 0 ? &a->urls[a->nurls - 1] : NULL;

	if (last == OPT_FIRST + FLAG_WORKER_URLS)
		return add_url(a, FLAG_WORKER_URLS, word, err);
	if (last >= OPT_FIRST && takes_words((enum conf_flag)(last - OPT_FIRST)))
		return 0; /* nothing is done with them, or the flag itself is refused later */
	if (last != OPT_FIRST + FLAG_PREFILL || url == NULL)
		return fail_text(err, word, "is not an option, see --help");
	if (url->port != NULL)
		return conf_flag_fail(err, FLAG_PREFILL, "takes a URL and one port at most");
	url->port = word;
	return 0;
}

static int
take_option(struct conf_args *a, int opt, char **argv, struct conf_error *err)
{
	switch (opt) {
	case 'c':
		a->file = optarg;
		return 0;
	case 't':
		a->check = true;
		return 0;
	case 'h':
		a->help = true;
		return 0;
	case OPT_HOST:
		a->host = optarg;
		return 0;
	case OPT_PORT:
		a->port = optarg;
		return 0;
	case OPT_CONTROL:
		a->control_socket = optarg;
		return 0;
	case OPT_VERSION:
		a->version = true;
		return 0;
	case OPT_PRINT:
		a->print = true;
		return 0;
	case ':':
		return fail_text(err, argv[optind - 1], "needs a value");
	case '?':
		return fail_text(err, argv[optind - 1], "is not an option, see --help");
	default:
		return take_flag(a, (enum conf_flag)(opt - OPT_FIRST), argv, err);
	}
}

static int
parse_words(int argc, char **argv, struct conf_args *ret, struct conf_error *err)
{
	struct option opts[OWN_OPTIONS + FLAG_N + 1];
	struct conf_args *a = MEM_NEW(struct conf_args);
	int opt, last = 0, rc = 0;

	memset(opts, 0, sizeof(opts));
	memcpy(opts, own_options, sizeof(own_options));
	for (int i = 0; i < FLAG_N; i++)
		opts[OWN_OPTIONS + (size_t)i] = (struct option){conf_flag_rows[i].name,
			conf_flag_rows[i].arg != NULL ? required_argument : no_argument, NULL,
			OPT_FIRST + i};
	optind = 0; /* glibc: start afresh */
	/* '-': words that are no options come in their place, as option 1 */
	while (rc == 0 && (opt = getopt_long(argc, argv, "-:c:th", opts, NULL)) != -1) {
		rc = opt == 1 ? take_word(a, last, optarg, err) : take_option(a, opt, argv, err);
		last = opt == 1 ? last : opt;
	}
	if (rc == 0 && optind < argc)
		rc = fail_text(err, argv[optind], "is not an option, see --help");
	if (rc == 0)
		*ret = *a;
	free(a);
	return rc;
}

int
conf_args_parse(int argc, char **argv, struct conf_args *ret, struct conf_error *err)
{
	int n;
	char **words = without_program(argc, argv, &n);
	const int rc = parse_words(n, words, ret, err);

	free(words);
	return rc;
}

/* --- telling ---------------------------------------------------------------------------------- */

static void
help_kind(FILE *out, enum conf_flag_kind kind, const char *title)
{
	(void)fprintf(out, "\n%s\n", title);
	for (size_t i = 0; i < FLAG_N; i++)
		if (conf_flag_rows[i].kind == kind)
			(void)fprintf(out, "  --%s%s%s\n        %s\n", conf_flag_rows[i].name,
				conf_flag_rows[i].arg != NULL ? " " : "",
				conf_flag_rows[i].arg != NULL ? conf_flag_rows[i].arg : "",
				conf_flag_rows[i].doc);
}

void
conf_args_help(FILE *out)
{
	(void)fputs(
		"usage: pdrouter -c FILE [-t | --print-config] [--host HOST] [--port PORT]\n"
		"       pdrouter [-t | --print-config] [PROGRAM] FLAGS   the command line of another router:\n"
		"                               its flags, see below, with or without its program\n"
		"                               (vllm-router, python3 -m sglang_router.launch_router, ...)\n\n"
		"  -c, --config FILE            read the configuration from FILE\n"
		"  -t                           check the configuration and exit\n"
		"  --print-config               write the equivalent YAML and exit\n"
		"  --host HOST, --port PORT     listen there; with -c: instead of the file's `listen`,\n"
		"                               else 0.0.0.0 and 8001 (sglang-router's: 30000)\n"
		"  --control-socket PATH        make pdctl's socket there; with -c: instead of the file's\n"
		"                               `control_socket`\n"
		"  --version, --help\n",
		out);
	help_kind(out, CONF_FLAG_USED,
		"Flags of production-stack's router and sglang-router, and what they become:");
	help_kind(out, CONF_FLAG_IDLE, "Accepted without effect:");
	help_kind(out, CONF_FLAG_GONE, "Not possible here:");
}

/* --- choosing --------------------------------------------------------------------------------- */

/* The first flag that is given, or FLAG_N. */
static enum conf_flag
first_flag(const struct conf_args *a)
{
	enum conf_flag f = 0;

	while (f < FLAG_N && a->flag[f] == NULL)
		f++;
	return f;
}

/* --host and --port in place of the file's addresses; a part that is not given stays as in the
 * first address. */
static int
override_listen(struct conf *c, const struct conf_args *a, struct conf_error *err)
{
	struct conf_listen first = {.port = 8000};
	char port[8], what[CONF_WHAT], *text;
	int rc;

	if (a->host == NULL && a->port == NULL)
		return 0;
	if (c->nlisten > 0)
		first = c->listen[0];
	for (size_t i = 0; i < c->nlisten; i++)
		free(c->listen[i].text);
	c->nlisten = 0;
	(void)snprintf(port, sizeof(port), "%u", first.port);
	text = conf_host_port(
		a->host != NULL ? a->host : first.host, a->port != NULL ? a->port : port);
	rc = conf_value_set(conf_key_row(&conf_root_keys, "listen"), c, text, what);
	free(text);
	return rc != 0 ? fail_text(err, a->port != NULL ? "--port" : "--host", what) : 0;
}

static int
override_control_socket(struct conf *c, const struct conf_args *a, struct conf_error *err)
{
	char what[CONF_WHAT];

	if (a->control_socket == NULL)
		return 0;
	free(c->control_socket);
	c->control_socket = NULL;
	if (conf_value_set(conf_key_row(&conf_root_keys, "control_socket"), c, a->control_socket,
		    what) != 0)
		return fail_text(err, "--control-socket", what);
	return 0;
}

/* Takes the options that replace keys into *c; frees it on an error. */
static int
override(struct conf **c, const struct conf_args *a, struct conf_error *err)
{
	/* the flags of another router come with their own --host and --port */
	if ((a->file == NULL || override_listen(*c, a, err) == 0) &&
		override_control_socket(*c, a, err) == 0)
		return 0;
	conf_free(c);
	return -1;
}

static int
from_flags(const struct conf_args *a, struct conf **ret, struct conf_error *err)
{
	struct conf_draft d;
	int rc = -1;

	for (enum conf_flag f = 0; f < FLAG_N; f++)
		if (a->flag[f] != NULL && conf_flag_rows[f].kind == CONF_FLAG_GONE)
			return conf_flag_fail(err, f, conf_flag_rows[f].doc);
	if (conf_draft_make(&d, a, NULL, NULL, err) == 0)
		rc = conf_draft_parse(&d, ret, err);
	conf_draft_free(&d);
	return rc == 0 ? override(ret, a, err) : rc;
}

static int
from_file(const struct conf_args *a, struct conf **ret, struct conf_error *err)
{
	const enum conf_flag given = first_flag(a);
	struct conf *c;

	if (given < FLAG_N)
		return conf_flag_fail(
			err, given, "cannot be used with -c: the file defines the pools");
	if (conf_load_file(a->file, a->fleet_reader, &c, err) != 0 || override(&c, a, err) != 0)
		return -1;
	*ret = c;
	return 0;
}

int
conf_again(const struct conf_args *args, const struct conf *was, struct conf **ret,
	struct conf_error *err)
{
	struct conf *c;

	if (conf_reparse(was, args->fleet_reader, &c, err) != 0 || override(&c, args, err) != 0)
		return -1;
	*ret = c;
	return 0;
}

int
conf_from_args(const struct conf_args *args, struct conf **ret, struct conf_error *err)
{
	if (args->file != NULL)
		return from_file(args, ret, err);
	if (first_flag(args) < FLAG_N)
		return from_flags(args, ret, err);
	return fail_text(
		err, "", "no configuration: give -c FILE, or another router's flags (see --help)");
}

void
conf_args_notes(const struct conf_args *args, conf_note_fn *note, void *arg)
{
	char name[CONF_FLAG_NAME];
	struct conf_error err;
	struct conf_draft d;

	if (args->file != NULL || first_flag(args) == FLAG_N)
		return;
	for (enum conf_flag f = 0; f < FLAG_N; f++)
		if (args->flag[f] != NULL && conf_flag_rows[f].kind == CONF_FLAG_IDLE)
			note(arg, conf_flag_name(f, name), conf_flag_rows[f].doc);
	(void)conf_draft_make(&d, args, note, arg, &err);
	conf_draft_free(&d);
}
