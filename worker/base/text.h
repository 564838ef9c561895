/*
 * The client's bytes: its body, the body's parsed members, the header lines that engines get.
 *
 * Process: worker.
 * Ownership: counted references.  The request and each attempt hold a reference as long as
 * they may still send the bytes; the last text_unref() frees the text.  A text is constant
 * after the request is planned.
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
	size_t body_cap; /* counted by buffered_add() */
	/* the body's members; NULL: the body is no JSON, or text_drop_doc() was called */
	struct splice *doc;
	char *headers; /* end-to-end header lines, each with CRLF; those with the client's key come last */
	size_t headers_len; /* counted by buffered_add() */
	size_t headers_room;
	size_t key_lines_len; /* of the lines with the key */
	char *query;          /* of the target, or NULL */
};

/* Returns a new text without bytes; the caller has its one reference. */
struct text *text_new(struct worker *w);
struct text *text_ref(struct text *text);
/* Gives a reference back and sets *text to NULL.  *text may be NULL. */
void text_unref(struct text **text);
/* Returns a new text with `body` (`len` bytes, taken over) and copies of the header lines and
 * the query of `of`. */
struct text *text_with_body(const struct text *of, char *body, size_t len);
/* Makes room for so many bytes of header lines, in a text without any. */
void text_make_headers(struct text *text, size_t n);
/* Parses the body of a text without parsed members as one JSON object.  Returns NULL, or the reason why it is none. */
const char *text_scan(struct text *text);
/* Copies the members that a scan of the body has found into a text without any. */
void text_copy_doc(struct text *text, const struct splice *doc);
/* Frees the parsed members. */
void text_drop_doc(struct text *text);
/* Returns the value of a header line; an empty span if there is none. */
struct span text_header(const struct text *text, const char *name);
/* Returns the header lines, with the client's key or without. */
struct span text_lines(const struct text *text, bool with_key);
/* Returns a copy of the client's Authorization line with its CRLF; "" if there is none.  The
 * caller frees it. */
char *text_copy_key(const struct text *text);
