/*
 * Inside the readers of YAML files (conf*.c, and master/topology/ with tables of its own): one reading
 * of one file, its position and its error.  conf_yaml.c turns bytes into libyaml's tree.  conf_walk.c turns the tree into
 * structs by the rows of conf_keys.h.  conf_value.c turns one text into one member.  conf_pools.c reads pools.
 *
 * Every int function returns 0, or -1 with the error already written; the first error ends the
 * reading.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <yaml.h>

#include "master/config/conf_keys.h"

#define CONF_WHAT 256      /* of conf_error.what */
#define CONF_ENTRY_KEYS 96 /* at least the rows of any table for a list's entries */

struct conf_read {
	const char *file;
	const char *flag; /* the command line's option being read, instead of a path; or NULL */
	struct conf_error *err;
	/* [CONF_T_N]: the readers of lists and maps, by type, which conf_walk.c calls; or NULL */
	conf_reader *const *readers;
	conf_fleet_fn *fleet_reader; /* reads a fleet_file; or NULL */
	const struct conf_fleet
		*engines; /* of each fleet_file, in place of what `fleet_reader` reads; or NULL */
	/* being built; owned by the caller that started the reading; NULL: another kind of file is read */
	struct conf *conf;
	/* in force with the same text: files that are not watched are as they were read for it; or NULL */
	const struct conf *was;
	struct conf_seen *pool_names, *models; /* of the pools that have been read */
	/* of the pool being read: the lines of conf_connector_keys, and the first key of each map */
	int connector_lines[CONF_ENTRY_KEYS];
	struct {
		int line; /* 0: the pool has no map of this connector */
		const char *key;
	} map[CONNECTOR_N];
	yaml_document_t doc;
	char path[sizeof(((struct conf_error *)0)->key)];
};

