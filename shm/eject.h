/*
 * Ejection: an endpoint whose requests fail is left alone for a while, by all workers, and then tried by
 * exactly one request of theirs.  One word per endpoint, in the line that a selection reads anyway:
 *
 *	ejected:1 | reached:1 | .:1 | level:5 | failures:8 | trial's worker+1:8 | ms:40
 *
 *	in        ms: since when it is back, 0: it never was out; failures in a row so far
 *	ejected   ms: until when; then it is due.  With a worker: the trial is on, and has until then
 *
 *	in --failures--> ejected --ms has passed--> due --eject_try--> trial --good--> in
 *	                    ^                        ^                 | |
 *	                    |                        '--no outcome, ---' |
 *	                    |                           reaped, too late |
 *	                    '--bad: twice as long------------------------'
 *
 * While it is out nothing but its trial, the master and eject_clear() change the word: what requests that
 * were under way before tell of it does not count.
 *
 * Process: workers; the last functions are the master's.  Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/base/conf.h"
#include "shm/core/seg.h"
#include "shm/half_open.h"

struct table_pool;

#define EJECT_REACHED (UINT64_C(1) << 62) /* not all of its failures were refused connections */

/* Since when it is back; 0: it never was out, or is. */
static inline uint64_t
eject_word_back_ms(uint64_t word)
{
	return half_open_out(word) ? 0 : half_open_ms(word);
}

/* Most never are: a look of its own, that their selections cost nothing more. */
static inline bool
eject_is_out(const struct seg *seg, uint32_t ep)
{
	return half_open_out(shm_load(&seg->eps[ep].eject));
}

enum eject_state { EJECT_IN, EJECT_EJECTED, EJECT_DUE, EJECT_TRIED };
/* For who wants to know; *ret_left_ms: until it is due, or the most its trial still has. */
enum eject_state eject_read(
	const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t *ret_left_ms);
const char *eject_state_name(enum eject_state s);
/* How often it was ejected since its slot began this life. */
uint64_t eject_count(const struct seg *seg, uint32_t ep);

/* --- workers */

/*
 * For a reservation of worker `me` at `ep`: may it go there?  Mostly *ret_trial is 0 and it may.  If the
 * endpoint is due, one of all who ask gets the trial: then *ret_trial is not 0, and must come to exactly
 * one of eject_trial_good(), _bad() and _none(), or it is over by itself after most_ms.
 */
bool eject_try(struct seg *seg, uint32_t me, uint32_t ep, uint64_t now_ms, uint64_t most_ms,
	uint64_t *ret_trial);
/* It is back.  False: the trial was over already, for it took too long or a probe was faster. */
bool eject_trial_good(struct seg *seg, uint32_t ep, uint64_t trial, uint64_t now_ms);
/* Ejected again, for twice the time.  Returns for how long, in ms; 0: the trial was over already. */
uint64_t eject_trial_bad(struct seg *seg, uint32_t ep, uint64_t trial, bool reached,
	uint64_t now_ms, const struct conf_ejection *conf);
/* Nothing was learned: it is due again.  False: the trial was over already. */
bool eject_trial_none(struct seg *seg, uint32_t ep, uint64_t trial);

/* An answer that was no trial's: the engine did its part. */
void eject_good_answer(
	struct seg *seg, uint32_t ep, uint64_t now_ms, const struct conf_ejection *conf);
/*
 * ... or it failed; `reached`: not by a refused connection.  Ejects it if that was one too many and
 * max_percent allows: of the `role` of `tp`, a pool of a table that the caller may read (its read section).
 * Returns for how long, in ms; 0: it is not ejected by this call.
 */
uint64_t eject_bad_answer(struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep,
	bool reached, uint64_t now_ms);

/* --- master */

/* It is back, by other evidence than a trial; `refused`: only if nothing but refused connections had it
 * ejected.  False: it was not out, or not for that. */
bool eject_clear(struct seg *seg, uint32_t ep, bool refused, uint64_t now_ms);
/*
 * Where more are out than may be (some went down, a reload allows less, a worker died between ejecting and
 * counting): brings the one back that is nearest to its time.  Its index among the role's picks, or -1:
 * there are not too many.  Once no reader holds an older table this is exact: call it until it says -1.
 */
int eject_bring_back(struct seg *seg, const struct table_pool *tp, enum role role, uint64_t now_ms);
/* Its slot begins a new life. */
void eject_begin(struct seg *seg, uint32_t ep);

/* --- check.c */

#define EJECT_NEVER (UINT64_C(1) << 61) /* a bit that is never set */
