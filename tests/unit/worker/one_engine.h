/* A worker that knows one engine, in a segment of its own. */
#pragma once
#include <criterion/criterion.h>

#include "shm/core/seg.h"
#include "shm/load.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

#define SLOT 1 /* the engine's */

static struct worker w;
static struct endpoint ep;

static void
one_engine(void)
{
	const struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = 2,
		.max_pools = 1,
		.flags_per_worker = 64,
		.span_bytes = 4096};

	w = (struct worker){0};
	cr_assert_eq(seg_new(&sizes, 1, &w.seg), 0);
	ep_slot_begin(w.seg, SLOT);
	ep = (struct endpoint){.slot = SLOT, .tag = (uint32_t)ep_tag(w.seg, SLOT)};
}
