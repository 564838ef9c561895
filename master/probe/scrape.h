/*
 * The load that engines report: scrapes /metrics of engines that are up, and stores for the workers how
 * much of that load is not theirs.  A scrape that fails never affects health.
 *
 * Process: master.  (shm/load.h has the shared words.)
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct engine;
struct scrape;

/* The engine came up: it is scraped every stats_interval from now on, and more often while the load of others changes. */
void scrape_start(struct engine *e);
/* No further scrapes; the last figures stay and grow old. */
void scrape_stop(struct engine *e);
/* The next scrape is due now. */
void scrape_now(struct engine *e);
/* The interval may have changed. */
void scrape_changed(struct engine *e);
/* Why the load of the engine is unknown, also: not believed (belief.h).  "": it is known. */
const char *scrape_unknown(const struct engine *e);

/* By the engine's own counters: tokens per second of prompts (of a prefill engine) or of answers (of a
 * decode engine), for all clients of the engine, over the last second or more.  False: the engine has no
 * such counters, or its last page is too old. */
bool scrape_tokens_s(const struct engine *e, double *ret);

/* While the load of others changes, figures are old soon: an engine is scraped often until so many figures are the same. */
#define SCRAPE_OFTEN_FOR 16
#define SCRAPE_OFTEN_PART 4 /* of stats_interval */
#define SCRAPE_OFTEN_LEAST_MS 250
#define SCRAPE_OFTEN_EACH_MS 4 /* for each such engine: all together 250 scrapes a second */

/* How long until the next scrape of an engine while so many are scraped often. */
static inline uint64_t
scrape_often_ms(uint64_t interval_ms, uint32_t engines)
{
	uint64_t ms = interval_ms / SCRAPE_OFTEN_PART;

	if (ms < SCRAPE_OFTEN_LEAST_MS)
		ms = SCRAPE_OFTEN_LEAST_MS;
	if (ms < (uint64_t)engines * SCRAPE_OFTEN_EACH_MS)
		ms = (uint64_t)engines * SCRAPE_OFTEN_EACH_MS;
	return ms < interval_ms ? ms : interval_ms;
}
