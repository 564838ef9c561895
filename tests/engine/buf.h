/*
 * A growable byte buffer and the few encodings the simulator writes.
 *
 * Ownership: whoever embeds a struct buf ends it with buf_free(); all-zero is an empty buffer.
 * Out of memory aborts: the simulator is a test tool.
 */
#pragma once
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
	char *p;
	size_t len, cap;
};

#define BUF_LIT(b, s) buf_add((b), (s), sizeof(s) - 1)

void buf_reserve(struct buf *b, size_t more); /* room for `more` bytes after len */
void buf_add(struct buf *b, const void *p, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_fill(struct buf *b, char c, size_t n);
void buf_u64(struct buf *b, uint64_t v); /* decimal */
void buf_fmt(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_json(struct buf *b, const char *p, size_t n);    /* a JSON string, quotes included */
void buf_json_in(struct buf *b, const char *p, size_t n); /* the same without the quotes */
void buf_base64(struct buf *b, const void *p, size_t n);
void buf_unbase64(struct buf *b, const char *p, size_t n); /* stops at the first wrong letter */
void buf_cut(struct buf *b, size_t n);                     /* forgets the first n bytes */
void buf_trim(struct buf *b, size_t cap); /* empties it; memory beyond `cap` is given back */
const char *buf_cstr(struct buf *b);      /* NUL-terminated, valid until the next change */
void buf_free(struct buf *b);
