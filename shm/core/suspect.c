#include "shm/core/suspect.h"

#include <stddef.h>

#include "shm/base/clock.h"

#define REPORT_MS 1000

#define NAME(id, name) [SUSPECT_##id] = (name),
static const char *const names[SUSPECT_N] = {SUSPECTS(NAME)};
#undef NAME

static struct {
	uint64_t *counters; /* NULL: nothing is counted */
	suspect_report *report;
	uint64_t reported_ms[SUSPECT_N], unreported[SUSPECT_N];
} own;

void
suspect_begin(uint64_t *counters, suspect_report *report)
{
	own.counters = counters;
	own.report = report;
	for (int i = 0; i < SUSPECT_N; i++)
		own.reported_ms[i] = own.unreported[i] = 0;
}

void
suspect_found(enum suspect_where where, uint64_t index)
{
	const uint64_t now_ms = clock_ms();

	if (own.counters == NULL)
		return;
	own.counters[where]++;
	own.unreported[where]++;
	if (own.reported_ms[where] != 0 && now_ms - own.reported_ms[where] < REPORT_MS)
		return;
	own.report(names[where], index, own.unreported[where]);
	own.reported_ms[where] = now_ms;
	own.unreported[where] = 0;
}
