/* Choice among the endpoints of one role: pure functions of the table and the endpoint words. */
#include <criterion/criterion.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shm/eject.h"
#include "shm/load.h"
#include "worker/schedule/policy.h"
#include "worker/schedule/select.h"

#define N 4
#define MAX 512
#define HELD 400 /* requests in flight where load is held */
#define ROUNDS 20000
#define KEYS 20000
#define NELEMS(v) (sizeof(v) / sizeof((v)[0]))

static struct seg *seg;
static struct table_pick picks[MAX];
static struct policy_view view;
static uint64_t rnd;

static void
setup(void)
{
	struct seg_sizes sizes = {
		.max_workers = 2, .max_endpoints = MAX, .max_pools = 1, .flags_per_worker = 64};
	char url[64];

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	memset(picks, 0, sizeof(picks));
	rnd = 4711;
	for (uint32_t i = 0; i < MAX; i++) {
		ep_slot_begin(seg, i);
		ep_state_set(seg, i, EP_UP);
		(void)snprintf(url, sizeof(url), "http://10.0.0.%u:8100", i);
		picks[i] = (struct table_pick){.endpoint = i,
			.slot = i,
			.tag = (uint32_t)ep_tag(seg, i),
			.hash = XXH3_64bits(url, strlen(url)),
			.weight = 1,
			.resolved = true};
	}
	view = (struct policy_view){.seg = seg,
		.picks = picks,
		.n = N,
		.max_weight = 1,
		.groups = UINT64_MAX,
		.model = TABLE_ANY_MODEL,
		.own = 1,
		.foreign_unit = 1,
		.tokens = 1,
		.unit_tokens = 1,
		.rnd = &rnd,
		.now_ms = 100000,
		.keyed = true,
		.foreign_max_age_ms = 3000};
}

static void
teardown(void)
{
	seg_free(&seg);
}

TestSuite(policy, .init = setup, .fini = teardown);

static void
set_weights(const uint32_t *w, uint32_t n)
{
	view.n = n;
	view.max_weight = 0;
	for (uint32_t i = 0; i < n; i++) {
		picks[i].weight = (uint8_t)w[i];
		view.max_weight = w[i] > view.max_weight ? w[i] : view.max_weight;
	}
}

/* --- what each policy is driven by: many keys, and for those that look at it a load that is held ---- */

/* The oldest request ends when there are HELD: a ring of slots. */
struct held {
	uint32_t slot[HELD];
	size_t n;
};

static int
choose(policy_fn *policy, uint64_t k)
{
	view.key = XXH3_64bits(&k, sizeof(k));
	return policy(&view);
}

static void
hold(struct held *h, uint32_t slot)
{
	if (h->n >= HELD)
		load_release(seg, 0, h->slot[h->n % HELD]);
	cr_assert(load_reserve(seg, 0, slot, 0));
	h->slot[h->n++ % HELD] = slot;
}

static void
release_held(struct held *h)
{
	for (size_t i = 0; i < (h->n < HELD ? h->n : HELD); i++)
		load_release(seg, 0, h->slot[i]);
}

/* count[i]: how often picks[i] was chosen of ROUNDS, after as many more that put the load in place. */
static void
count_choices(policy_fn *policy, uint32_t count[MAX])
{
	struct held h = {.n = 0};

	memset(count, 0, MAX * sizeof(*count));
	for (uint64_t k = 0; k < HELD + ROUNDS; k++) {
		int i = choose(policy, k);

		cr_assert(i >= 0 && (uint32_t)i < view.n);
		hold(&h, picks[i].slot);
		count[i] += k >= HELD;
	}
	release_held(&h);
}

/* Shares of all choices within `within` of those of the weights. */
static void
expect_shares(enum policy_kind kind, const double *want, double within)
{
	uint32_t count[MAX];
	double sum = 0;

	for (uint32_t i = 0; i < view.n; i++)
		sum += want[i];
	count_choices(policy_find(kind), count);
	for (uint32_t i = 0; i < view.n; i++)
		cr_expect(fabs((double)count[i] / ROUNDS - want[i] / sum) < within,
			"%s: endpoint %u of %u got %.3f, not %.3f", policy_name(kind), i, view.n,
			(double)count[i] / ROUNDS, want[i] / sum);
}

Test(policy, shares_follow_the_weights)
{
	static const uint32_t weights[][N] = {
		{1, 1, 1, 1},
		{7, 7, 7, 7},
		{1, 2, 4, 8},
		{9, 1, 1, 1},
		{1, 3, 1, 3},
		{100, 1, 50, 25},
	};

	for (size_t w = 0; w < NELEMS(weights); w++)
		for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
			double want[N];

			set_weights(weights[w], N);
			for (size_t i = 0; i < N; i++)
				want[i] = weights[w][i];
			view.cursor = 0;
			expect_shares(kind, want, 0.015);
		}
}

/* A pair of two drawn evenly would give the heavy one 2 of 33 at most.  With 6 requests in flight at each
 * of the light ones it is seen that the endpoint that carries least after the choice is taken, not before it.  Of the prefix policy
 * the heavy one gets more: the keys of light ones that are at their bound. */
Test(policy, a_heavy_one_among_many_light_ones_gets_its_share)
{
	uint32_t weights[33];
	double want[33];

	for (size_t i = 0; i < 33; i++)
		want[i] = weights[i] = i == 5 ? 32 : 1;
	set_weights(weights, 33);
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
		expect_shares(kind, want, kind == POLICY_PREFIX ? 0.06 : 0.04);
}

