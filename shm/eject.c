/*
 * Ejection.  Every change is one CAS of one word, so a process may die anywhere and leaves the word
 * consistent.  Invariants over two words are checked after the CAS, and by the master.
 *
 * A trial is identified by the whole word that its worker wrote.  While the endpoint is out, only
 * the end of the trial changes that word, and the next trial has a later end.  So a worker that was
 * stopped for longer than its trial lasts finds another word, and its compare-and-swap fails.
 */
#include "shm/eject.h"

#include "shm/table.h"
#include "shm/window.h"

/* eject.h draws the word. */
#define FAILURES_AT 48
#define FAILURES_MAX 255u
#define LEVEL_AT 56
#define LEVEL_MAX 31u

#define ANSWERS_LEAST 20u /* in the window, for a rate of failures */

static uint32_t
failures_of(uint64_t word)
{
	return (uint32_t)(word >> FAILURES_AT & FAILURES_MAX);
}

static uint32_t
level_of(uint64_t word)
{
	return (uint32_t)(word >> LEVEL_AT & LEVEL_MAX);
}

/* `flags`: HALF_OPEN_OUT, EJECT_REACHED. */
static uint64_t
make(uint64_t flags, uint32_t level, uint32_t failures, uint64_t ms)
{
	const uint64_t own =
		flags | (uint64_t)level << LEVEL_AT | (uint64_t)failures << FAILURES_AT;

	return half_open_make(own, 0, ms);
}

static uint64_t *
word_of(const struct seg *seg, uint32_t ep)
{
	return &seg->eps[ep].eject;
}

/* --- looking ------------------------------------------------------------------------------ */

enum eject_state
eject_read(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint64_t *ret_left_ms)
{
	const uint64_t word = shm_load(word_of(seg, ep));

	*ret_left_ms = 0;
	if (!half_open_out(word))
		return EJECT_IN;
	if (!half_open_shut(word, now_ms))
		return EJECT_DUE;
	*ret_left_ms = half_open_ms(word) - now_ms;
	return half_open_worker(word) != 0 ? EJECT_TRIED : EJECT_EJECTED;
}

const char *
eject_state_name(enum eject_state s)
{
	static const char *const names[] = {
		[EJECT_IN] = "in",
		[EJECT_EJECTED] = "ejected",
		[EJECT_DUE] = "due",
		[EJECT_TRIED] = "tried",
	};

	return names[s];
}

uint64_t
eject_count(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->eps[ep].ejections);
}

/* --- the rate ----------------------------------------------------------------------------- */

static uint64_t *
answers_of(const struct seg *seg, uint32_t ep)
{
	return seg->eps[ep].answers;
}

static bool
too_many_of_all(const struct seg *seg, uint32_t ep, uint64_t now_ms, uint32_t percent)
{
	const struct window_sum sum = window_read(answers_of(seg, ep), now_ms);

	return percent != 0 && sum.bad + sum.good >= ANSWERS_LEAST &&
	       sum.bad * 100 >= percent * (sum.bad + sum.good);
}

/* --- how many may be out ------------------------------------------------------------------ */

static bool
enabled(const struct conf_ejection *conf)
{
	return conf->failures != 0 || conf->rate != 0 || conf->slow != 0;
}

/* One of the configured endpoints always stays. */
static uint32_t
most_out(const struct table_pool *tp, enum role role)
{
	const uint32_t n = tp->n[role];
	const uint32_t most = (uint32_t)((uint64_t)n * tp->ejection.max_percent / 100);

	if (!enabled(&tp->ejection))
		return 0;
	return most < n ? most : n - 1;
}

/* Of the endpoints of a role. */
struct outs {
	uint32_t out;     /* ejected or not up: they serve no request */
	uint32_t ejected; /* of those, up: they serve once they are brought back */
	uint32_t
		/* of those, not ejected for refused connections alone: they may be back any time */
		reached;
};

static struct outs
count_out(const struct seg *seg, const struct table_pool *tp, enum role role)
{
	struct outs n = {0};

	for (uint32_t i = 0; i < tp->n[role]; i++) {
		const uint32_t ep = tp->picks[role][i].slot;
		const uint64_t word = shm_load(&seg->eps[ep].eject);
		const bool up = ep_word_state(shm_load(&seg->ep_records[ep].state)) == EP_UP;
		const bool out = half_open_out(word);

		n.out += !up || out;
		n.ejected += up && out;
		n.reached += up && out && (word & EJECT_REACHED) != 0;
	}
	return n;
}

/*
 * Whether `more` endpoints may be ejected.  An endpoint that refuses connections serves no request,
 * like one that is down.  It is ejected beyond max_percent if another endpoint serves or can be
 * brought back.
 */
