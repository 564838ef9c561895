/* A small segment of one's own for each test. */
#pragma once
#include <criterion/criterion.h>

#include "shm/core/seg.h"

#define SMALL_BUILD 42

static struct seg *seg;

static inline void
small_seg(void)
{
	const struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = 4,
		.max_pools = 2,
		.flags_per_worker = 128,
		.max_quotas = 8,
		.queue_slots = 100,
		.max_api_keys = 4,
		.running_requests = 3,
		.kept_requests = 5,
		.span_bytes = 4096,
		.prefix_buckets = 64,
		.sibling_bytes = 2048};

	cr_assert_eq(seg_new(&sizes, SMALL_BUILD, &seg), 0);
}

static inline void
small_seg_end(void)
{
	seg_free(&seg);
}