/* An endpoint whose engine is slow: shm/pace.h. */
Test(policy, a_slow_one_gets_the_part_of_its_weight_that_is_left)
{
	share_lower(seg, 2, SHARE_WHOLE / 4, false, 4 * 256);
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
		expect_shares(kind, (double[]){4, 4, 1, 4}, 0.015);
	share_restore(seg, 2);
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
		expect_shares(kind, (double[]){1, 1, 1, 1}, 0.015);
}

/* One request in flight elsewhere: the weight leaves it without any request, and one look in 64 does not. */
Test(policy, a_slow_one_without_requests_is_tried)
{
	for (int starved = 0; starved < 2; starved++) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < N && !starved; i++)
			cr_assert(i == 2 || load_reserve(seg, 0, i, 0));
		share_lower(seg, 2, SHARE_WHOLE / 10, starved, 10 * 256);
		for (uint64_t k = 0; k < ROUNDS; k++)
			n += choose(policy_least_loaded, k) == 2;
		cr_expect(starved ? n > ROUNDS / 128 && n < ROUNDS / 32 : n == 0, "%u", n);
	}
}

/* --- which may not be chosen ------------------------------------------------------------------------- */

enum { BASE, ADAPTER }; /* numbers of models */
static const uint64_t served = 1 << BASE | 1 << ADAPTER, unserved = 1 << BASE;

/* Ways to be no candidate; `i` is the endpoint, its slot and its pick. */
static void
bar(int how, uint32_t i)
{
	const enum ep_state states[] = {
		EP_EMPTY, EP_STARTING, EP_DOWN, EP_DRAINING, EP_MISCONFIGURED};

	switch (how) {
	case 0:
	case 1:
	case 2:
	case 3:
		ep_state_set(seg, i, states[how]);
		break;
	case 4:
		picks[i].tag++;
		break;
	case 5:
		picks[i].resolved = false;
		break;
	case 6:
		picks[i].group = 7;
		view.groups = ~(UINT64_C(1) << 7);
		break;
	case 7:
		picks[i].models = &unserved;
		view.model = ADAPTER;
		break;
	default:
		picks[i].max_inflight = 2;
		cr_assert(load_reserve(seg, 0, i, 2) && load_reserve(seg, 1, i, 2));
		cr_assert_not(load_reserve(seg, 0, i, 2));
		break;
	}
}
#define BARS 9

Test(policy, none_is_chosen_that_may_not_be)
{
	static const uint32_t weights[] = {1, 3, 2, 1};

	for (int how = 0; how < BARS; how++)
		for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
			uint32_t seen = 0;

			teardown();
			setup();
			set_weights(weights, N);
			bar(how, 1);
			for (uint64_t k = 0; k < 400; k++) {
				int i = choose(policy_find(kind), k);

				cr_assert(i >= 0 && i != 1, "%s, way %d: %d", policy_name(kind),
					how, i);
				seen |= 1u << i;
				cr_assert(load_reserve(seg, 0, (uint32_t)i, 0));
			}
			cr_assert_eq(seen, 0xd, "%s, way %d: %x", policy_name(kind), how, seen);
		}
}

Test(policy, none_is_chosen_where_none_can_be)
{
	for (int how = 0; how < BARS; how++) {
		teardown();
		setup();
		for (uint32_t i = 0; i < N; i++)
			bar(how, i);
		for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
			cr_assert_eq(choose(policy_find(kind), 1), -1, "%s, way %d",
				policy_name(kind), how);
	}
	view.n = 0;
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
		cr_assert_eq(choose(policy_find(kind), 1), -1);
}

/* One of 64: chance alone would often miss it. */
Test(policy, the_only_one_that_can_be_chosen_is)
{
	view.n = 64;
	for (uint32_t i = 0; i < view.n; i++)
		if (i != 41)
			bar((int)(i % BARS), i);
	view.model = ADAPTER;
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
		for (uint64_t k = 0; k < 200; k++)
			cr_assert_eq(choose(policy_find(kind), k), 41, "%s", policy_name(kind));
}

Test(policy, an_adapter_is_asked_of_those_who_have_it)
{
	for (uint32_t i = 0; i < N; i++) {
		picks[i].models = i == 2 ? &served : &unserved;
	}
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
		uint32_t seen = 0;

		view.model = ADAPTER;
		for (uint64_t k = 0; k < 200; k++)
			cr_assert_eq(choose(policy_find(kind), k), 2);
		for (uint64_t k = 0; k < 200; k++) {
			view.model =
				k < 100 ? BASE : TABLE_ANY_MODEL; /* all of them; nothing asked */
			seen |= 1u << choose(policy_find(kind), k);
			cr_assert(load_reserve(seg, 0, (uint32_t)(k % N), 0));
		}
		cr_expect_eq(seen, 0xf, "%s: %x", policy_name(kind), seen);
	}
}

/* --- slow start -------------------------------------------------------------------------------------- */

Test(policy, a_recovered_endpoint_rises_in_a_straight_line)
{
	static const uint32_t weights[] = {2, 2, 2, 2};

	set_weights(weights, N);
	view.slow_start_ms = 40000;
	for (int tenths = 1; tenths <= 12; tenths++)
		for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
			const double part = tenths < 10 ? tenths / 10.0 : 1;

			ep_state_recovered(seg, 1, view.now_ms - (uint64_t)tenths * 4000);
			expect_shares(kind, (double[]){1, part, 1, 1}, 0.015);
		}
}

