/*
 * The client's bytes: its body, the body's parsed members, the header lines that engines get.
 *
 * Process: worker.
 * Ownership: counted references.  The request and each attempt hold one as long as they may still send the
 * bytes; the last one to drop its reference frees them.  Nobody changes a text after the request is planned.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/json/splice.h"

struct worker;

struct text {
	struct worker *w;
	uint32_t refs;
	char *body;
	size_t body_len;
	size_t body_cap;    /* counted by buffered_add() */
	struct splice *doc; /* the body's members; NULL: it is no JSON, or text_drop_doc() */
	char *headers;      /* end-to-end header lines, each with CRLF */
	size_t headers_len;
	char *query; /* of the target, or NULL */
};

/* One reference, no bytes. */
struct text *text_new(struct worker *w);
struct text *text_ref(struct text *text);
/* Sets *text to NULL; NULL is fine. */
void text_unref(struct text **text);
/* A text with `body` (which it takes over, `len` bytes) and copies of the header lines and the query of `of`. */
struct text *text_with_body(const struct text *of, char *body, size_t len);
/* Parses the body as one JSON object.  NULL, or why it is none. */
const char *text_scan(struct text *text);
/* Frees the parsed members: 3.6 KiB that a text which only rests does not need. */
void text_drop_doc(struct text *text);
/* The value of a header line; nothing if there is none. */
struct span text_header(const struct text *text, const char *name);
/* The client's Authorization line with its CRLF; "" if there is none.  The caller frees it. */
char *text_copy_key(const struct text *text);
