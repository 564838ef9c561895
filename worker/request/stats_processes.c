#include "worker/request/stats_processes.h"

#include <event2/buffer.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "shm/core/heritage.h"
#include "shm/usage.h"
#include "worker/base/core.h"
#include "worker/request/exposition.h"

/* The kinds of which there is one process, by slot behind those of workers. */
static const char *const singles[SLOT_EXTRA] = {"notifier", "exporter", "master"};

/* One of the kind without a filter makes it 0. */
static void
sandbox(const struct worker *w, const struct exposition *x)
{
	const uint32_t first = SLOT_WORKERS(w->seg);
	bool workers = true;

	for (uint32_t i = 0; i < SLOT_WORKERS(w->seg); i++)
		if (proc_slot_state(w->seg, i) >= PROC_READY)
			workers = workers && proc_is_sandboxed(w->seg, i);
	exposition_heading(x, "pdrouter_sandbox", "gauge",
		"1 where the system calls of all these processes are filtered.");
	(void)evbuffer_add_printf(x->out, "pdrouter_sandbox{process=\"worker\"} %d\n", workers);
	for (uint32_t i = 0; first + i < SLOT_MASTER(w->seg); i++)
		if (proc_slot_state(w->seg, first + i) >= PROC_READY)
			(void)evbuffer_add_printf(x->out, "pdrouter_sandbox{process=\"%s\"} %d\n",
				singles[i], proc_is_sandboxed(w->seg, first + i));
}

void
stats_processes(struct worker *w, const struct exposition *x)
{
	uint32_t serving = 0, draining = 0;

	for (uint32_t i = 0; i < SLOT_WORKERS(w->seg); i++) {
		serving += proc_slot_state(w->seg, i) == PROC_READY;
		draining += proc_slot_state(w->seg, i) == PROC_DRAINING;
	}
	exposition_heading(x, "pdrouter_workers", "gauge", "Workers that serve.");
	(void)evbuffer_add_printf(x->out, "pdrouter_workers %u\n", serving);
	exposition_heading(x, "pdrouter_workers_draining", "gauge",
		"Workers of former generations that finish their requests.");
	(void)evbuffer_add_printf(x->out, "pdrouter_workers_draining %u\n", draining);
	sandbox(w, x);
	exposition_heading(
		x, "pdrouter_build_info", "gauge", "Version of the running program; always 1.");
	(void)evbuffer_add_printf(x->out, "pdrouter_build_info{version=\"%s\"} 1\n", w->h->version);
	exposition_heading(x, "pdrouter_generation", "gauge",
		"Generation of the worker that answered this page.");
	(void)evbuffer_add_printf(x->out, "pdrouter_generation %u\n", w->h->generation);
}

/* clang-format off */
static const struct {
	const char *name, *type, *help;
	size_t at; /* of struct usage_said */
	double unit;
} usages[] = {
	{ "process_cpu_seconds_total", "counter", "CPU time that the process has used.", offsetof(struct usage_said, cpu_us), 1e6 },
	{ "process_resident_memory_bytes", "gauge", "Memory of the process that is in RAM, what it shares with others included.", offsetof(struct usage_said, resident_bytes), 1 },
	{ "process_open_fds", "gauge", "Open file descriptors.", offsetof(struct usage_said, fds), 1 },
	{ "process_max_fds", "gauge", "The most that the process may open.", offsetof(struct usage_said, max_fds), 1 },
	{ "process_start_time_seconds", "gauge", "When the process was started, in seconds since 1970.", offsetof(struct usage_said, start_ms), 1e3 },
};
/* clang-format on */

static void
process_name(const struct seg *seg, uint32_t slot, char name[24])
{
	if (slot >= SLOT_WORKERS(seg))
		(void)snprintf(name, 24, "%s", singles[slot - SLOT_WORKERS(seg)]);
	else
		(void)snprintf(name, 24, "worker-%u", slot);
}

void
stats_usage(const struct worker *w, const struct exposition *x)
{
	for (size_t i = 0; i < sizeof(usages) / sizeof(usages[0]); i++) {
		exposition_heading(x, usages[i].name, usages[i].type, usages[i].help);
		for (uint32_t slot = 0; slot < w->seg->hdr->nslots; slot++) {
			struct usage_said said;
			uint64_t value;
			char name[24];

			if (!usage_read(w->seg, slot, &said))
				continue;
			memcpy(&value, (const char *)&said + usages[i].at, sizeof(value));
			process_name(w->seg, slot, name);
			if (value != 0)
				(void)evbuffer_add_printf(x->out, "%s{process=\"%s\"} %.15g\n",
					usages[i].name, name, (double)value / usages[i].unit);
		}
	}
}