Test(policy, right_after_its_recovery_it_is_hardly_chosen_but_can_be)
{
	view.slow_start_ms = 40000;
	/* the master's clock may be ahead of ours */
	for (int ahead = 0; ahead < 2; ahead++)
		for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
			uint32_t count[MAX];

			for (uint32_t i = 0; i < N; i++)
				ep_state_set(seg, i, EP_UP);
			ep_state_recovered(seg, 1, view.now_ms + (ahead ? 50 : 0));
			count_choices(policy_find(kind), count);
			cr_expect_lt(count[1], ROUNDS / 100, "%s: %u", policy_name(kind), count[1]);
			for (uint32_t i = 0; i < N; i++)
				if (i != 1)
					ep_state_set(seg, i, EP_DOWN);
			cr_expect_eq(choose(policy_find(kind), 3), 1);
		}
}

Test(policy, without_slow_start_a_recovered_endpoint_is_at_full_weight_at_once)
{
	for (uint64_t from = view.now_ms - 10; from <= view.now_ms + 10; from += 10) {
		ep_state_recovered(seg, 1, from);
		for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
			expect_shares(kind, (double[]){1, 1, 1, 1}, 0.015);
	}
}

/* --- ejection ---------------------------------------------------------------------------------------- */

/* Endpoint i is out until that moment. */
static void
eject_until(uint32_t i, uint64_t ms)
{
	seg->eps[i].eject = HALF_OPEN_OUT | ms;
}

Test(policy, an_ejected_endpoint_is_passed_by_until_it_is_due)
{
	eject_until(2, view.now_ms + 1);
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
		uint32_t count[MAX];

		count_choices(policy_find(kind), count);
		cr_expect_eq(count[2], 0, "%s", policy_name(kind));
	}
	eject_until(2, view.now_ms);
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
		expect_shares(kind, (double[]){1, 1, 1, 1}, 0.015);
}

Test(policy, one_that_is_back_rises_as_one_that_recovered)
{
	view.slow_start_ms = 40000;
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
		seg->eps[1].eject = view.now_ms - 20000; /* in, since then */
		expect_shares(kind, (double[]){1, 0.5, 1, 1}, 0.015);
	}
}

/* --- round robin ------------------------------------------------------------------------------------- */

Test(policy, round_robin_takes_each_in_turn_and_skips_what_is_down)
{
	const int want[] = {0, 1, 3};

	ep_state_set(seg, 2, EP_DOWN);
	for (int k = 0; k < 6; k++) {
		int i = policy_round_robin(&view);

		cr_assert_eq(i, want[k % 3], "round %d: %d", k, i);
	}
}

static void
expect_turns(const uint32_t want[3])
{
	uint32_t got[3] = {0};

	for (uint32_t k = 0; k < want[0] + want[1] + want[2]; k++)
		got[policy_round_robin(&view)]++;
	cr_assert_arr_eq(got, want, 3 * sizeof(*want), "%u:%u:%u, not %u:%u:%u", got[0], got[1],
		got[2], want[0], want[1], want[2]);
}

Test(policy, round_robin_by_weights_is_exact)
{
	set_weights((uint32_t[]){1, 2, 4}, 3);
	for (int k = 0; k < 100; k++) {
		view.cursor = 12 * (uint32_t)k;
		expect_turns((uint32_t[]){1, 2, 4});
	}
	ep_state_set(seg, 2, EP_DOWN);
	view.cursor = 0;
	for (int k = 0; k < 100; k++)
		expect_turns((uint32_t[]){1, 2, 0});
	ep_state_set(seg, 2, EP_UP);
	ep_state_set(seg, 1, EP_DOWN);
	view.cursor = 0;
	for (int k = 0; k < 100; k++)
		expect_turns((uint32_t[]){1, 0, 4});
}

/* Not in a row: 4 of weight 4 would be a burst. */
Test(policy, round_robin_spaces_the_turns_of_the_light_ones)
{
	int last = -1;

	set_weights((uint32_t[]){4, 2}, 2);
	for (int k = 0; k < 60; k++) {
		int i = policy_round_robin(&view);

		if (i == 1) {
			cr_assert(last == -1 || k - last == 3, "%d after %d", k, last);
			last = k;
		}
	}
}

Test(policy, round_robin_goes_on_behind_its_wrap)
{
	view.cursor = UINT32_MAX - 1;
	for (int k = 0; k < 8; k++)
		cr_assert_geq(policy_round_robin(&view), 0);
	set_weights((uint32_t[]){1, 2, 4}, 3);
	view.cursor = UINT32_MAX - 1;
	for (int k = 0; k < 50; k++)
		cr_assert_geq(policy_round_robin(&view), 0);
}

Test(policy, rounds_that_begin_elsewhere_begin_with_others)
{
	uint32_t first = 0;

	for (uint32_t worker = 0; worker < N; worker++) {
		view.cursor = worker;
		first |= 1u << policy_round_robin(&view);
	}
	cr_assert_eq(first, 0xf);
	for (uint32_t worker = 0; worker < N; worker++) {
		view.cursor = worker;
		first ^= 1u << policy_least_loaded(&view);
	}
	cr_assert_eq(first, 0, "idle: each worker begins with another");
}

/* --- least loaded ------------------------------------------------------------------------------------ */

Test(policy, least_loaded_counts_all_workers)
{
	for (uint32_t i = 0; i < N; i++)
		if (i != 2)
			cr_assert(load_reserve(seg, i % 2, i, 0));
	cr_assert_eq(policy_least_loaded(&view), 2);
}

Test(policy, least_loaded_breaks_ties_by_the_cursor)
{
	view.cursor = 3;
	cr_assert_eq(policy_least_loaded(&view), 3);
	view.cursor = 5;
	cr_assert_eq(policy_least_loaded(&view), 1);
}

Test(policy, ties_go_round)
{
	const int want[] = {0, 1, 3};

	cr_assert(load_reserve(seg, 0, 2, 0));
	for (int k = 0; k < 9; k++)
		cr_assert_eq(policy_least_loaded(&view), want[k % 3]);
}

