/* What a failure means: every combination of facts, held against rules that are written down once more here. */
#include "worker/attempt/failure.h"

#include <criterion/criterion.h>

static const int statuses[] = {400, 413, 429, 500, 501, 503};
#define NSTATUS (sizeof(statuses) / sizeof(statuses[0]))
#define NFLAGS 14 /* the booleans of struct failure */

/* Calls `fn` with every combination; returns how many there are. */
static unsigned
walk(void (*fn)(const struct failure *, const struct outcome *))
{
	unsigned n = 0;

	for (enum failure_leg leg = FAILED_PREFILL; leg <= FAILED_LOOKUP; leg++)
		for (enum failure_cause cause = 0; cause < CAUSE_N; cause++)
			for (size_t s = 0; s < (cause == CAUSE_STATUS ? NSTATUS : 1); s++)
				for (unsigned bits = 0; bits < 1u << NFLAGS; bits++, n++) {
					const struct failure f = {.leg = leg,
						.cause = cause,
						.status = cause == CAUSE_STATUS ? statuses[s] : 0,
						.hung_up = bits & 1,
						.speculative = bits >> 1 & 1,
						.stream_done = bits >> 2 & 1,
						.stream_error = bits >> 3 & 1,
						.not_missing = bits >> 4 & 1,
						.decode_waits = bits >> 5 & 1,
						.whole = bits >> 6 & 1,
						.excused = bits >> 7 & 1,
						.doubtful = bits >> 8 & 1,
						.refused = bits >> 9 & 1,
						.failed = bits >> 10 & 1,
						.trial = bits >> 11 & 1,
						.kv_suspect = bits >> 12 & 1,
						.only = bits >> 13 & 1};
					const struct outcome o = failure_outcome(&f);

					fn(&f, &o);
				}
	return n;
}

static bool
failing(const struct failure *f)
{
	return f->cause != CAUSE_STATUS || (f->status >= 500 && f->status != 501);
}

static bool
refusal(const struct failure *f)
{
	return f->cause == CAUSE_STATUS && f->status == 400;
}

/* A second engine fails what it was sent; an ejected one that fails again needs no second proof. */
static bool
second(const struct failure *f)
{
	return f->failed && !f->trial && f->leg != FAILED_LOOKUP && f->cause != CAUSE_CONNECT &&
	       f->cause != CAUSE_CONNECT_TIMEOUT;
}

static void
books(const struct failure *f, const struct outcome *o)
{
	const bool decode = f->leg == FAILED_DECODE;

	if (f->cause == CAUSE_SHORTAGE || f->cause == CAUSE_STALE || f->cause == CAUSE_OLD_KEYS)
		cr_assert_eq(o->fault, FAULT_UNKNOWN, "the engine was not asked");
	else if (f->cause == CAUSE_DOWN)
		cr_assert_eq(o->fault, FAULT_UNKNOWN, "the probes have said it");
	else if (refusal(f) && decode && f->speculative)
		cr_assert_eq(o->fault, FAULT_UNKNOWN, "what it was sent may be wrong");
	else if (refusal(f) && !f->only)
		cr_assert_eq(o->fault, FAULT_REFUSAL, "another engine's word decides");
	else if (!failing(f))
		cr_assert_eq(o->fault, FAULT_NONE, "its right");
	else if (f->hung_up || f->cause == CAUSE_TOO_LARGE)
		cr_assert_eq(o->fault, FAULT_UNKNOWN, "ours");
	else if (decode && f->stream_done && !f->stream_error)
		cr_assert_eq(o->fault, FAULT_NONE, "it had said all");
	else if (decode && f->speculative)
		cr_assert_eq(o->fault, FAULT_UNKNOWN, "it was sent what may be wrong");
	else if (f->leg == FAILED_PREFILL && f->cause == CAUSE_TIMEOUT && f->decode_waits)
		cr_assert_eq(o->fault, FAULT_BOTH, "either of the two may be at fault");
	else if (f->cause == CAUSE_TIMEOUT && f->excused)
		cr_assert_eq(o->fault, FAULT_UNKNOWN, "it answers others");
	else if (f->kv_suspect)
		cr_assert_eq(o->fault, FAULT_KV, "evidence decides");
	else if (second(f))
		cr_assert_eq(o->fault, FAULT_REQUEST, "two engines failed it");
	else
		cr_assert_eq(o->fault, FAULT_ENGINE);
}

