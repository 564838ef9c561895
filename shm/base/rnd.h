/*
 * Random bits for ids that must never repeat (attempt suffixes, nonces).  They come from the kernel, 512 bytes at a
 * time; the process aborts if the kernel gives none: ids that repeat could cross two users' KV.  A child process
 * uses none of its parent's, and what was given out is overwritten.  One thread of a process draws.
 *
 * The torture program links tests/torture/rnd.c instead, whose streams a seed repeats.  Choices that need no
 * secrecy (a policy's) use the worker's own cheap generator, worker.rnd.
 */
#pragma once
#include <stdint.h>

uint64_t rnd_u64(void);
/* Overwrites what was drawn and not given out yet: fork() does it in the child. */
void rnd_forget(void);
/* A random (version 4) UUID as 36 characters and a NUL. */
void rnd_uuid(char out[37]);
/* `v` as 16 lower-case hex digits, no NUL. */
void rnd_hex16(char *out, uint64_t v);
