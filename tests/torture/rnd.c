/*
 * In place of shm/base/rnd.c: random bits that a seed repeats, a stream per life, also where lives
 * are threads.
 */
#include "shm/base/rnd.h"

#include "tests/torture/torture.h"

static _Thread_local uint64_t stream = 1;

uint64_t
next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

void
rnd_seed(uint64_t seed)
{
	stream = seed | 1;
}

uint64_t
rnd_u64(void)
{
	return next_random(&stream);
}
