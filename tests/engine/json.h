/*
 * A strict JSON reader (RFC 8259, UTF-8 checked) that keeps no tree: a value is a span of the text,
 * and what a caller wants of it is found by walking.  Numbers are never converted unless asked, so
 * what an engine compares is exactly what it was sent.
 *
 * Written apart from the router's own scanner, on purpose: a test oracle must not share its bugs.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

/* A valid value without the white space around it, inside somebody else's bytes; p == NULL: absent.
 */
struct jv {
	const char *p;
	size_t len;
};

struct jiter {
	const char *p, *end;
	char close;
	bool check, first;
	bool bad; /* what follows is not JSON; json_next() has returned false */
};

typedef void json_sink(void *arg, const char *p, size_t n);

/* The value that fills p[0..n); absent if there is anything wrong with it. */
struct jv json_doc(const char *p, size_t n);
/* Walks an array or object of checked text (from json_doc() or another walk); `key` is absent in
 * arrays.  False: it is neither. */
bool json_iter(struct jiter *it, struct jv container);
/* The same over bytes nobody has looked at: every step checks the value it hands out, and after the
 * last one `bad` and json_iter_ended() say whether all of it was JSON. */
bool json_iter_check(struct jiter *it, struct jv container);
bool json_next(struct jiter *it, struct jv *key, struct jv *val);
bool json_iter_ended(const struct jiter *it); /* nothing but white space behind the container */

char json_kind(struct jv v);                        /* one of { [ " 0 t f n, or 0 when absent */
struct jv json_get(struct jv obj, const char *key); /* the last of that name, as Python does */
bool json_is(struct jv str, const char *text);      /* a string with exactly this content */
bool json_true(struct jv v);
bool json_null(struct jv v); /* absent or null */
/* An integer, also one written 5.0; false (and *ret untouched) for anything else. */
bool json_int(struct jv v, int64_t *ret);
double json_num(struct jv v, double dflt);
void json_text(struct jv str, json_sink *sink, void *arg); /* the decoded content of a string */
void json_text_buf(struct jv str, struct buf *out);
/* The value in one spelling: no white space, strings decoded; numbers as written. */
void json_canon(struct jv v, json_sink *sink, void *arg);
