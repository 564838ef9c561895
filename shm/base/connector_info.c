#include "shm/base/connector_info.h"

#include <assert.h>

#define ROW(id, word, ...) [CONNECTOR_##id] = {.name = #word, __VA_ARGS__},

const struct connector_info connector_info[CONNECTOR_N] = {CONNECTOR_LIST(ROW)};

const char *
connector_name(enum connector_kind c)
{
	assert((unsigned)c < CONNECTOR_N);
	return connector_info[c].name;
}