/* Each of `n` endpoints has so many requests. */
static void
load_all(uint32_t n, int requests)
{
	view.n = n;
	for (uint32_t i = 0; i < n; i++)
		for (int k = 0; k < requests; k++)
			cr_assert(load_reserve(seg, 0, i, 0));
}

static int
least_loaded_from(uint32_t cursor)
{
	view.cursor = cursor;
	return policy_least_loaded(&view);
}

/* A choice among 512 endpoints looks at 256 in a row. */
Test(policy, of_many_the_lightest_of_a_row_is_chosen)
{
	load_all(MAX, 3);
	load_release(seg, 0, 300);
	cr_assert_eq(least_loaded_from(45), 300);
	cr_assert_eq(least_loaded_from(44), 44);
	cr_assert_eq(least_loaded_from(400), 400, "beyond the end the row goes on at the start");
	load_release(seg, 0, 50);
	cr_assert_eq(least_loaded_from(400), 50);
}

Test(policy, while_the_lightest_is_hardly_loaded_all_are_looked_at)
{
	load_all(MAX, 1);
	load_release(seg, 0, 300);
	cr_assert_eq(least_loaded_from(301), 300);
}

Test(policy, those_that_may_not_be_chosen_do_not_count_as_looked_at)
{
	load_all(MAX, 3);
	load_release(seg, 0, 400);
	for (uint32_t i = 100; i < 350; i++)
		ep_state_set(seg, i, EP_DOWN);
	cr_assert_eq(least_loaded_from(100), 400);
	for (uint32_t i = 0; i < MAX; i++)
		picks[i].resolved = i % 250 == 10; /* three, one of them down */
	load_release(seg, 0, 10);
	cr_assert_eq(least_loaded_from(200), 10);
	view.holder = picks[500 - 240].hash;
	cr_assert_eq(least_loaded_from(0), -1, "the one that it must be is down");
	ep_state_set(seg, 260, EP_UP);
	cr_assert_eq(least_loaded_from(261), 260);
}

Test(policy, among_many_one_of_great_weight_is_always_looked_at)
{
	load_all(MAX, 3);
	view.max_weight = 200;
	picks[400].weight = 200;
	cr_assert_eq(least_loaded_from(0), 400);
}

Test(policy, ties_of_many_go_round)
{
	view.n = MAX;
	for (int k = 0; k < 2 * MAX; k++)
		cr_assert_eq(policy_least_loaded(&view), k % MAX);
	load_all(MAX, 3);
	for (int k = 0; k < 2 * MAX; k++)
		cr_assert_eq(policy_least_loaded(&view), k % MAX);
}

Test(policy, foreign_load_counts_while_it_is_fresh)
{
	load_foreign_set(seg, 0, 7, view.now_ms - 1000);
	cr_assert_eq(policy_least_loaded(&view), 1);
	view.cursor = 0;
	view.now_ms += 3000; /* four seconds old: as if it had not been reported */
	cr_assert_eq(policy_least_loaded(&view), 0);
}

Test(policy, a_long_prompt_is_not_a_short_one)
{
	view.n = 2;
	view.load = LOAD_TOKENS;
	view.own = 10;
	view.foreign_unit = 10;
	/* one prompt of 100,000 tokens here, 50 of 10 there */
	cr_assert(load_reserve(seg, 0, 0, 0));
	cr_assert_eq(load_tokens_add(seg, 0, 0, 100000), 100000);
	for (int k = 0; k < 50; k++) {
		cr_assert(load_reserve(seg, 1, 1, 0));
		cr_assert_eq(load_tokens_add(seg, 1, 1, 10), 10);
	}
	for (uint32_t k = 0; k < 20; k++) {
		view.cursor = k;
		cr_assert_eq(policy_least_loaded(&view), 1);
		cr_assert_eq(policy_power_of_two(&view), 1);
	}
	view.load = LOAD_REQUESTS;
	view.own = view.foreign_unit = 1;
	for (uint32_t k = 0; k < 20; k++) {
		view.cursor = k;
		cr_assert_eq(policy_least_loaded(&view), 0);
		cr_assert_eq(policy_power_of_two(&view), 0);
	}
}

Test(policy, a_request_of_another_router_is_a_mean_prompt)
{
	view.n = 2;
	view.load = LOAD_TOKENS;
	view.own = 500;
	load_foreign_set(seg, 0, 3, view.now_ms);
	cr_assert_eq(load_tokens_add(seg, 0, 1, 2000), 2000);
	for (uint32_t k = 0; k < 4; k++) {
		view.cursor = k;
		view.foreign_unit = 600; /* 1800 < 2000 */
		cr_assert_eq(policy_least_loaded(&view), 0);
		view.foreign_unit = 700; /* 2100 > 2000 */
		cr_assert_eq(policy_least_loaded(&view), 1);
	}
}

/* Two endpoints that carry nearly all that the words can say. */
Test(policy, the_largest_loads_compare_as_they_should)
{
	static const uint32_t weights[][2] = {{100, 100}, {1, 100}, {100, 1}, {99, 100}};
	const uint32_t prompt = 1u << 24; /* PROMPT_TOKENS_MAX */

	view.load = LOAD_TOKENS;
	view.own = view.foreign_unit = prompt;
	load_foreign_set(seg, 0, EP_FOREIGN_MAX, view.now_ms);
	load_foreign_set(seg, 1, EP_FOREIGN_MAX - 1, view.now_ms);
	for (uint32_t ep = 0; ep < 2; ep++)
		while (load_tokens(seg, ep) <= UINT32_MAX - prompt)
			cr_assert_eq(load_tokens_add(seg, 0, ep, prompt), prompt);
	for (size_t w = 0; w < NELEMS(weights); w++) {
		struct candidate a, b;

		set_weights(weights[w], 2);
		cr_assert(policy_look(&view, 0, &a) && policy_look(&view, 1, &b));
		cr_assert_gt(a.load, b.load);
		cr_assert_eq(policy_lighter(&a, &b), (unsigned __int128)a.load * b.weight <
							     (unsigned __int128)b.load * a.weight);
		cr_assert_eq(policy_lighter(&b, &a), (unsigned __int128)b.load * a.weight <
							     (unsigned __int128)a.load * b.weight);
		cr_assert_eq(policy_least_loaded(&view), weights[w][0] > weights[w][1] ? 0 : 1);
		cr_assert_geq(choose(policy_prefix, 1), 0);
	}
}

