/*
 * Configuration: a YAML file, or other routers' flags, into one immutable struct conf
 * (shm/base/conf.h), or one error with its place.
 *
 * Process: master.  Everything is parsed and checked before the caller gets a result, so a failed
 * reload has changed nothing.  The keys are in one table, master/config/conf_keys.h.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "shm/base/conf.h"

struct conf_error {
	char file[256]; /* "" when the command line alone is to blame */
	int line;       /* 1-based; 0: none (file unreadable, command line) */
	char key[128];  /* "pools[0].prefill[1].url", "--static-models", or "" */
	char what[256];
};

/* "file:line: key: what", without the parts that are not known.  Returns buf. */
const char *conf_error_text(const struct conf_error *err, char *buf, size_t size);

/* All return 0 and the caller owns *ret (conf_free), or -1 with *err filled and *ret untouched. */
int conf_load(const char *path, struct conf **ret, struct conf_error *err);
/* The same from bytes; `path` names them in messages, and a relative endpoints_file is searched
 * beside it. */
int conf_parse(
	const char *path, const void *text, size_t n, struct conf **ret, struct conf_error *err);
/* The YAML that amounts to it: what differs from the defaults, files by their full names. */
void conf_write(const struct conf *conf, FILE *out);
/* NULL is fine; *conf becomes NULL. */
void conf_free(struct conf **conf);

/*
 * A fleet file as the text of an endpoints_file, in which each engine is in the line where the fleet file
 * has its group: so a message about an endpoint names that line.
 */
struct conf_fleet {
	char *text; /* the caller frees both */
	size_t n;
	char *connector; /* what the engines are started with; NULL: nothing moves between them */
};
/* conf_parse() where each fleet_file has these engines: it need not be on this machine. */
int conf_parse_fleet(const char *path, const void *text, size_t n, const struct conf_fleet *engines,
	struct conf **ret, struct conf_error *err);
/* 0 and *ret filled, or -1 with *err filled and *ret untouched. */
typedef int conf_fleet_fn(const char *path, struct conf_fleet *ret, struct conf_error *err);

/* The command line.  Strings point into argv; NULL = not given. */
#define CONF_ARGS_FLAGS 192 /* at least the rows of master/config/conf_flags.h */
#define CONF_ARGS_URLS 1024
struct conf_args {
	bool check;   /* -t */
	bool print;   /* --print-config */
	bool version; /* --version */
	bool help;    /* -h, --help */
	const char *file;
	const char *host, *port, *control_socket;
	const char *flag[CONF_ARGS_FLAGS]; /* another router's, by row: its value, "" of a switch */
	struct conf_args_url {             /* of flags that may be there again and again */
		int flag;
		const char *url, *port;
	} urls[CONF_ARGS_URLS];
	size_t nurls;
	conf_fleet_fn
		*fleet_reader; /* main()'s: reads the fleet_file of a pool; NULL: none is read */
};
int conf_args_parse(int argc, char **argv, struct conf_args *ret, struct conf_error *err);
void conf_args_help(FILE *out);
/* Calls `note` with each flag that has nothing to do here, or does something else than one might think, and why. */
typedef void conf_note_fn(void *arg, const char *flag, const char *why);
void conf_args_notes(const struct conf_args *args, conf_note_fn *note, void *arg);
/* The same with the file of each certificate that expires within 14 days. */
void conf_tls_notes(const struct conf *conf, conf_note_fn *note, void *arg);
/* The same with each pool whose engines' certificates are not verified, unless it was so `before` (or NULL) too. */
void conf_engine_tls_notes(
	const struct conf *conf, const struct conf *before, conf_note_fn *note, void *arg);
/* At start and at each reload: the file (--host and --port override its `listen`, --control-socket its
 * `control_socket`), or the flags. */
int conf_from_args(const struct conf_args *args, struct conf **ret, struct conf_error *err);

/*
 * The same text as that of `was`, which came from a file, with its watched files as they are now: what
 * else has become of that file meanwhile does not count, and what the machine limits stays as it was.
 */
int conf_again(const struct conf_args *args, const struct conf *was, struct conf **ret,
	struct conf_error *err);
/* A child does not need the keys of engines: what it inherited of them is overwritten. */
void conf_wipe_keys(const struct conf *conf);
/* Every child but the notifier: the same for what the secret of routers has become. */
void conf_siblings_wipe(const struct conf *conf);
/* A child that serves no clients and asks no engines: the same for the keys of certificates. */
void conf_wipe_certificates(const struct conf *conf);

/* Where a pool's endpoints_file or fleet_file is; the caller frees it. */
char *conf_endpoints_path(const struct conf *conf, const struct conf_pool *pool);

/* Where the api_keys_file is, or the admin.api_keys_file; the caller frees it. */
char *conf_api_keys_path(const struct conf *conf, enum door door);

/* The files of `tls`, those of pools too, into ret[conf_tls_paths_max()]; the caller frees each.  Returns their number. */
size_t conf_tls_paths(const struct conf *conf, char **ret);
size_t conf_tls_paths_max(const struct conf *conf);

/* What a change of a key takes; a set of them is an int. */
enum conf_class {
	CONF_LIVE = 1,       /* applied at once */
	CONF_GENERATION = 2, /* a new generation of workers */
	CONF_RESTART = 4,    /* not applied by a reload: the old value stays */
};
/*
 * Writes a line for each key that differs, with what a reload does with it:
 * "limits.max_body: 64MiB -> 1MiB (live)".  Pools are compared by name, endpoints by role and URL.  To be
 * called before conf_diff(), which keeps old values.
 */
struct conf_cost {
	unsigned live, generation, restart; /* keys of that class that differ */
};
struct conf_cost conf_changes(const struct conf *old, const struct conf *next, FILE *out);

/*
 * Compares a reloaded configuration with the one in force.  Changed keys of class restart get their
 * old value back in `next`, and `kept` is called with the name and line of each (0: it was
 * removed).  Returns the set of classes that changed (0: none), or -1 with *err filled: with the
 * old values `next` is inconsistent (for example more endpoints than the running max_endpoints).
 */
typedef void conf_kept_fn(void *arg, const char *key, int line);
int conf_diff(const struct conf *old, struct conf *next, conf_kept_fn *kept, void *arg,
	struct conf_error *err);
