/* The commands of pdctl and its options: help, checks and completion are made from these tables. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* What a command takes beside its words. */
enum {
	TAKES_ENGINES = 1, /* ENGINE | --host | --group, --role, --pool */
	TAKES_WAIT = 2,
	TAKES_WHEN_UP = 4,
	TAKES_TIMEOUT = 8,
	TAKES_DRY_RUN = 16,
	TAKES_PROMPT = 32,
	TAKES_SLOWER = 64,
	TAKES_ALL = 128, /* of all commands */
};

struct command {
	const char *name;
	const char *words; /* what stands behind the name, for help and completion */
	int nwords;        /* words that are needed, without ENGINE */
	unsigned takes;
	bool slow; /* its answer has no time limit */
	/* pdrouter writes the JSON of its answer; else pdctl puts the lines into an object */
	bool json;
	bool local; /* not sent to pdrouter */
	const char *help;
};

struct option_row {
	const char *name;
	const char *value; /* NULL: it has none */
	unsigned takes;    /* the commands that it is for */
	const char *help;
	char letter; /* 0: none */
};

extern const struct command commands[];
extern const size_t ncommands;
extern const struct option_row option_rows[];
extern const size_t noptions;

/* NULL: there is none. */
const struct command *command_named(const char *name);
bool command_takes(const struct command *c, const struct option_row *o);
