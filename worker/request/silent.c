#include "worker/request/silent.h"

#include <stdlib.h>

#include "shm/base/conf.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "shm/quota.h"
#include "worker/base/address.h"
#include "worker/base/core.h"
#include "worker/request/forwarded.h"

#define COUNTERS 4096  /* a power of two */
#define SILENT_MS 1000 /* a client that has just connected is not silent */

struct silent {
	uint32_t count[COUNTERS];
};

struct silent *
silent_new(void)
{
	return MEM_NEW(struct silent);
}

void
silent_free(struct silent **s)
{
	free(*s);
	*s = NULL;
}

/* A /64 belongs to one customer. */
static uint32_t
counter_of(const struct worker *w, const struct address *a)
{
	const uint64_t hash =
		quota_hash(w->seg, (unsigned char)a->family, a->ip, a->family == AF_INET ? 4 : 8);

	return (uint32_t)hash & (COUNTERS - 1);
}

void
silent_begin(struct silence *s, uint64_t now_ms)
{
	*s = (struct silence){.due_ms = now_ms + SILENT_MS};
}

bool
silent_look(struct worker *w, struct silence *s, enum door door, const struct address *from,
	uint64_t now_ms)
{
	const uint32_t most = w->conf->max_silent;
	uint32_t counter;

	if (s->due_ms == 0 || now_ms < s->due_ms)
		return true;
	s->due_ms = 0;
	if (most == 0 || door != DOOR_CLIENTS || forwarded_by_proxy(w->conf, from) ||
		from->family == AF_UNSPEC) /* a proxy that names no client */
		return true;
	counter = counter_of(w, from);
	if (w->silent->count[counter] >= most) {
		metric_add(w->slab, M_SILENT_CLOSED, 1);
		return false;
	}
	w->silent->count[counter]++;
	s->counter = counter + 1;
	return true;
}

void
silent_end(struct worker *w, struct silence *s)
{
	if (s->counter != 0)
		w->silent->count[s->counter - 1]--;
	*s = (struct silence){0};
}
