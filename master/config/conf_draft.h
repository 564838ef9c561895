/*
 * Between the command line (conf_args.c) and the parser: other routers' flags as the text of a
 * configuration, which says of each line what flag it came from.
 *
 * Ownership: conf_draft_make() fills the draft also where it fails; conf_draft_free() ends it.
 */
#pragma once
#include <stdio.h>

#include "master/config/conf_flags.h"
#include "master/config/conf_read.h"

#define CONF_FLAG_NAME 64 /* bytes of "--name" */

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

/* 0, or -1 with *err filled. */
int conf_draft_make(struct conf_draft *d, const struct conf_args *args, conf_note_fn *note,
	void *note_arg, struct conf_error *err);
/* As conf_parse(), but an error names the flag. */
int conf_draft_parse(struct conf_draft *d, struct conf **ret, struct conf_error *err);
void conf_draft_free(struct conf_draft *d);

/* "--name"; returns buf. */
const char *conf_flag_name(enum conf_flag f, char buf[CONF_FLAG_NAME]);
/* Always -1. */
int conf_flag_fail(struct conf_error *err, enum conf_flag f, const char *what);
/* "host:port", an IPv6 literal in brackets; the caller frees it. */
char *conf_host_port(const char *host, const char *port);
