#include "shm/exemplar.h"

#include <stdio.h>

#include "shm/base/hex.h"
#include "shm/core/atomic.h"
#include "shm/metrics.h"

/* Returns false if the histogram has no exemplars. */
static bool
kind_of(enum metric_histogram h, unsigned *ret)
{
	*ret = h == H_TTFT ? 0 : 1;
	return h == H_TTFT || h == H_DURATION;
}

static struct exemplar_words *
words_of(const struct seg *seg, uint32_t pool, unsigned kind, unsigned bucket)
{
	return &seg->exemplars[((size_t)pool * METRIC_EXEMPLARS + kind) * (METRIC_BUCKETS + 1) +
			       bucket];
}

/* Never that of words that are all 0. */
static uint64_t
checksum(const struct exemplar_words *w)
{
	const uint64_t word[] = {w->trace[0], w->trace[1], w->us, w->at_ms};
	uint64_t sum = UINT64_C(0xcbf29ce484222325);

	for (unsigned i = 0; i < 4; i++) {
		sum = (sum ^ word[i]) * UINT64_C(0x9e3779b97f4a7c15);
		sum ^= sum >> 29;
	}
	return sum;
}

void
exemplar_put(struct seg *seg, uint32_t pool, enum metric_histogram h, const struct exemplar *x)
{
	struct exemplar_words *to, from = {.us = x->us, .at_ms = x->at_ms};
	unsigned kind;

	if (pool == METRIC_NO_POOL || !kind_of(h, &kind) ||
		!hex_read(x->trace, 16, &from.trace[0]) ||
		!hex_read(x->trace + 16, 16, &from.trace[1]))
		return;
	to = words_of(seg, pool, kind, metric_bucket(x->us));
	(void)shm_xchg(&to->trace[0], from.trace[0]);
	(void)shm_xchg(&to->trace[1], from.trace[1]);
	(void)shm_xchg(&to->us, from.us);
	(void)shm_xchg(&to->at_ms, from.at_ms);
	(void)shm_xchg(&to->check, checksum(&from));
}

bool
exemplar_get(const struct seg *seg, uint32_t pool, enum metric_histogram h, unsigned bucket,
	struct exemplar *ret)
{
	const struct exemplar_words *from;
	struct exemplar_words w;
	unsigned kind;

	*ret = (struct exemplar){.trace = ""};
	if (!kind_of(h, &kind))
		return false;
	from = words_of(seg, pool, kind, bucket);
	w.trace[0] = shm_load(&from->trace[0]);
	w.trace[1] = shm_load(&from->trace[1]);
	w.us = shm_load(&from->us);
	w.at_ms = shm_load(&from->at_ms);
	if (shm_load(&from->check) != checksum(&w) || metric_bucket(w.us) != bucket)
		return false;
	(void)snprintf(ret->trace, sizeof(ret->trace), "%016llx%016llx",
		(unsigned long long)w.trace[0], (unsigned long long)w.trace[1]);
	ret->us = w.us;
	ret->at_ms = w.at_ms;
	return true;
}