/* --- session: rendezvous ----------------------------------------------------------------------------- */

static int before[KEYS];

static void
remember(policy_fn *policy)
{
	for (uint64_t k = 0; k < KEYS; k++)
		before[k] = choose(policy, k);
}

Test(policy, one_key_one_endpoint)
{
	remember(policy_session);
	for (uint32_t i = 0; i < N; i++)
		cr_assert_eq(load_tokens_add(seg, 0, i, i * 1000), i * 1000);
	for (uint64_t k = 0; k < KEYS; k++) {
		cr_assert_eq(choose(policy_session, k), before[k]);
		if (k % 10 == 0) /* whatever the load */
			cr_assert(load_reserve(seg, 0, 2, 0));
	}
}

Test(policy, one_endpoint_more_moves_only_its_share_of_the_keys)
{
	const uint32_t sizes[] = {1, 2, 3, 7, 15, 63};

	for (size_t s = 0; s < NELEMS(sizes); s++) {
		uint32_t moved = 0;

		view.n = sizes[s];
		remember(policy_session);
		view.n = sizes[s] + 1;
		for (uint64_t k = 0; k < KEYS; k++) {
			int i = choose(policy_session, k);

			cr_assert(i == before[k] || i == (int)sizes[s], "key moved among the old");
			moved += i != before[k];
		}
		cr_expect(fabs((double)moved / KEYS - 1.0 / (sizes[s] + 1)) < 0.012,
			"%u endpoints and one: %u of %d moved", sizes[s], moved, KEYS);
	}
}

Test(policy, a_lost_endpoint_moves_only_its_own_keys_and_gets_them_back)
{
	uint32_t to[MAX] = {0};

	view.n = 10;
	remember(policy_session);
	ep_state_set(seg, 3, EP_DOWN);
	for (uint64_t k = 0; k < KEYS; k++) {
		int i = choose(policy_session, k);

		cr_assert_neq(i, 3);
		cr_assert(before[k] == 3 || i == before[k]);
		to[i] += before[k] == 3;
	}
	for (uint32_t i = 0; i < view.n;
		i++) /* a ninth of its 2,000 each: not all to one neighbour */
		cr_expect(i == 3 || (to[i] > 150 && to[i] < 300), "%u to %u", to[i], i);
	ep_state_set(seg, 3, EP_UP);
	for (uint64_t k = 0; k < KEYS; k++)
		cr_assert_eq(choose(policy_session, k), before[k]);
}

Test(policy, a_changed_weight_moves_keys_to_it_or_from_it_alone)
{
	for (uint32_t weight = 1; weight <= 4; weight += 3) {
		uint32_t moved = 0;

		set_weights((uint32_t[]){2, 2, 2, 2}, N);
		remember(policy_session);
		set_weights((uint32_t[]){2, weight, 2, 2}, N);
		for (uint64_t k = 0; k < KEYS; k++) {
			int i = choose(policy_session, k);

			cr_assert(i == before[k] || (weight > 2 ? i : before[k]) == 1);
			moved += i != before[k];
		}
		/* 2/8 of all become 1/7 or 4/10 */
		cr_expect(fabs((double)moved / KEYS - fabs(weight / (6.0 + weight) - 0.25)) < 0.012,
			"weight %u: %u", weight, moved);
	}
}

/* In another table, process or router: the URL decides, not where the endpoint stands. */
Test(policy, the_choice_does_not_hang_on_order_slots_or_worker)
{
	for (int weighted = 0; weighted < 2; weighted++) {
		struct table_pick old[N];

		if (weighted)
			set_weights((uint32_t[]){1, 5, 2, 3}, N);
		remember(policy_session);
		memcpy(old, picks, sizeof(old));
		for (uint32_t i = 0; i < N; i++) {
			picks[i] = old[N - 1 - i];
			picks[i].endpoint = i;
			picks[i].slot = 20 + i;
		}
		view.cursor = 17;
		rnd = 1;
		for (uint64_t k = 0; k < KEYS; k++)
			cr_assert_eq(choose(policy_session, k), N - 1 - before[k]);
		memcpy(picks, old, sizeof(old));
	}
}

Test(policy, a_full_endpoint_gives_its_keys_to_the_next_in_rank)
{
	view.key = 12345;
	for (uint32_t full = 0; full < N; full++) {
		int i = policy_session(&view), next;

		cr_assert_geq(i, 0);
		picks[i].max_inflight = 1;
		cr_assert(load_reserve(seg, 0, (uint32_t)i, 1));
		next = policy_session(&view);
		cr_assert(next != i);
		load_release(seg, 0, (uint32_t)i);
		cr_assert_eq(policy_session(&view), i, "it returns");
		cr_assert(load_reserve(seg, 0, (uint32_t)i, 1));
	}
	cr_assert_eq(policy_session(&view), -1);
}