/* Fills the error with file, line, the current key, and the reason.  Always -1. */
int conf_fail(struct conf_read *r, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Errors reach terminals: control bytes that a file has become `?`. */
void conf_blunt(char *s);
/* Steps into a key or entry; returns what conf_leave() takes to step back. */
size_t conf_enter(struct conf_read *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* conf_enter() of "[i]". */
size_t conf_enter_entry(struct conf_read *r, size_t i);
void conf_leave(struct conf_read *r, size_t mark);

/* --- conf_yaml.c ------------------------------------------------------------------------------ */
#define CONF_FILE_MAX (8 * CONF_MIB)
/* Reads the file's bytes into *ret (free it).  A failure is reported at the position of `r`,
 * with `line`. */
int conf_yaml_read(struct conf_read *r, const char *path, int line, char **ret, size_t *ret_n);
/* r->doc, valid until yaml_document_delete(); a file without content has no root node. */
int conf_yaml_load(struct conf_read *r, const char *text, size_t n);

/* Where a file is that a configuration names; the caller frees it. */
char *conf_beside(const char *file, const char *name);

/* --- conf_walk.c ------------------------------------------------------------------------------ */
static inline int
conf_line(const yaml_node_t *node)
{
	return (int)node->start_mark.line + 1;
}
/*
 * Fills the struct at base from a mapping: known keys once each, then defaults.  lines[keys->n]
 * receives each key's line, 0 where it is not given.
 */
int conf_walk(struct conf_read *r, const struct conf_keys *keys, void *base, yaml_node_t *map,
	int *lines);
/* conf_walk() without the defaults. */
int conf_walk_given(struct conf_read *r, const struct conf_keys *keys, void *base, yaml_node_t *map,
	int *lines);
/* What conf_walk() does for keys that are not given. */
int conf_defaults(
	struct conf_read *r, const struct conf_keys *keys, void *base, const int *lines, int line);
/* The i-th entry of a list, or NULL after its last. */
yaml_node_t *conf_item(struct conf_read *r, yaml_node_t *list, size_t i);
int conf_is_list(struct conf_read *r, const struct conf_key *k, yaml_node_t *node, size_t *ret_n);
/* The i-th entry of a mapping whose keys are free names: 1, 0 after the last one, or -1. */
int conf_entry(
	struct conf_read *r, yaml_node_t *map, size_t i, const char **name, yaml_node_t **value);
/* The text of a single value, a number or a truth value as it is written. */
int conf_scalar(struct conf_read *r, yaml_node_t *node, const char *wants, const char **ret);
/* Row of a path that is known to exist. */
const struct conf_key *conf_key_row(const struct conf_keys *keys, const char *path);

/* The line of a pool's key, 0 if it is not given; the line of the key, or else of the pool.  lines: of
 * conf_pool_keys, or NULL. */
int conf_given(const int *lines, const char *key);
int conf_line_of(const struct conf_pool *p, const int *lines, const char *key);
/* Fails at a key of the pool, with that key's line. */
int conf_fail_key(struct conf_read *r, const struct conf_pool *p, const int *lines, const char *key,
	const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* --- conf_value.c ----------------------------------------------------------------------------- */
enum conf_repr {
	CONF_U32,
	CONF_U64,
	CONF_WORD,
	CONF_RATE,
	CONF_SHORT, /* a text in place */
	CONF_PORTS,
	/* from here on a plain number or truth value in YAML is a mistake */
	CONF_STR,
	CONF_STRS,
	CONF_LIST
};
enum conf_repr conf_repr(const struct conf_key *k);
/* "a duration such as 2s" */
const char *conf_wants(const struct conf_key *k);
/* True if the type is a number: quotes would make it text. */
/* The word for a value of an enum. */
const char *conf_word(const struct conf_key *k, unsigned v);
bool conf_is_number(const struct conf_key *k);
/* One text into a member; lists of texts are appended to.  0, or -1 with `what` written. */
int conf_value_set(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT]);
void conf_value_copy(const struct conf_key *k, const void *from, void *to); /* not for lists */
/* Frees the texts and lists of texts that the rows name. */
void conf_values_free(const struct conf_keys *keys, void *base);
bool conf_strs_has(char *const *v, size_t n, const char *s);

/* --- conf_pools.c ----------------------------------------------------------------------------- */
/* For conf_read.readers. */
extern conf_reader *const conf_readers[CONF_T_N];
/* A zeroed entry at the end of the array. */
struct conf_pool *conf_pool_add(struct conf *c);
struct conf_endpoint *conf_endpoint_add(struct conf_pool *p);
/* Works out the defaults that depend on other keys, then checks the newest pool against itself and
 * the others.  lines: of conf_pool_keys, or NULL. */
int conf_pool_finish(struct conf_read *r, struct conf_pool *p, const int *lines);
/* Once all keys are known: what of its queue depends on the shared memory. */
int conf_pool_check_queue(struct conf_read *r, struct conf_pool *p);
void conf_pool_free(struct conf_pool *p);
/* The defaults that depend on other keys, as they are for a pool like `p`, the number-th, into *ret. */
void conf_pool_compute(const struct conf_pool *p, size_t number, struct conf_pool *ret);

/* --- conf_equal.c ----------------------------------------------------------------------------- */
/* Compares one member; the pools with all that they hold. */
bool conf_value_equal(const struct conf_key *k, const void *a, const void *b);
bool conf_dns_equal(const struct conf_pool *a, const struct conf_pool *b);

/* --- conf_value_write.c ----------------------------------------------------------------------- */
/* In quotes, with the escapes that YAML requires. */
void conf_write_text(FILE *out, const char *s);
/* A member as conf_value_set() would take it, in YAML; not the lists of mappings. */
void conf_value_write(const struct conf_key *k, const void *base, FILE *out);

/* --- conf_load.c ------------------------------------------------------------------------------ */
struct conf *conf_new(const char *path);
/* `listen` as it is where neither that nor tls.listen is given. */
int conf_listen_default(struct conf *c, char what[CONF_WHAT]);
/* conf_load() and conf_again() but for the command line; `fleet_reader` reads fleet_files. */
int conf_load_file(
	const char *path, conf_fleet_fn *fleet_reader, struct conf **ret, struct conf_error *err);
int conf_reparse(const struct conf *was, conf_fleet_fn *fleet_reader, struct conf **ret,
	struct conf_error *err);
/* Resolves `workers: auto` and checks keys against each other. */
int conf_finish(struct conf_read *r);
