/*
 * routing_threshold: auto.  Learns, from the time until the first token each way took, below which length of prompt a
 * request had better go straight to a decode engine.
 *
 * How: lengths fall into buckets of half an octave; all below the threshold go direct, all above through a prefill engine.
 * 1% of the requests each way go the other way, only such as lie next to the threshold, and no more than may lose 0.5% of the
 * time.  Every 50 requests the threshold moves by a step if that pays, what a request makes *others* wait included: measured
 * alone, a direct prompt looks cheap until the decode engines are full of them.  When they begin to queue it falls at
 * once, and rises slowly to where that was.  Knowledge halves every 4,000 requests, so a changed fleet is learned again.
 *
 * Process: worker; one for each pool, its own: nothing is shared.  No allocation, no clock.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define THRESHOLD_BUCKETS 32 /* below 16, then half octaves up to 2^19 tokens and beyond */

/* Ways of a request: [0] through a prefill engine, [1] direct. */
struct threshold {
	struct threshold_cell {
		float weight;   /* requests, faded */
		float mean_us;  /* until the first token */
		float quiet_us; /* what the fastest tenth take: no queue */
	} cell[2][THRESHOLD_BUCKETS];
	struct {
		/* of the latest requests: what they took beyond quiet_us, summed up */
		float n, wait_us;
		float queue_us; /* mean wait: [0] at the prefill engines, [1] at the decode engines */
		float square;   /* mean of quiet_us squared, over the requests of both ways */
		float credit;   /* requests that may try this way, */
		float spare_us; /* and what they may lose */
	} way[2];
	float n, quiet_us;    /* of the latest requests of both ways, summed up */
	uint32_t asked;       /* requests */
	uint32_t fell, moved; /* `asked` when it last fell for a queue; when it fell so or rose */
	/* positions, in eighths of a bucket */
	uint16_t at;       /* what lies below goes direct */
	uint16_t from, to; /* requests between them try the other way */
	uint16_t ceiling;  /* beyond it the threshold rises slowly */
	uint8_t falls;     /* since it last rose that high, at most a few */
	bool settled;      /* the first search is over */
};

/* All requests are disaggregated, nothing is known. */
void threshold_init(struct threshold *);

/*
 * True if a request of this estimate (worker/schedule/affinity.h) goes straight to a decode engine.  For requests whose first
 * token will be seen, hence streams; all others are held against threshold_now().  *rnd is the worker's random state,
 * never 0.
 */
bool threshold_direct(struct threshold *, uint32_t estimate, uint64_t *rnd);

/* A request's first token came, so long after it was routed.  Not for failures, and not for retries. */
void threshold_learn(struct threshold *, uint32_t estimate, bool direct, uint64_t ttft_us);

/* Estimates below it go direct; 0: none, UINT32_MAX: all.  Of those within the same half octave threshold_direct() sends as
 * many direct as lie below, but any of them, so that both ways are seen with the like. */
uint32_t threshold_now(const struct threshold *);