static bool
room_for(const struct seg *seg, const struct table_pool *tp, enum role role, uint32_t more,
	bool refused)
{
	const struct outs n = count_out(seg, tp, role);

	return n.out + more <= most_out(tp, role) ||
	       (refused && n.out - n.reached + more < tp->n[role]);
}

/* --- in and out --------------------------------------------------------------------------- */

static uint64_t
time_of(const struct conf_ejection *conf, uint32_t level)
{
	const uint64_t ms = conf->time_ms << level; /* at most an hour, 31 times doubled */

	return ms < conf->max_ms ? ms : conf->max_ms;
}

/* An endpoint that was back for a shorter time than it had been out has not recovered. */
static uint32_t
next_level(uint64_t word, uint64_t now_ms, const struct conf_ejection *conf)
{
	const uint64_t back_ms = eject_word_back_ms(word);
	const uint32_t level = level_of(word);

	if (back_ms == 0 || now_ms >= back_ms + time_of(conf, level))
		return 0;
	return level < LEVEL_MAX ? level + 1 : level;
}

static void
count_ejection(struct seg *seg, uint32_t ep)
{
	uint64_t *n = &seg->eps[ep].ejections, seen = shm_load(n), old;

	do {
		old = seen;
		seen = shm_cas(n, old, old + 1);
	} while (seen != old);
}

/*
 * Ejects the endpoint, counts how many of its role are out, and takes the ejection back if they are
 * too many.  If two workers do this at the same time, the later one sees both ejections.  Perhaps
 * neither stays; the next failure tries again.
 */
static uint64_t
put_out(struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep, bool refused,
	uint64_t now_ms)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old, out, ms;

	if (!room_for(seg, tp, role, 1, refused))
		return 0;
	do {
		const uint32_t level = next_level(seen, now_ms, &tp->ejection);

		if (half_open_out(seen) || (refused && (seen & EJECT_REACHED) != 0))
			return 0;
		old = seen;
		ms = time_of(&tp->ejection, level);
		out = make(HALF_OPEN_OUT | (refused ? 0 : EJECT_REACHED), level, failures_of(old),
			now_ms + ms);
		seen = shm_cas(word, old, out);
	} while (seen != old);
	/* The CAS, a full barrier, before the other words.  Pairs with itself in another worker, and with
	 * eject_bring_back()'s barrier. */
	if (!room_for(seg, tp, role, 0, refused)) {
		(void)shm_cas(word, out, old);
		return 0;
	}
	count_ejection(seg, ep);
	return ms;
}

/* One more failure in a row.  Returns the word with it. */
static uint64_t
failures_add(struct seg *seg, uint32_t ep, bool reached)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old, new;

	do {
		if (half_open_out(seen))
			return seen;
		old = new = seen;
		if (failures_of(old) < FAILURES_MAX)
			new += UINT64_C(1) << FAILURES_AT;
		if (reached)
			new |= EJECT_REACHED;
		seen = new == old ? old : shm_cas(word, old, new);
	} while (seen != old);
	return new;
}

void
eject_good_answer(struct seg *seg, uint32_t ep, uint64_t now_ms, const struct conf_ejection *conf)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old;

	if (conf->rate != 0)
		window_add(answers_of(seg, ep), now_ms, false);
	while (!half_open_out(seen) && failures_of(seen) > 0) {
		old = seen;
		seen = shm_cas(word, old, make(0, level_of(old), 0, half_open_ms(old)));
		if (seen == old)
			break;
	}
}

uint64_t
eject_bad_answer(struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep,
	bool reached, uint64_t now_ms)
{
	const struct conf_ejection *conf = &tp->ejection;
	uint64_t word;

	if (!enabled(conf))
		return 0;
	if (conf->rate != 0)
		window_add(answers_of(seg, ep), now_ms, true);
	word = failures_add(seg, ep, reached);
	if (half_open_out(word) || ep_word_state(shm_load(&seg->ep_records[ep].state)) != EP_UP)
		return 0;
	if ((conf->failures == 0 || failures_of(word) < conf->failures) &&
		!too_many_of_all(seg, ep, now_ms, conf->rate))
		return 0;
	/* Decided by the word with this failure in it: a good answer in between clears the flag
	 * of the next one. */
	return put_out(seg, tp, role, ep, (word & EJECT_REACHED) == 0, now_ms);
}

uint64_t
eject_at_once(
	struct seg *seg, const struct table_pool *tp, enum role role, uint32_t ep, uint64_t now_ms)
{
	if (ep_word_state(shm_load(&seg->ep_records[ep].state)) != EP_UP)
		return 0;
	return put_out(seg, tp, role, ep, false, now_ms);
}

/* The word without one of its failures; the same word if that failure makes no difference any more. */
static uint64_t
one_less(uint64_t word, const struct conf_ejection *conf)
{
	const uint32_t failures = failures_of(word);

	if (failures == 0 || half_open_worker(word) != 0)
		return word;
	if (half_open_out(word) && failures == conf->failures)
		word = make(
			word & EJECT_REACHED, 0, failures, 0); /* as if it had not been ejected */
	word -= UINT64_C(1) << FAILURES_AT;
	return half_open_out(word) || failures > 1 ? word : word & ~EJECT_REACHED;
}