Test(policy, who_has_no_key_goes_where_the_load_is_least)
{
	view.keyed = false;
	for (uint32_t i = 0; i < N; i++)
		if (i != 2)
			cr_assert(load_reserve(seg, 0, i, 0));
	for (uint64_t k = 0; k < 10; k++) {
		cr_assert_eq(choose(policy_session, k), 2);
		cr_assert_eq(choose(policy_prefix, k), 2);
	}
}

/* --- prefix: bounded load ---------------------------------------------------------------------------- */

Test(policy, equal_prefixes_go_together_while_it_is_idle)
{
	remember(policy_session);
	for (uint64_t k = 0; k < KEYS; k++)
		cr_assert_eq(choose(policy_prefix, k), before[k]);
}

/* All prompts begin alike.  Loads are of one size here, so "at most 1.25 times the share" is exact. */
static void
expect_bound(const uint32_t *weights, uint32_t n)
{
	uint64_t load[MAX] = {0}, total = 0, sum = 0;

	set_weights(weights, n);
	for (uint32_t i = 0; i < n; i++)
		sum += weights[i];
	view.key = 99;
	for (int k = 0; k < 4000; k++) {
		int i = policy_prefix(&view);
		const double most = 1.25 * (double)(total + 1) * weights[i] / (double)sum;

		cr_assert((double)load[i] <= most, "endpoint %d has %llu of %llu, more than %.1f",
			i, (unsigned long long)load[i], (unsigned long long)total, most);
		cr_assert(load_reserve(seg, 0, (uint32_t)i, 0));
		load[i]++;
		total++;
	}
	/* and not less than it might: the first in rank carries all it may */
	cr_expect(load[before[0]] > 1.24 * 4000 * weights[before[0]] / (double)sum, "%llu",
		(unsigned long long)load[before[0]]);
}

Test(policy, no_endpoint_gets_more_than_its_bound)
{
	view.key = 99;
	before[0] = policy_session(&view);
	expect_bound((uint32_t[]){1, 1, 1, 1}, N);
}

Test(policy, the_bound_follows_the_weights)
{
	set_weights((uint32_t[]){1, 4, 2, 3}, N);
	view.key = 99;
	before[0] = policy_session(&view);
	expect_bound((uint32_t[]){1, 4, 2, 3}, N);
}

Test(policy, the_share_is_of_those_who_can_take_it)
{
	uint32_t first;

	view.key = 99;
	first = (uint32_t)policy_prefix(&view);
	/* alone with 1,000 requests: no other endpoint can take any */
	for (uint32_t i = 0; i < N; i++)
		if (i != first)
			ep_state_set(seg, i, EP_DOWN);
	for (int k = 0; k < 1000; k++) {
		cr_assert_eq(policy_prefix(&view), (int)first);
		cr_assert(load_reserve(seg, 0, first, 0));
	}
	/* an idle one comes back: it is below its share, the other far above */
	ep_state_set(seg, (first + 1) % N, EP_UP);
	cr_assert_eq(policy_prefix(&view), (int)((first + 1) % N));
}

/* A sample of so many would miss them. */
Test(policy, three_of_five_hundred_keep_prefixes_together_and_bounded)
{
	uint32_t load[3] = {0};

	view.n = 500;
	for (uint32_t i = 0; i < view.n; i++)
		picks[i].group = i >= 201 && i <= 203 ? 5 : 0;
	view.groups = 1u << 5;
	remember(policy_session);
	for (uint64_t k = 0; k < 2000; k++)
		cr_assert_eq(choose(policy_prefix, k), before[k]);
	for (uint32_t k = 0; k < 900; k++) {
		int i = choose(policy_prefix, 7);

		cr_assert(load_reserve(seg, 0, (uint32_t)i, 0));
		load[i - 201]++;
		cr_assert_leq(load[i - 201], 1.25 * (k + 1) / 3 + 1);
	}
}

Test(policy, a_sample_bounds_hundreds_well_enough)
{
	uint32_t most = 0;

	view.n = 500;
	for (uint32_t k = 0; k < 20 * 500; k++) {
		int i = choose(policy_prefix, k % 40); /* 40 hot prompts for 500 endpoints */

		cr_assert(load_reserve(seg, 0, (uint32_t)i, 0));
		most = load_count(seg, (uint32_t)i) > most ? load_count(seg, (uint32_t)i) : most;
	}
	cr_expect_leq(most, 40, "%u where 20 is the mean", most);
}

Test(policy, the_bound_counts_tokens_where_load_does)
{
	uint32_t first;

	view.load = LOAD_TOKENS;
	view.own = 10;
	view.key = 99;
	first = (uint32_t)policy_prefix(&view);
	cr_assert_eq(load_tokens_add(seg, 0, first, 100000), 100000);
	cr_assert_neq(policy_prefix(&view), (int)first);
	view.load = LOAD_REQUESTS;
	view.own = 1;
	cr_assert_eq(policy_prefix(&view), (int)first, "no request is in flight there");
}

/* --- chance ------------------------------------------------------------------------------------------ */

Test(policy, power_of_two_never_takes_the_heavier_of_two)
{
	view.n = 2;
	for (int k = 0; k < 200; k++) {
		int i = policy_power_of_two(&view);

		cr_assert(load_count(seg, (uint32_t)i) <= load_count(seg, 1 - (uint32_t)i));
		cr_assert(load_reserve(seg, 0, (uint32_t)i, 0));
	}
}

Test(policy, power_of_two_does_not_follow_one_figure)
{
	uint32_t count[MAX] = {0};

	view.n = 8;
	for (uint32_t i = 0; i < 8; i++)
		if (i != 3)
			cr_assert(load_reserve(seg, 0, i, 0));
	for (int k = 0; k < ROUNDS; k++)
		count[policy_power_of_two(&view)]++;
	/* it is in 2 of 8 draws; least_loaded would take it each time */
	cr_expect(fabs((double)count[3] / ROUNDS - 0.25) < 0.02, "%u", count[3]);
}

