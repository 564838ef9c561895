#include "tests/bench/sched_fleet.h"

#include <assert.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/prefix.h"
#include "shm/core/rcu.h"
#include "shm/table.h"

#define BUILD 1
#define SHUFFLE 2654435761u /* odd and prime, so that i * SHUFFLE mod 2n is a permutation */

static void
endpoint_fill(struct table_builder *b, struct fleet *f, const struct fleet_plan *plan, uint32_t i)
{
	struct table_endpoint *te = table_endpoint_at(b, i);
	char url[64];

	(void)snprintf(url, sizeof(url), "http://10.0.%u.%u:8000", i / 200, i % 200 + 1);
	te->slot = (uint32_t)((uint64_t)i * SHUFFLE % (2 * f->n));
	te->role = i < f->n ? ROLE_PREFILL : ROLE_DECODE;
	te->addr = (struct ep_addr){.family = AF_INET, .port = 8000, .ip = {10}};
	te->weight = plan->weights[i % f->n];
	te->url = table_str(b, url);
	te->authority = te->host = te->prefix = te->bootstrap_host = te->version = te->kv_addr = "";
	ep_slot_begin(f->seg, te->slot);
	te->tag = (uint32_t)ep_tag(f->seg, te->slot);
	ep_state_set(f->seg, te->slot, EP_UP);
	prefix_capacity_set(f->seg, te->slot, plan->capacity);
}

void
fleet_init(struct fleet *f, const struct fleet_plan *plan)
{
	const struct seg_sizes sizes = {.max_workers = plan->workers,
		.max_endpoints = 2 * plan->n,
		.max_pools = 1,
		.flags_per_worker = 64,
		.prefix_buckets = plan->prefix_buckets,
		.sibling_bytes = plan->talks ? SHM_LINE : 0}; /* no ring is used */
	struct table_builder b;
	struct table_pool *tp;
	void *arena;
	int r;

	f->n = plan->n;
	r = seg_new(&sizes, BUILD, &f->seg);
	if (r != 0) {
		(void)fprintf(stderr, "sched: no shared memory: %s\n", strerror(-r));
		exit(1);
	}
	f->writer = rcu_writer_new(f->seg);
	arena = rcu_arena_get(f->writer);
	(void)table_begin(&b, arena, f->seg->arena_bytes, 1, 2 * plan->n);
	tp = table_pool_at(&b, 0);
	tp->name = "bench";
	tp->session_header = tp->session_member = "";
	for (int role = 0; role < ROLE_N; role++) {
		tp->policy[role] = plan->policy;
		tp->load[role] = plan->loads[role];
	}
	for (uint32_t i = 0; i < 2 * plan->n; i++)
		endpoint_fill(&b, f, plan, i);
	r = table_end(&b);
	assert(r == 0);
	rcu_publish(f->writer, arena);
}

void
fleet_fini(struct fleet *f)
{
	rcu_writer_free(&f->writer);
	seg_free(&f->seg);
}
