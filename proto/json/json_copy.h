/*
 * A JSON text that is copied while it is read (json_read.h), up to each value that something else is to be
 * written in place of.  Private to proto/.
 */
#pragma once
#include "proto/json/json_read.h"
#include "proto/json/splice.h"
#include "shm/base/mem.h"

struct copy {
	struct json_read r;
	const char *at; /* copied up to here */
	struct membuf *out;
};

static inline void
copy_start(struct copy *c, const struct splice_seg *text, struct membuf *out)
{
	json_read_init(&c->r, text->p, text->n);
	c->at = text->p;
	c->out = out;
}

static inline void
copy_up_to(struct copy *c, const char *p)
{
	membuf_add(c->out, c->at, (size_t)(p - c->at));
	c->at = p;
}

/* `value` was read; something else will be written in its place. */
static inline void
copy_past(struct copy *c, const struct splice_seg *value)
{
	copy_up_to(c, value->p);
	c->at = value->p + value->n;
}
