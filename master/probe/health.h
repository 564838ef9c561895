/*
 * Is an endpoint up: probes with rise and fall counts, and its addresses.  Before it is UP the first
 * time, and again after each DOWN, it must also have said of itself what workers need (learn.h).
 *
 * Process: master.
 */
#pragma once

struct engine;
struct health;

/* From nothing: state STARTING, probed at once.  The endpoint has a slot. */
void health_start(struct engine *e);
/* Ends the probes; the endpoint's state word does not change. */
void health_stop(struct engine *e);
/* Its pool or the intervals have changed. */
void health_changed(struct engine *e);
/* What went wrong last, one English phrase; "" if nothing did.  Health may be stopped. */
const char *health_reason(const struct engine *e);
