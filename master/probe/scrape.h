/*
 * How loaded the engines say they are: scrapes /metrics of endpoints that are up and tells the
 * workers how much of it is not theirs.  A scrape that fails never affects health.
 *
 * Process: master.  (Named scrape_*: load_* are the shared words, shm/load.h.)
 */
#pragma once

struct engine;
struct scrape;

/* The endpoint came up: scraped every stats_interval from now on. */
void scrape_start(struct engine *e);
/* No further scrapes; the last figures stay and grow old. */
void scrape_stop(struct engine *e);
/* The interval may have changed. */
void scrape_changed(struct engine *e);