Test(policy, random_numbers_are_below_their_bound_and_reach_it)
{
	uint64_t seen = 0;

	for (int k = 0; k < 10000; k++) {
		const uint32_t r = policy_rnd_below(&view, 37);

		cr_assert_lt(r, 37);
		seen |= UINT64_C(1) << r;
	}
	cr_assert_eq(seen, (UINT64_C(1) << 37) - 1);
	cr_assert_eq(policy_rnd_below(&view, 1), 0);
}

/* --- cache_aware ------------------------------------------------------------------------------------- */

#define PROMPT 1000u

static struct prefix_key cuts;
static struct prefix_found *found;

/* The policy's prompt of 8 cuts and PROMPT tokens; picks[i] has the first have[i] of its cuts. */
static void
know(const uint32_t have[N])
{
	cuts = (struct prefix_key){.n = 8, .size = 8 * PREFIX_STEP};
	for (uint32_t i = 0; i < cuts.n; i++)
		cuts.end[i] = (i + 1) * PREFIX_STEP;
	free(found);
	found = prefix_found_new(MAX);
	found->key = &cuts;
	found->tokens = PROMPT;
	found->part = ((uint64_t)PROMPT << PREFIX_PART_BITS) / cuts.size;
	found->round = 1;
	for (uint32_t i = 0; i < N; i++)
		if (have[i] > 0)
			found->of[i] = (struct prefix_hit){.round = 1, .cuts = have[i]};
	view.found = found;
	view.tokens = PROMPT;
	view.own = PROMPT;
	view.load = LOAD_TOKENS;
}

static void
burden(uint32_t slot, uint32_t tokens)
{
	cr_assert(load_reserve(seg, 0, slot, 0));
	cr_assert_eq(load_tokens_add(seg, 0, slot, tokens), tokens);
}

Test(policy, the_engine_that_has_the_longest_beginning_is_chosen)
{
	know((uint32_t[N]){0, 3, 8, 5});
	for (int k = 0; k < 10; k++)
		cr_assert_eq(policy_cache_aware(&view), 2);
	know((uint32_t[N]){0, 0, 0, 1});
	for (int k = 0; k < 10; k++)
		cr_assert_eq(policy_cache_aware(&view), 3);
	free(found);
}

/* 500 tokens of the prompt are at engine 1: so many may be in front of it.  Half of the running request is done. */
Test(policy, cache_yields_to_load_when_waiting_costs_more_than_computing)
{
	know((uint32_t[N]){0, 4, 0, 0});
	burden(1, 998);
	cr_expect_eq(policy_cache_aware(&view), 1);
	cr_assert_eq(load_tokens_add(seg, 0, 1, 4), 4);
	cr_expect_neq(policy_cache_aware(&view), 1);
	for (uint32_t i = 0; i < N; i++)
		burden(i, 100);
	cr_expect_neq(policy_cache_aware(&view), 1, "3/4 of 1,102 + 500 is more than 50 + 1,000");
	load_tokens_sub(seg, 0, 1, 402);
	cr_expect_eq(policy_cache_aware(&view), 1, "only the difference counts: 3/4 of 700");
	free(found);
}

/* What three engines have costs the fourth a third: else it would idle until the others have long queues. */
Test(policy, an_engine_that_lacks_what_all_others_have_gets_its_share)
{
	know((uint32_t[N]){0, 4, 4, 4});
	for (uint32_t i = 1; i < N; i++)
		burden(i, 300);
	cr_expect_neq(policy_cache_aware(&view), 0, "150 is less than 500 / 3");
	for (uint32_t i = 1; i < N; i++)
		cr_assert_eq(load_tokens_add(seg, 0, i, 100), 100);
	cr_expect_eq(policy_cache_aware(&view), 0, "200 is more");
	know((uint32_t[N]){0, 4, 0, 0});
	cr_expect_eq(policy_cache_aware(&view), 1, "what one has alone keeps its price");
	free(found);
}

/* Two routers with one fleet find what the other one has sent. */
Test(policy, what_no_engine_has_goes_home_where_there_are_other_routers)
{
	char prompt[8 * PREFIX_STEP] = {0};
	uint32_t at[N] = {0};

	know((uint32_t[N]){1, 1, 0, 0});
	cuts.part[1] = prompt;
	view.others = POLICY_ALL_OTHERS / 2;
	for (prompt[PREFIX_STEP] = 0; prompt[PREFIX_STEP] < 64; prompt[PREFIX_STEP]++)
		for (uint32_t from = 0; from < N; from++) {
			view.cursor = from;
			at[policy_cache_aware(&view)]++;
		}
	for (uint32_t i = 0; i < N; i++) {
		cr_expect_gt(at[i], 20, "%u", at[i]);
		cr_expect_eq(at[i] % N, 0, "wherever a round is");
	}
	view.others = 0;
	view.cursor = 0;
	cr_expect_eq(policy_cache_aware(&view), 0);
	cr_expect_eq(policy_cache_aware(&view), 1, "in turn");
	free(found);
}

