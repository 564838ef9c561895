/*
 * Fallbacks: requests that a decode engine serves alone because no prefill engine can.  A pool's budget says how many
 * prompt tokens that may be (shm/fallback.h).  `routing_threshold` and other reasons to use no prefill engine cost
 * nothing: these requests are part of what the decode engines were made for.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdint.h>

#include "worker/schedule/select.h"

struct table_pool;
struct worker;

/* The time until the pool's budget has room, in milliseconds, rounded up; 0: now. */
uint64_t fallback_wait_ms(const struct worker *w, const struct table_pool *tp);
/* The request is sent to a decode engine alone.  `decode`: what the engine was selected by. */
void fallback_goes(const struct worker *w, const struct selection *decode);
