/*
 * Why no endpoint could be chosen: all that could serve are full, or there is none.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "worker/base/end_list.h"
#include "worker/schedule/select.h"

struct shortage {
	uint32_t roles; /* bit per role that was full; 0: no endpoint was looked at */
	/* END_FALLBACK_BUDGET: when the budget has room again (clock_ms); roles: 0 if a prefill endpoint is up again */
	uint64_t again_ms;
	bool hopeless;      /* the request needs more slots at once than there are */
	const char *detail; /* static text for the log and the error body, or NULL */
};

/* Of a request with `n` branches whose one endpoint per branch could not be chosen.  Returns END_NO_CAPACITY, and
 * fills `ret`, if endpoints that could serve are full; else END_NO_PREFILL or END_NO_DECODE. */
enum req_end shortage_of_one(struct shortage *ret, const struct selection *s, uint32_t n);
/* The same of a request that needs both endpoints in each branch. */
enum req_end shortage_of_both(struct shortage *ret, const struct selection s[ROLE_N], uint32_t n);
/* Before anything is reserved: END_OK unless less than `n` slots of both roles are free where endpoints could serve. */
enum req_end shortage_now(struct shortage *ret, const struct selection s[ROLE_N], uint32_t n);
