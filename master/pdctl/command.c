#include "master/pdctl/command.h"

#include <string.h>

/* clang-format off */
const struct command commands[] = {
	{"status", "", 0, 0, false, true, false, "the processes and the endpoint table"},
	{"top", "", 0, 0, false, false, true, "engines and requests on the whole screen"},
	{"reload", "", 0, TAKES_DRY_RUN, true, false, false,
		"reads the configuration again; returns when it is in force"},
	{"config", "diff", 1, 0, false, false, false,
		"what a reload would change, and what each change costs"},
	{"upgrade", "", 0, 0, true, false, false,
		"starts the program again in a new instance, which serves; this one finishes its requests"},
	{"drain", "ENGINE", 0, TAKES_ENGINES | TAKES_WAIT | TAKES_TIMEOUT, false, false, false,
		"gives ENGINE (URL or host:port) no new requests, until undrain"},
	{"undrain", "ENGINE", 0, TAKES_ENGINES | TAKES_WHEN_UP | TAKES_TIMEOUT, false, false, false,
		"ends a drain or an ejection: ENGINE gets new requests again, as soon as it is up"},
	{"explain", "MODEL", 1, TAKES_PROMPT, false, true, false,
		"which engines a request could go to now, and why not to the others; sends nothing"},
	{"requests", "", 0, TAKES_SLOWER, false, true, false,
		"the requests in flight; with --slower also those that have ended, and took so long"},
	{"request", "ID", 1, 0, false, true, false,
		"where this request is now, or how it ended if it is among the last 10,000"},
	{"weight", "ENGINE N|default", 1, TAKES_ENGINES, false, false, false,
		"gives ENGINE the weight N (1 to 100), or that of the configuration"},
	{"log-level", "error|warn|info|debug", 1, 0, false, false, false,
		"all processes log from this level on, until the next reload"},
	{"workers", "", 0, 0, false, false, false, "the processes"},
	{"prefix", "", 0, 0, false, false, false,
		"the prefix index of policy cache_aware, and what engines had in their caches"},
	{"check", "", 0, 0, false, false, false,
		"checks the shared memory; prints ok, or the broken invariants and exits 1"},
	{"fleet", "", 0, 0, false, false, true, "the fleet file: pdctl fleet --help"},
	{"key", "new NAME", 2, 0, false, false, true,
		"prints a new key, and its row for the api_keys_file or the admin.api_keys_file"},
	{"ping", "", 0, 0, false, false, false, "prints nothing; exits 0 if pdrouter answers"},
	{"completion", "bash|zsh", 1, 0, false, false, true, "prints a completion script for a shell"},
	{"version", "", 0, 0, false, false, true, "prints the version of pdctl"},
};

const struct option_row option_rows[] = {
	{"socket", "SOCKET", TAKES_ALL, "pdrouter's control_socket (/run/pdrouter/control.sock)", 's'},
	{"json", NULL, TAKES_ALL, "prints one JSON object", 'j'},
	{"host", "HOST", TAKES_ENGINES, "in place of ENGINE: all engines of a host", 0},
	{"group", "GROUP", TAKES_ENGINES, "in place of ENGINE: all engines of a group", 0},
	{"role", "ROLE", TAKES_ENGINES, "only these of a role: prefill or decode", 0},
	{"pool", "POOL", TAKES_ENGINES, "only these of a pool", 0},
	{"wait", NULL, TAKES_WAIT, "returns when they have no request and hold no KV for decode", 0},
	{"when-up", NULL, TAKES_WHEN_UP, "returns when they are up and get requests", 0},
	{"timeout", "SECONDS", TAKES_TIMEOUT, "longest wait of --wait or --when-up; then exits 3", 0},
	{"dry-run", NULL, TAKES_DRY_RUN, "says what the reload would do", 0},
	{"prompt", "FILE", TAKES_PROMPT, "a prompt, or a request's body that has it", 0},
	{"slower", "TIME", TAKES_SLOWER, "requests that take, or took, at least 10s, 500ms ...", 0},
	{"help", NULL, TAKES_ALL, "prints this", 'h'},
	{"version", NULL, TAKES_ALL, "prints the version of pdctl", 'V'},
};
/* clang-format on */

const size_t ncommands = sizeof(commands) / sizeof(commands[0]);
const size_t noptions = sizeof(option_rows) / sizeof(option_rows[0]);

const struct command *
command_named(const char *name)
{
	for (size_t i = 0; i < ncommands; i++)
		if (strcmp(commands[i].name, name) == 0)
			return &commands[i];
	return NULL;
}

bool
command_takes(const struct command *c, const struct option_row *o)
{
	return ((c->takes | TAKES_ALL) & o->takes) != 0;
}