bool
eject_take_back(struct seg *seg, uint32_t ep, uint64_t now_ms, const struct conf_ejection *conf)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old, new;

	if (conf->rate != 0)
		window_take_back(answers_of(seg, ep), now_ms);
	do {
		old = seen;
		new = one_less(old, conf);
		seen = new == old ? old : shm_cas(word, old, new);
	} while (seen != old);
	return half_open_out(old) && !half_open_out(new);
}

/* --- trials ------------------------------------------------------------------------------- */

bool
eject_try(struct seg *seg, uint32_t me, uint32_t ep, uint64_t now_ms, uint64_t most_ms,
	uint64_t *ret_trial)
{
	return half_open_try(word_of(seg, ep), me, now_ms, most_ms, ret_trial);
}

bool
eject_trial_good(struct seg *seg, uint32_t ep, uint64_t trial, uint64_t now_ms)
{
	/* Its former answers first: a worker that sees the endpoint back must not find them.
	 * Both are full barriers. */
	if (shm_load(word_of(seg, ep)) == trial)
		window_forget(answers_of(seg, ep));
	return shm_cas(word_of(seg, ep), trial, make(0, level_of(trial), 0, now_ms)) == trial;
}

uint64_t
eject_trial_bad(struct seg *seg, uint32_t ep, uint64_t trial, bool reached, uint64_t now_ms,
	const struct conf_ejection *conf)
{
	const uint32_t level = level_of(trial) < LEVEL_MAX ? level_of(trial) + 1 : LEVEL_MAX;
	const uint64_t ms = time_of(conf, level);
	const uint64_t flags =
		HALF_OPEN_OUT | (trial & EJECT_REACHED) | (reached ? EJECT_REACHED : 0);
	const uint32_t failures = failures_of(trial);
	const uint64_t out =
		make(flags, level, failures < FAILURES_MAX ? failures + 1 : failures, now_ms + ms);

	if (shm_cas(word_of(seg, ep), trial, out) != trial)
		return 0;
	count_ejection(seg, ep);
	return ms;
}

bool
eject_trial_none(struct seg *seg, uint32_t ep, uint64_t trial)
{
	return half_open_none(word_of(seg, ep), trial);
}

/* --- the master's ------------------------------------------------------------------------- */

bool
eject_clear(struct seg *seg, uint32_t ep, bool refused, uint64_t now_ms)
{
	uint64_t *word = word_of(seg, ep), seen = shm_load(word), old;

	do {
		if (!half_open_out(seen) || (refused && (seen & EJECT_REACHED) != 0))
			return false;
		window_forget(answers_of(seg, ep));
		old = seen;
		seen = shm_cas(word, old, make(0, level_of(old), 0, now_ms));
	} while (seen != old);
	return true;
}

/* The endpoint whose time ends first, or -1.  `reached`: only endpoints with failures other than
 * refused connections. */
static int
nearest(const struct seg *seg, const struct table_pool *tp, enum role role, bool reached)
{
	uint64_t least = UINT64_MAX;
	int found = -1;

	for (uint32_t i = 0; i < tp->n[role]; i++) {
		const uint32_t ep = tp->picks[role][i].slot;
		const uint64_t word = shm_load(&seg->eps[ep].eject);

		if (ep_word_state(shm_load(&seg->ep_records[ep].state)) != EP_UP ||
			!half_open_out(word) || half_open_ms(word) >= least ||
			(reached && (word & EJECT_REACHED) == 0))
			continue;
		least = half_open_ms(word);
		found = (int)i;
	}
	return found;
}

int
eject_bring_back(struct seg *seg, const struct table_pool *tp, enum role role, uint64_t now_ms)
{
	struct outs n;
	int found;

	/* States and table before the words.  Pairs with put_out()'s CAS. */
	shm_mb();
	n = count_out(seg, tp, role);
	if (n.out <= most_out(tp, role) || n.ejected == 0)
		return -1;
	found = nearest(seg, tp, role, true);
	/* An endpoint that refuses connections helps only where no other is left, or where
	 * ejection is off. */
	if (found < 0 && (n.out == tp->n[role] || !enabled(&tp->ejection)))
		found = nearest(seg, tp, role, false);
	if (found >= 0)
		(void)eject_clear(seg, tp->picks[role][found].slot, false, now_ms);
	return found;
}

void
eject_begin(struct seg *seg, uint32_t ep)
{
	struct ep_word *e = &seg->eps[ep];

	(void)shm_xchg(&e->eject, 0);
	(void)shm_xchg(&e->ejections, 0);
	window_forget(answers_of(seg, ep));
}
