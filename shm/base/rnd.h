/*
 * Random bits for ids that must never repeat (attempt suffixes, nonces): getrandom(2), buffered 256
 * bytes at a time.  The buffer is per process and is thrown away after a fork (rnd_after_fork, called
 * first thing in a child), or two workers would draw the same ids.
 */
#pragma once
#include <stdint.h>

uint64_t rnd_u64(void);
void rnd_after_fork(void);
/* A random (version 4) UUID as 36 characters and a NUL. */
void rnd_uuid(char out[37]);
/* `v` as 16 lower-case hex digits, no NUL. */
void rnd_hex16(char *out, uint64_t v);
