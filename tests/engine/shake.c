#include "tests/engine/shake.h"

#include <string.h>

static const struct shake *const shakes[] = {&shake_nixl, &shake_response, &shake_lmcache,
	&shake_storage, &shake_sglang, &shake_mooncake, &shake_mooncake_old, &shake_p2p_nccl};

#define N (sizeof(shakes) / sizeof(shakes[0]))

const struct shake *
shake_find(const char *name)
{
	size_t i;

	for (i = 0; i < N; i++)
		if (strcmp(shakes[i]->name, name) == 0)
			return shakes[i];
	return NULL;
}

const char *
shake_names(void)
{
	static struct buf b;
	size_t i;

	b.len = 0;
	for (i = 0; i < N; i++)
		buf_fmt(&b, "%s%s", i ? "|" : "", shakes[i]->name);
	return buf_cstr(&b);
}