static void
action(const struct failure *f, const struct outcome *o)
{
	const bool decode = f->leg == FAILED_DECODE;
	const bool again = f->status >= 500 || f->status == 429;

	if (f->not_missing)
		cr_assert_eq(o->action, ACTION_IGNORE);
	else if (decode && f->speculative && f->cause != CAUSE_DOWN)
		cr_assert_eq(o->action, ACTION_CORRECT);
	else if (decode && f->stream_done && f->cause != CAUSE_STATUS && f->cause != CAUSE_UNUSABLE)
		cr_assert_eq(o->action, ACTION_FINISH);
	else if (f->cause == CAUSE_SHORTAGE)
		cr_assert_eq(o->action, ACTION_REFUSE);
	else if (f->whole && f->cause == CAUSE_TIMEOUT)
		cr_assert_eq(o->action, ACTION_REFUSE, "nothing is generated twice");
	else if (refusal(f) && !again && f->doubtful && !f->refused && !f->only)
		cr_assert_eq(o->action, ACTION_ASK, "the first refusal that is in doubt");
	else if (f->cause == CAUSE_STATUS && !again)
		cr_assert_eq(o->action, ACTION_PASS_ON, "the client's own mistake");
	else
		cr_assert_eq(o->action, ACTION_OTHERS);
}

static void
rest(const struct failure *f, const struct outcome *o)
{
	cr_assert_eq(o->a_try, f->cause != CAUSE_STALE);
	if (f->leg == FAILED_LOOKUP)
		cr_assert_not(o->forget);
	cr_assert_eq(o->blame, BLAME_NONE, "that is not known from one failure");
	if (f->leg == FAILED_LOOKUP || f->cause == CAUSE_CONNECT ||
		f->cause == CAUSE_CONNECT_TIMEOUT)
		cr_assert_not(o->revocable, "the engine has not seen the request");
	else if (o->fault == FAULT_ENGINE || o->fault == FAULT_KV)
		cr_assert(o->revocable);
	if (o->fault == FAULT_ENGINE || o->fault == FAULT_BOTH || o->fault == FAULT_REQUEST ||
		o->fault == FAULT_KV)
		cr_assert_eq(
			o->forget, f->leg != FAILED_LOOKUP, "who is at fault may have a new life");
	if (f->cause == CAUSE_SHORTAGE || f->cause == CAUSE_STALE || f->cause == CAUSE_DOWN ||
		f->cause == CAUSE_OLD_KEYS || !failing(f))
		cr_assert_not(o->forget);
}

Test(failure, every_combination)
{
	const unsigned n = 3u * (CAUSE_N - 1 + NSTATUS) << NFLAGS;

	cr_assert_eq(walk(books), n);
	cr_assert_eq(walk(action), n);
	cr_assert_eq(walk(rest), n);
}

