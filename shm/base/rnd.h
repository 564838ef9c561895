/*
 * Random bits for ids that must never repeat (attempt suffixes, nonces).  glibc's arc4random_buf() draws them from
 * the kernel at each call: nothing is buffered in the process, so a fork repeats nothing.  It aborts if the
 * kernel gives none: ids that repeat could cross two users' KV.
 *
 * The torture program links tests/torture/rnd.c instead, whose streams a seed repeats.  Choices that need no
 * secrecy (a policy's) use the worker's own cheap generator, worker.rnd.
 */
#pragma once
#include <stdint.h>

uint64_t rnd_u64(void);
/* A random (version 4) UUID as 36 characters and a NUL. */
void rnd_uuid(char out[37]);
/* `v` as 16 lower-case hex digits, no NUL. */
void rnd_hex16(char *out, uint64_t v);
