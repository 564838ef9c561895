/*
 * Ejection: all workers avoid an endpoint whose requests fail, for some time.  Then exactly one request of all
 * workers tries the endpoint.  One word per endpoint, in the line that a selection reads anyway:
 *
 *	ejected:1 | reached:1 | .:1 | level:5 | failures:8 | trial's worker+1:8 | ms:40
 *
 *	in        ms: since when it is back, 0: it never was ejected; failures in a row so far
 *	ejected   ms: until when; then the trial is due.  With a worker: the trial runs, until then
 *
 *	in --failures--> ejected --ms has passed--> due --eject_try--> trial --good--> in
 *	                    ^                        ^                 | |
 *	                    |                        '--no outcome, ---' |
 *	                    |                           reaped, too late |
 *	                    '--bad: twice as long------------------------'
 *
 * While the endpoint is out, only its trial, eject_clear(), eject_take_back() and the master change the word.
 * Outcomes of requests that were sent before the ejection do not count.
 *
 * Process: workers; the functions under "master" are the master's.  half_open_reap() ends the trials of a dead
 * worker.  Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/core/atomic.h"
#include "shm/base/conf.h"
#include "shm/core/seg.h"
#include "shm/half_open.h"

struct table_pool;

/* set unless all of its failures were refused connections */
#define EJECT_REACHED (UINT64_C(1) << 62)

/* Since when the endpoint is back; 0: it never was ejected, or is now. */
static inline uint64_t
eject_word_back_ms(uint64_t word)
{
	return half_open_out(word) ? 0 : half_open_ms(word);
}

/* Most endpoints are not: a read of its own, so that their selections cost nothing more. */
static inline bool
eject_is_out(const struct seg *seg, uint32_t ep)
{
	return half_open_out(shm_load(&seg->eps[ep].eject));
}

enum eject_state { EJECT_IN, EJECT_EJECTED, EJECT_DUE, EJECT_TRIED };
/* For status pages; *ret_left_ms: until the trial is due, or until the running trial expires. */
enum eject_state eject_read(
	const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t *ret_left_ms);
const char *eject_state_name(enum eject_state s);
/* Number of its ejections since its slot began this life. */
uint64_t eject_count(const struct seg *seg, uint32_t ep);

/* --- workers */

/*
 * For a reservation of worker `me` at `ep`: may the request go there?  Mostly yes, with *ret_trial
 * 0.  If the trial is due, one of all requests gets it: then *ret_trial is not 0, and the caller
 * passes it to exactly one of eject_trial_good(), _bad() and _none().  Otherwise the trial expires
 * after most_ms.
 */
bool eject_try(struct seg *seg, uint32_t me, uint32_t ep, uint64_t now_ms, uint64_t most_ms,
	uint64_t *ret_trial);
/* The endpoint is back.  False: the trial was over already, because it expired or a probe was
 * faster. */
bool eject_trial_good(struct seg *seg, uint32_t ep, uint64_t trial, uint64_t now_ms);
/* Ejected again, for twice the time.  Returns for how long, in ms; 0: the trial was over already. */
uint64_t eject_trial_bad(struct seg *seg, uint32_t ep, uint64_t trial, bool reached,
	uint64_t now_ms, const struct conf_ejection *conf);
/* The trial ended without an outcome: the next one is due.  False: the trial was over already. */
bool eject_trial_none(struct seg *seg, uint32_t ep, uint64_t trial);

/* A request that was no trial succeeded. */
void eject_good_answer(
	struct seg *seg, uint32_t ep, uint64_t now_ms, const struct conf_ejection *conf);
/*
 * ... or it failed; `reached`: not by a refused connection.  Ejects the endpoint if it failed too
 * often and max_percent allows.  `role` of `tp`: the pool's table that the caller may read (its
 * read section).  Returns for how long the endpoint is ejected, in ms; 0: this call does not eject
 * it.
 */
uint64_t eject_bad_answer(struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep,
	bool reached, uint64_t now_ms);
/* Its failures are so many more than those of others that they need not be in a row, and the caller has
 * reported the last one; or its engine is slow.  Returns the same. */
uint64_t eject_at_once(
	struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep, uint64_t now_ms);
/* A failure that was reported was not the endpoint's.  Returns true if the endpoint is back: it would
 * not have been ejected without that failure. */
bool eject_take_back(
	struct seg *seg, uint32_t ep, uint64_t now_ms, const struct conf_ejection *conf);

/* --- master */

/* The endpoint is back without a trial.  `refused`: only if all its failures were refused
 * connections.  False: it was not ejected, or not for that reason. */
bool eject_clear(struct seg *seg, uint32_t ep, bool refused, uint64_t now_ms);
/*
 * If more endpoints are out than allowed (some went down, a reload allows fewer, a worker died
 * between ejecting and counting): brings back the endpoint whose time ends first.  Returns its
 * index among the role's picks, or -1 if not too many are out.  The result is exact once no reader
 * holds an older table; call it until it returns -1.
 */
int eject_bring_back(struct seg *seg, const struct table_pool *tp, enum role role, uint64_t now_ms);
/* Its slot begins a new life. */
void eject_begin(struct seg *seg, uint32_t ep);

/* --- check.c */

#define EJECT_NEVER (UINT64_C(1) << 61) /* a bit that is never set */
