/* msgpack, as far as engines write it over ZMQ. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "tests/engine/buf.h"

void pack_byte(struct buf *b, unsigned char c);
void pack_str(struct buf *b, const char *s);
void pack_bin(struct buf *b, const void *p, size_t n); /* below 256 bytes */
void pack_uint(struct buf *b, uint64_t v);
void pack_double(struct buf *b, double v);
void pack_nil(struct buf *b);
void pack_array(struct buf *b, size_t n);
void pack_map(struct buf *b, size_t n); /* below 16 pairs */
