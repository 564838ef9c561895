/*
 * What the flags of both other routers have in common: the draft, a YAML text with the flag that each line came
 * from, and the keys that do not depend on the router.
 */
#pragma once
#include <stdio.h>

#include "master/config/conf_flag.h"
#include "master/config/conf_read.h"

struct conf_draft {
	const struct conf_args *args;
	conf_note_fn *note; /* or NULL */
	void *note_arg;
	struct conf_error *err;
	FILE *out;
	char *text; /* from conf_draft_make()'s end on */
	size_t ntext;
	int *from; /* the flag of each line */
	size_t nlines;
	yaml_document_t registry; /* of --decoder-registry, if has_registry */
	bool has_registry;
};

/* What a line came from that no flag of the table has written. */
enum { FROM_PORT = FLAG_N, FROM_HOST };

/* The other router's words and pdrouter's; `instead`: not supported, and what to use instead. */
struct flag_word {
	const char *theirs, *ours, *instead;
};

struct words {
	char **v;
	size_t n;
};

/* The flag's value, or NULL. */
const char *draft_value(const struct conf_draft *d, enum conf_flag f);
/* Fills the error with the flag and the reason.  Always -1. */
int draft_fail(struct conf_draft *d, enum conf_flag f, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* Tells the operator something about a flag that is no error. */
void draft_note(struct conf_draft *d, enum conf_flag f, const char *why);
void draft_note_if_given(struct conf_draft *d, enum conf_flag f, const char *why);
/* Writes a line of YAML; `from` is the flag that it came from, for errors. */
void draft_put(struct conf_draft *d, int from, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A line with one text in it, quoted. */
void draft_put_text(
	struct conf_draft *d, int from, const char *before, const char *text, const char *after);
/* A flag whose value is a number, under a key. */
int draft_put_number(struct conf_draft *d, enum conf_flag f, const char *key);
/* "      key: [7300, 7301]" of "7300,7301". */
int draft_put_ports(struct conf_draft *d, enum conf_flag f, const char *key, const char *ports);
/* The keys of the top level; `port` is the other router's default. */
int draft_put_root(
	struct conf_draft *d, int from, const char *port, size_t npools, size_t nendpoints);
/* Which requests one engine serves alone (`whole`: all), the health path, rescue and queue. */
int draft_put_routes(struct conf_draft *d, enum conf_flag from, bool whole);
/* True for digits alone. */
bool draft_is_number(const char *s);
/* The row of a word that other routers use; -1 with the error where there is none. */
int draft_find_word(struct conf_draft *d, enum conf_flag f, const struct flag_word *words, size_t n,
	const struct flag_word **ret);
/* "a, b,c" without the blanks; an empty word stays, as "". */
struct words draft_split(const char *list);
void draft_words_free(struct words *w);

#define FIND(d, f, words, ret) draft_find_word(d, f, words, sizeof(words) / sizeof((words)[0]), ret)
