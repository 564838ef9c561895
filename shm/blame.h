/*
 * Blame: which engine is at fault when a decode engine reports that the KV of a prefill engine could not be used.  The
 * report mostly does not show it (vLLM says 500 "Internal server error"), so evidence decides: what either engine has
 * done with others.  An engine that fails with several partners is at fault; one that fails with a single partner is not.
 *
 * One word per endpoint, in its tally:
 *
 *	failures in a row:8 | their partners, a bit for each:16 | ms:40
 *
 *	ms                 when KV that passed through the engine was last used well, to BLAME_STEP_MS; 0: never
 *	failures, partners since then
 *
 * Every change is one compare-and-swap, so a process may die anywhere and leaves the word consistent.  A success clears
 * failures and partners.
 *
 * Process: workers; blame_begin() is the master's.  Times are clock_ms().
 */
#pragma once
#include <stdint.h>

struct seg;

/* A success shows for this long that the engine works with some partner. */
#define BLAME_GOOD_MS 10000u
#define BLAME_STEP_MS 500u
/* So many failures in a row with one partner are not that pair's alone: the engine works with no other. */
#define BLAME_ROW 8u

/* What is known of an engine when it fails. */
enum standing {
	STANDING_UNKNOWN, /* its first such request for some time */
	STANDING_GOOD,    /* its last such request went well, lately */
	STANDING_SUSPECT, /* good lately, and since then it has failed with one partner */
	STANDING_FAILING, /* it fails with several partners, or with one for longer */
	STANDING_N
};

struct evidence {
	enum standing standing;
	uint32_t
		partners; /* distinct partners of its failures in a row, the present one included */
};

enum blame {
	BLAME_NONE, /* no KV is involved */
	BLAME_PREFILL,
	BLAME_DECODE,
	BLAME_NEITHER, /* both work with others, as far as is known */
	BLAME_N
};

/* The KV of a request was used well; or the engine has served a request alone. */
void blame_good(struct seg *seg, uint32_t ep, uint64_t now_ms);
/* Counts a failure with that partner.  Returns what is known of the endpoint. */
struct evidence blame_failed(struct seg *seg, uint32_t ep, uint32_t partner, uint64_t now_ms);
/* Returns who is at fault. */
enum blame blame_decide(const struct evidence *prefill, const struct evidence *decode);

/* "prefill", "decode", "neither": for log and metrics. */
const char *blame_name(enum blame blame);

/* Master: the endpoint or its engine begins a new life. */
void blame_begin(struct seg *seg, uint32_t ep);
