/*
 * Where engines publish KV events, and which addresses send notices, as the notifier is told (shm/kv_events.h).
 *
 * Process: master.
 */
#pragma once

struct fleet;

/* After a publication: the endpoints of the current table, and no others, have a source if they are configured with one.
 * Those of LMCache pools are senders, also while they are being removed. */
void kv_sources_publish(const struct fleet *f);
