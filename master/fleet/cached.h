/*
 * What the prefix index (shm/prefix.h) is worth: its use, and what each engine had in its cache of what was expected.
 *
 * Process: master.
 */
#pragma once

struct evbuffer;
struct fleet;

/* Appends a line for the index, and one for each engine that policy cache_aware chooses. */
void fleet_cached(struct fleet *f, struct evbuffer *out);
