/*
 * The priority of a request among those that wait for a slot.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdint.h>

#include "worker/base/end_list.h"

struct table_pool;
struct text;

/* Reads the priority from the pool's header, else from the body's member, if the pool allows one; else it is 0.
 * Returns END_UNSUPPORTED, with the reason in *ret_detail, if the header is no integer of 32 bits; else END_OK. */
enum req_end priority_read(const struct text *text, const struct table_pool *tp, int32_t *ret,
	const char **ret_detail);
