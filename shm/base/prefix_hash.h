/*
 * XXH3 of many bytes at once, where the processor has AVX2: half the instructions of the SSE2 that the other code of the
 * hash is made for.  The hash is the same.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* From so many bytes on the wider registers gain more than the call costs. */
#define PREFIX_HASH_WIDE 512

/* Only where __builtin_cpu_supports("avx2"). */
uint64_t prefix_hash_wide(const void *p, size_t n, const void *secret, size_t nsecret);
