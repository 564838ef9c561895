/*
 * Is an endpoint up: probes with rise and fall counts, and its addresses.  Before it is UP the first
 * time, and again after each DOWN, it must also have said of itself what workers need (learn.h).
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

struct engine;
struct health;

/* From nothing: state STARTING, probed at once.  The endpoint has a slot. */
void health_start(struct engine *e);
/* Ends the probes; the endpoint's state word does not change. */
void health_stop(struct engine *e);
/* Its pool or the intervals have changed. */
void health_changed(struct engine *e);
/* Requests have met a sign of a restart: the engine is looked at now. */
void health_doubt(struct engine *e);
/* Another engine may stand there by now: all is learned anew before it is up again.  Returns false if the engine
 * is not up. */
bool health_learn_anew(struct engine *e);
/* What went wrong last, one English phrase; "" if nothing did, or the engine is up and answers again.  Health may be
 * stopped. */
const char *health_reason(const struct engine *e);
/* learn_refused(), or "".  Health may be stopped. */
const char *health_refused(const struct engine *e);