/* The rows that tests/PROMISES.md begins with, by hand. */
Test(failure, as_the_documents_say)
{
	static const struct {
		struct failure f;
		enum fault fault;
		enum failure_action action;
	} rows[] = {
		{{.leg = FAILED_PREFILL, .cause = CAUSE_CONNECT}, FAULT_ENGINE, ACTION_OTHERS},
		{{.leg = FAILED_PREFILL, .cause = CAUSE_STATUS, .status = 400}, FAULT_REFUSAL,
			ACTION_PASS_ON},
		{{.leg = FAILED_PREFILL, .cause = CAUSE_STATUS, .status = 401, .doubtful = true},
			FAULT_REFUSAL, ACTION_ASK},
		{{.leg = FAILED_DECODE, .cause = CAUSE_STATUS, .status = 404, .doubtful = true},
			FAULT_REFUSAL, ACTION_ASK},
		{{.leg = FAILED_DECODE,
			 .cause = CAUSE_STATUS,
			 .status = 404,
			 .doubtful = true,
			 .refused = true},
			FAULT_REFUSAL, ACTION_PASS_ON},
		{{.leg = FAILED_PREFILL, .cause = CAUSE_STALE}, FAULT_UNKNOWN, ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_STATUS, .status = 500, .failed = true},
			FAULT_REQUEST, ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_CONNECT, .failed = true}, FAULT_ENGINE,
			ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_STATUS, .status = 429}, FAULT_NONE,
			ACTION_OTHERS},
		{{.leg = FAILED_PREFILL, .cause = CAUSE_BROKEN, .not_missing = true}, FAULT_ENGINE,
			ACTION_IGNORE},
		{{.leg = FAILED_DECODE, .cause = CAUSE_BROKEN, .stream_done = true}, FAULT_NONE,
			ACTION_FINISH},
		{{.leg = FAILED_DECODE, .cause = CAUSE_TIMEOUT, .speculative = true}, FAULT_UNKNOWN,
			ACTION_CORRECT},
		{{.leg = FAILED_PREFILL, .cause = CAUSE_TIMEOUT, .decode_waits = true}, FAULT_BOTH,
			ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_STATUS, .status = 500, .kv_suspect = true},
			FAULT_KV, ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_SHORTAGE}, FAULT_UNKNOWN, ACTION_REFUSE},
		{{.leg = FAILED_DECODE, .cause = CAUSE_OLD_KEYS}, FAULT_UNKNOWN, ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_STALE}, FAULT_UNKNOWN, ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_TIMEOUT}, FAULT_ENGINE, ACTION_OTHERS},
		{{.leg = FAILED_DECODE, .cause = CAUSE_TIMEOUT, .whole = true}, FAULT_ENGINE,
			ACTION_REFUSE},
		{{.leg = FAILED_DECODE, .cause = CAUSE_TIMEOUT, .whole = true, .excused = true},
			FAULT_UNKNOWN, ACTION_REFUSE},
		{{.leg = FAILED_DECODE, .cause = CAUSE_BROKEN, .whole = true, .excused = true},
			FAULT_ENGINE, ACTION_OTHERS},
		{{.leg = FAILED_PREFILL, .cause = CAUSE_TIMEOUT, .excused = true}, FAULT_UNKNOWN,
			ACTION_OTHERS},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct outcome o = failure_outcome(&rows[i].f);

		cr_assert_eq(o.fault, rows[i].fault, "row %zu", i);
		cr_assert_eq(o.action, rows[i].action, "row %zu", i);
	}
}

/* A status decides by itself; every other cause has one name.  What is never recorded has none. */
Test(failure, the_tally_names_the_cause)
{
	for (enum failure_cause cause = 0; cause < CAUSE_N; cause++)
		cr_assert_eq(failure_tally(cause, 0) == TALLY_GOOD,
			cause == CAUSE_SHORTAGE || cause == CAUSE_STALE || cause == CAUSE_DOWN ||
				cause == CAUSE_OLD_KEYS,
			"cause %d", cause);
	cr_assert_eq(failure_tally(CAUSE_CONNECT, 0), TALLY_REFUSED);
	cr_assert_eq(failure_tally(CAUSE_CONNECT_TIMEOUT, 0), TALLY_TIMEOUT);
	cr_assert_eq(failure_tally(CAUSE_BROKEN, 200), TALLY_RESET);
	cr_assert_eq(failure_tally(CAUSE_UNUSABLE, 200), TALLY_BAD_ANSWER);
	cr_assert_eq(failure_tally(CAUSE_STATUS, 302), TALLY_BAD_ANSWER);
	cr_assert_eq(failure_tally(CAUSE_STATUS, 400), TALLY_4XX);
	cr_assert_eq(failure_tally(CAUSE_STATUS, 499), TALLY_4XX);
	cr_assert_eq(failure_tally(CAUSE_STATUS, 500), TALLY_5XX);
}