Test(policy, a_home_is_left_for_load_and_for_the_one_that_has_more)
{
	char prompt[8 * PREFIX_STEP] = {0};
	int home;

	know((uint32_t[N]){0});
	cuts.part[1] = prompt;
	view.others = POLICY_ALL_OTHERS / 2;
	home = policy_cache_aware(&view);
	burden((uint32_t)home, PROMPT / 4 - 1);
	cr_expect_eq(
		policy_cache_aware(&view), home, "a half of the half of 1,000 is expected there");
	cr_assert_eq(load_tokens_add(seg, 0, (uint32_t)home, 2), 2);
	cr_expect_neq(policy_cache_aware(&view), home);
	load_tokens_sub(seg, 0, (uint32_t)home, PROMPT / 4 + 1);
	know((uint32_t[N]){[1] = 4});
	for (prompt[4 * PREFIX_STEP] = 0; prompt[4 * PREFIX_STEP] < 16; prompt[4 * PREFIX_STEP]++)
		cr_assert_eq(policy_cache_aware(&view), 1, "the rest of a conversation");
	free(found);
}

Test(policy, an_engine_of_twice_the_weight_computes_twice_as_fast)
{
	know((uint32_t[N]){4, 0, 0, 0});
	set_weights((uint32_t[]){1, 2, 1, 1}, N);
	burden(0, 10);
	cr_expect_eq(policy_cache_aware(&view), 1, "1,000 / 2 is less than 500 + 10");
	load_tokens_sub(seg, 0, 0, 10);
	burden(1, 10);
	cr_expect_eq(policy_cache_aware(&view), 0);
	free(found);
}

/* What an engine did not keep to counts for less. */
Test(policy, a_beginning_that_was_not_there_so_far_counts_for_less)
{
	const struct prefix_guess g = {.prompt = 1000, .hit = 1000, .expected = 1000};

	know((uint32_t[N]){8, 7, 0, 0});
	cr_expect_eq(policy_cache_aware(&view), 0);
	for (int k = 0; k < 200; k++)
		prefix_record(seg, 0, &g, 100, 1000);
	cr_expect_eq(policy_cache_aware(&view), 1);
	free(found);
}

/* With nothing cached it chooses as least_loaded does, in turn among equals too. */
Test(policy, with_nothing_cached_it_is_least_loaded)
{
	uint32_t cursor = 0;

	know((uint32_t[N]){0, 0, 0, 0});
	for (int k = 0; k < 200; k++) {
		int a, b;

		view.cursor = cursor;
		view.found = k % 2 == 0 ? found : NULL;
		a = policy_least_loaded(&view);
		view.cursor = cursor;
		b = policy_cache_aware(&view);
		cr_assert_eq(a, b);
		cursor = view.cursor;
		if (k % 3 > 0)
			burden((uint32_t)b, 1 + (uint32_t)k * 7919 % 300);
	}
	free(found);
}

/* A load in requests: each counts as a mean prompt. */
Test(policy, a_load_in_requests_is_weighed_in_mean_prompts)
{
	know((uint32_t[N]){4, 0, 0, 0});
	view.load = LOAD_REQUESTS;
	view.own = 1;
	view.unit_tokens = 300;
	cr_assert(load_reserve(seg, 0, 0, 0));
	cr_assert(load_reserve(seg, 0, 0, 0));
	cr_expect_eq(policy_cache_aware(&view), 0, "3/4 of 600, and 500, is less than 1,000");
	cr_assert(load_reserve(seg, 0, 0, 0));
	cr_expect_neq(policy_cache_aware(&view), 0);
	view.unit_tokens = UINT32_MAX; /* no product overflows */
	view.max_weight = 100;
	cr_expect_neq(policy_cache_aware(&view), 0);
	free(found);
}

/* --- between two looks ------------------------------------------------------------------------------- */

static atomic_bool over;

/* The heaviest comes and goes; the others get more and less to do, as other workers would have it. */
static void *
meanwhile(void *unused)
{
	for (uint32_t k = 0; !atomic_load(&over); k++) {
		ep_state_set(seg, 0, k % 2 == 0 ? EP_DOWN : EP_UP);
		for (uint32_t i = 1; i < N; i++)
			if (k % 2 == 0)
				(void)load_tokens_add(seg, 1, i, 100000);
			else
				load_tokens_sub(seg, 1, i, 100000);
	}
	return unused;
}

Test(policy, one_is_chosen_whatever_others_do_meanwhile)
{
	pthread_t other;

	set_weights((uint32_t[]){100, 1, 1, 1}, N);
	view.load = LOAD_TOKENS;
	atomic_store(&over, false);
	cr_assert_eq(pthread_create(&other, NULL, meanwhile, NULL), 0);
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++)
		for (uint64_t k = 0; k < 100000; k++)
			cr_assert_geq(choose(policy_find(kind), k), 0, "%s", policy_name(kind));
	atomic_store(&over, true);
	cr_assert_eq(pthread_join(other, NULL), 0);
}

/* Who explains a choice shows the figures that decided it. */
Test(policy, the_costs_of_cache_aware_decide)
{
	for (uint32_t round = 0; round < 500; round++) {
		uint32_t have[N];
		double costs[N];
		int chosen;

		for (uint32_t i = 0; i < N; i++) {
			have[i] = policy_rnd_below(&view, 9);
			seg->eps[i].tokens = (uint64_t)policy_rnd_below(&view, 3000) << 32;
			seg->eps[i].count = (uint64_t)policy_rnd_below(&view, 4) << 32;
			picks[i].weight = (uint8_t)(1 + policy_rnd_below(&view, 3));
			ep_state_set(seg, i, policy_rnd_below(&view, 8) == 0 ? EP_DOWN : EP_UP);
		}
		know(have);
		chosen = policy_cache_aware(&view);
		policy_cache_aware_costs(&view, costs);
		for (uint32_t i = 0; i < N; i++) {
			cr_expect_eq(isfinite(costs[i]) != 0,
				ep_view(seg, i, view.now_ms, 0).state == EP_UP, "%u", i);
			cr_expect(chosen < 0 || costs[chosen] <= costs[i], "%u: %d, not %u", round,
				chosen, i);
		}
	}
	free(found);
}
