/*
 * Where engines publish KV events, as the notifier is told (shm/kv_events.h).
 *
 * Process: master.
 */
#pragma once

struct fleet;

/* After a publication: the endpoints of the current table, and no others, have a source if they are configured with one. */
void kv_sources_publish(const struct fleet *f);
