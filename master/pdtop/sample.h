/*
 * What pdtop shows: engines, totals and requests in flight, from the answers of pdrouter to `status json` and to
 * `requests json within=MS`.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAMPLE_MS 10000 /* of requests that have ended: their times and tokens count */

/* Milliseconds, of requests that have ended. */
struct times {
	uint32_t *ms;
	size_t n, room;
	uint32_t p50, p99;
};

struct engine_row {
	char *pool, *role, *url, *state;
	uint64_t in_flight, max_inflight; /* 0: no limit */
	uint64_t failures, ejections;
	/* as the engine counts for all its clients: of prompts at a prefill engine, of answers at a
	 * decode engine.  Else, of a decode engine, those of requests that have ended */
	double tokens_s;
	bool counts_tokens;  /* the engine counts */
	struct times firsts; /* to the first byte */
	struct times
		gaps; /* of a decode engine: the mean between two tokens of a streamed answer */
};

struct request_row {
	char *id, *state, *model, *prefill, *decode;
	uint64_t total_ms;
};

struct sample {
	struct engine_row *engines;
	size_t nengines;
	struct request_row *requests; /* in flight, the oldest first */
	size_t nrequests;
	char *version, *state;
	uint64_t uptime_s, in_flight, waiting, queue_size;
	double requests_s, tokens_s; /* tokens of all decode engines */
	uint64_t failed; /* requests that have ended with a status of 400 or more, or without one */
	struct times firsts, gaps;
};

/* Returns 0 and the caller owns *ret (sample_free), or -1: these are not the answers. */
int sample_parse(const char *status, const char *requests, struct sample *ret);
void sample_free(struct sample *s);

enum sample_sort {
	SORT_POOL,
	SORT_IN_FLIGHT,
	SORT_TOKENS,
	SORT_FIRST,
	SORT_GAP,
	SORT_EJECTIONS,
	SORT_FAILURES,
	SORT_N
};
const char *sample_sort_word(enum sample_sort by);
void sample_sort(struct sample *s, enum sample_sort by);
/* Whether a part of the row's pool, role, URL or state is `text`; "": all. */
bool sample_matches(const struct engine_row *r, const char *text);
