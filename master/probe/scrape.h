/*
 * The load that engines report: scrapes /metrics of engines that are up, and stores for the workers how
 * much of that load is not theirs.  A scrape that fails never affects health.
 *
 * Process: master.  (shm/load.h has the shared words.)
 */
#pragma once

struct engine;
struct scrape;

/* The engine came up: it is scraped every stats_interval from now on. */
void scrape_start(struct engine *e);
/* No further scrapes; the last figures stay and grow old. */
void scrape_stop(struct engine *e);
/* The next scrape is due now. */
void scrape_now(struct engine *e);
/* The interval may have changed. */
void scrape_changed(struct engine *e);
/* Why the load of the engine is unknown, also: not believed (belief.h).  "": it is known. */
const char *scrape_unknown(const struct engine *e);
