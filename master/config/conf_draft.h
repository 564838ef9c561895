/*
 * Between the command line (conf_args.c) and the parser: other routers' flags as the text of a
 * configuration, with the flag that each line came from.
 *
 * Ownership: conf_draft_make() fills the draft even if it fails; conf_draft_free() frees it.
 */
#pragma once
#include "master/config/conf_draft_put.h"

/* 0, or -1 with *err filled. */
int conf_draft_make(struct conf_draft *d, const struct conf_args *args, conf_note_fn *note,
	void *note_arg, struct conf_error *err);
/* As conf_parse(), but an error names the flag. */
int conf_draft_parse(struct conf_draft *d, struct conf **ret, struct conf_error *err);
void conf_draft_free(struct conf_draft *d);
