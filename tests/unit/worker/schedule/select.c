/* One selection: what is reserved, what is left alone, and the answer when no endpoint can be chosen. */
#include "worker/schedule/select.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/eject.h"
#include "shm/load.h"
#include "shm/table.h"
#include "worker/schedule/policy.h"

#define N 4
#define WORKERS 8
#define TURNS 60000 /* of each worker */

static struct seg *seg;
static struct table_endpoint eps[N];
static struct table_pick picks[N];
static struct table table = {.nendpoints = N, .endpoints = eps};
static struct table_pool pool;
static struct selection s;
static uint32_t cursor;
static uint64_t rnd;

static void
setup(void)
{
	struct seg_sizes sizes = {.max_workers = WORKERS / 2,
		.max_endpoints = N,
		.max_pools = 1,
		.flags_per_worker = 64};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	for (uint32_t i = 0; i < N; i++) {
		ep_slot_begin(seg, i);
		ep_state_set(seg, i, EP_UP);
		picks[i] = (struct table_pick){.endpoint = i,
			.slot = i,
			.tag = (uint32_t)ep_tag(seg, i),
			.max_inflight = 1,
			.group = (uint8_t)(i % 2),
			.weight = 1,
			.resolved = true};
	}
	pool = (struct table_pool){.policy = {POLICY_ROUND_ROBIN, POLICY_ROUND_ROBIN},
		.load = {LOAD_TOKENS, LOAD_REQUESTS},
		.n = {0, N},
		.picks = {NULL, picks},
		.max_weight = {1, 1}};
	cursor = 0;
	rnd = 1;
	s = (struct selection){.seg = seg,
		.slot = 1,
		.table = &table,
		.pool = &pool,
		.role = ROLE_DECODE,
		.model = TABLE_ANY_MODEL,
		.groups = SELECT_ALL_GROUPS,
		.tokens = 70,
		.mean_tokens = 70,
		.now_ms = 10000,
		.foreign_max_age_ms = 3000,
		.cursor = &cursor,
		.rnd = &rnd};
}

static void
teardown(void)
{
	seg_free(&seg);
}

TestSuite(select, .init = setup, .fini = teardown);

/* Takes select_reach_further() for the decode role alone. */
static bool
reach_further(enum ep_away most)
{
	struct selection both[ROLE_N] = {s, s};
	const bool further = select_reach_further(both, 1u << ROLE_DECODE, most);

	s = both[ROLE_DECODE];
	return further;
}

static int
reserve(void)
{
	struct selected held = {0};
	const struct table_pick *p = select_reserve(&s, &held);

	cr_assert_eq(held.tokens, p != NULL ? s.tokens : 0);
	return p != NULL ? (int)p->endpoint : -1;
}

/* What others send is worth what this router's prompts leave to compute. */
Test(select, a_request_of_others_counts_as_the_mean_that_is_computed)
{
	struct select_means m = {.work = 0};

	select_means_add(&m, &s, 70);
	cr_expect_eq(m.work, 0, "of an engine that fetches KV the whole prompt counts");
	s.computes = true;
	select_means_use(&m, &s);
	cr_expect_eq(s.mean_tokens, 70, "nothing is known yet");
	select_means_add(&m, &s, 10);
	select_means_use(&m, &s);
	cr_expect_eq(s.mean_tokens, 10);
}

Test(select, the_share_of_others_is_that_of_their_requests)
{
	struct select_means m = {.work = 0};

	for (int k = 0; k < 1000; k++)
		select_means_use(&m, &s);
	cr_expect_eq(s.others, 0);
	for (uint32_t i = 0; i < N; i++) {
		load_foreign_set(seg, i, 3, s.now_ms);
		cr_assert(load_reserve(seg, 1, i, 1));
	}
	for (int k = 0; k < 1000; k++)
		select_means_use(&m, &s);
	cr_expect_geq(s.others, POLICY_ALL_OTHERS * 3 / 4 - 1, "rounded");
	cr_expect_leq(s.others, POLICY_ALL_OTHERS * 3 / 4);
	s.now_ms += s.foreign_max_age_ms + 1;
	for (int k = 0; k < 2000; k++)
		select_means_use(&m, &s);
	cr_expect_eq(s.others, 0, "old figures do not count");
}

Test(select, the_chosen_one_is_reserved_with_its_tokens)
{
	for (int i = 0; i < N; i++) {
		cr_assert_eq(reserve(), i);
		cr_assert_eq(load_count(seg, (uint32_t)i), 1);
		cr_assert_eq(load_tokens(seg, (uint32_t)i), 70);
		cr_assert_eq(seg_row(seg, 1, (uint32_t)i)->held, 1);
	}
}

/* What the engine has in its cache is no work; a decode engine keeps the whole prompt. */
Test(select, only_what_is_not_cached_is_reserved)
{
	struct prefix_key key = {.n = 1, .size = 512, .end = {256}};
	struct prefix_found *found = prefix_found_new(N);
	struct selected held;

	*found = (struct prefix_found){.key = &key,
		.tokens = 70,
		.part = (UINT64_C(70) << PREFIX_PART_BITS) / 512,
		.round = 1,
		.nslots = N};
	found->of[2] = (struct prefix_hit){.round = 1, .cuts = 1};
	pool.policy[ROLE_DECODE] = POLICY_CACHE_AWARE;
	pool.load[ROLE_DECODE] = LOAD_TOKENS;
	s.found = found;
	s.computes = true;
	cr_assert_eq(select_reserve(&s, &held), &picks[2]);
	cr_expect_eq(held.tokens, 35);
	cr_expect_eq(load_tokens(seg, 2), 35);
	cr_expect_eq(held.guess.prompt, 70);
	cr_expect_eq(held.guess.expected, 35);
	load_tokens_sub(seg, 1, 2, held.tokens);
	load_release(seg, 1, 2);
	s.computes = false;
	cr_assert_eq(select_reserve(&s, &held), &picks[2]);
	cr_expect_eq(held.tokens, 70);
	cr_expect_eq(held.guess.expected, 35);
	load_tokens_sub(seg, 1, 2, held.tokens);
	load_release(seg, 1, 2);
	s.computes = true;
	key.end[0] = 512; /* all of it: the request is there nevertheless */
	cr_assert_eq(select_reserve(&s, &held), &picks[2]);
	cr_expect_eq(held.tokens, 1);
	free(found);
}

/* Under every policy, full or ejected: the others hold nothing of what is asked for. */
Test(select, the_holder_alone_will_do)
{
	const struct conf_ejection now = {
		.failures = 1, .time_ms = 1000, .max_ms = 1000, .max_percent = 100};

	for (enum policy_kind p = 0; p < POLICY_N; p++) {
		for (uint32_t i = 0; i < N; i++)
			picks[i].hash = 100 + i;
		pool.policy[ROLE_DECODE] = p;
		pool.ejection = now;
		s.holder = 102;
		s.reach = EP_AWAY_NOT;
		cr_assert_eq(reserve(), 2);
		cr_assert_eq(reserve(), -1, "full");
		cr_assert(select_served(&s));
		cr_assert_eq(select_room(&s).slots, 1);
		load_release(seg, 1, 2);
		s.holder = 104;
		cr_assert_eq(reserve(), -1);
		cr_assert_not(select_served(&s), "none has it");
	}
	s.holder = 102;
	cr_assert_neq(eject_bad_answer(seg, &pool, ROLE_DECODE, 2, true, s.now_ms), 0);
	cr_assert_eq(reserve(), -1);
	cr_assert(reach_further(EP_AWAY_EJECTED));
	cr_assert_eq(reserve(), 2);
}

/* Under every policy: a worker that is older than the keys of tls of its pool chooses among the others. */
Test(select, endpoints_that_speak_tls_are_passed_by)
{
	s.plain_only = true;
	s.reach = EP_AWAY_EJECTED;
	s.keyed = true;
	for (enum policy_kind p = 0; p < POLICY_N; p++) {
		pool.policy[ROLE_DECODE] = p;
		for (uint32_t i = 0; i < N; i++)
			picks[i].tls = i != 2;
		cr_assert_eq(reserve(), 2);
		cr_assert_eq(reserve(), -1, "full");
		cr_assert_eq(select_engines(&s), 1);
		load_release(seg, 1, 2);
		picks[2].tls = true;
		cr_assert_eq(reserve(), -1);
		cr_assert_not(select_served(&s));
	}
	s.plain_only = false;
	cr_assert_geq(reserve(), 0);
}

Test(select, where_no_slot_is_free_nothing_is_taken_and_the_cursor_stays)
{
	for (uint32_t i = 0; i < N; i++)
		cr_assert(load_reserve(seg, 0, i, 1));
	cursor = 3;
	cr_assert_eq(reserve(), -1);
	cr_assert_eq(cursor, 3);
	cr_assert(select_served(&s), "they are full, not gone");
	for (uint32_t i = 0; i < N; i++) {
		cr_assert_eq(load_count(seg, i), 1);
		cr_assert_eq(load_tokens(seg, i), 0);
	}
}

Test(select, only_endpoints_that_could_serve_count_as_full)
{
	enum { BASE, ADAPTER };
	static const uint64_t base = 1 << BASE, both = 1 << BASE | 1 << ADAPTER;

	for (uint32_t i = 0; i < N; i++) {
		cr_assert(load_reserve(seg, 0, i, 1));
		picks[i].models = i == 1 ? &both : &base;
	}
	s.model = ADAPTER;
	cr_assert(select_served(&s));
	s.groups = 1; /* group 0: endpoints 0 and 2 */
	cr_assert_not(select_served(&s), "no endpoint of that group has the adapter");
	s.groups = 2;
	cr_assert(select_served(&s));
	ep_state_set(seg, 1, EP_DOWN);
	cr_assert_not(select_served(&s));
	s.model = BASE;
	cr_assert(select_served(&s));
}

Test(select, room_counts_what_is_free)
{
	struct select_room room;

	picks[1].max_inflight = 5;
	cr_assert(load_reserve(seg, 0, 0, 1));
	cr_assert(load_reserve(seg, 0, 1, 5));
	room = select_room(&s);
	cr_assert_eq(room.slots, 8);
	cr_assert_eq(room.free, 6);
	s.groups = 2; /* group 1: endpoints 1 and 3 */
	room = select_room(&s);
	cr_assert_eq(room.slots, 6);
	cr_assert_eq(room.free, 5);
	picks[1].max_inflight = 1;
	cr_assert(load_reserve(seg, 0, 1, 0), "a limit that was lowered");
	cr_assert_eq(select_room(&s).free, 1);
	picks[3].max_inflight = 0;
	room = select_room(&s);
	cr_assert_eq(room.slots, UINT64_MAX);
	cr_assert_gt(room.free, UINT32_MAX);
	ep_state_set(seg, 3, EP_DOWN);
	cr_assert_eq(select_room(&s).slots, 1);
}

Test(select, attempts_stay_in_one_group_where_the_pool_requires_that)
{
	struct selection both[ROLE_N];

	pool.n[ROLE_PREFILL] = 2; /* one in each group */
	pool.picks[ROLE_PREFILL] = picks;
	pool.picks[ROLE_DECODE] = picks + 2;
	pool.n[ROLE_DECODE] = 2;
	picks[0].max_inflight = picks[3].max_inflight = 3;
	both[ROLE_PREFILL] = both[ROLE_DECODE] = s;
	both[ROLE_PREFILL].role = ROLE_PREFILL;
	cr_assert_eq(select_room_of_both(both).slots, 4);
	cr_assert_eq(select_room_of_both(both).free, 4);
	pool.pairing = PAIRING_REQUIRE;
	cr_assert_eq(select_room_of_both(both).slots, 2);
	cr_assert_eq(select_room_of_both(both).free, 2);
	cr_assert(load_reserve(seg, 0, 2, 1));
	cr_assert_eq(select_room_of_both(both).free, 1);
	ep_state_set(seg, 1, EP_DOWN);
	cr_assert_eq(select_room_of_both(both).slots, 1);
	cr_assert_eq(select_room_of_both(both).free, 0);
}

Test(select, a_passed_turn_reserves_nothing)
{
	select_pass(&s);
	cr_assert_eq(load_count(seg, 0), 0);
	cr_assert_eq(reserve(), 1);
	for (uint32_t i = 0; i < N; i++)
		ep_state_set(seg, i, EP_DOWN);
	for (enum policy_kind kind = 0; kind < POLICY_N; kind++) {
		pool.policy[ROLE_DECODE] = kind;
		cursor = 2;
		select_pass(&s);
		cr_assert_eq(cursor, 2, "%s", policy_name(kind));
	}
}

Test(select, the_mean_follows_and_reaches_what_it_follows)
{
	static const uint32_t goals[] = {1, 2, 10, 33, 1000, 1u << 24};
	uint32_t mean = select_mean(0, 500);

	cr_assert_eq(mean, 500, "the first is the mean");
	for (size_t g = 0; g < sizeof(goals) / sizeof(goals[0]); g++) {
		for (int k = 0; k < 2000; k++)
			mean = select_mean(mean, goals[g]);
		cr_expect_eq(mean, goals[g]);
	}
	/* one long prompt among short ones is a 32nd part of itself */
	mean = select_mean(100, 32100);
	cr_expect_eq(mean, 1100);
}

/* What is at an endpoint by our own count, and the most that ever was. */
/* --- ejection */

Test(select, one_of_two_gets_the_trial_and_the_other_another_endpoint)
{
	struct selected held;

	seg->eps[0].eject = HALF_OPEN_OUT | s.now_ms;
	for (uint32_t i = 0; i < N; i++)
		picks[i].max_inflight = 0;
	cr_assert_eq(select_reserve(&s, &held)->slot, 0);
	cr_assert_neq(held.trial, 0);
	cursor = 0;
	cr_assert_eq(select_reserve(&s, &held)->slot, 1);
	cr_assert_eq(held.trial, 0);
	cr_assert_eq(load_count(seg, 0), 1);
}

/* Another request has the last slot of a due endpoint: no trial is begun that no request can make. */
Test(select, a_trial_needs_a_slot)
{
	seg->eps[0].eject = HALF_OPEN_OUT | s.now_ms;
	cr_assert(load_reserve(seg, 0, 0, 1));
	cr_assert_eq(reserve(), 1);
	cr_assert_eq(seg->eps[0].eject, HALF_OPEN_OUT | s.now_ms);
}

Test(select, one_that_is_due_has_room_for_its_trial)
{
	picks[0].max_inflight = 5;
	cr_assert_eq(select_room(&s).free, 8);
	seg->eps[0].eject = HALF_OPEN_OUT | s.now_ms;
	cr_assert_eq(select_room(&s).free, 4);
	cr_assert_eq(select_room(&s).slots, 8);
	seg->eps[0].eject = HALF_OPEN_OUT | (s.now_ms + 1);
	cr_assert_eq(select_room(&s).free, 3);
}

Test(select, where_all_are_ejected_none_serves)
{
	for (uint32_t i = 0; i < N; i++)
		seg->eps[i].eject = HALF_OPEN_OUT | (s.now_ms + 1);
	cr_assert_eq(reserve(), -1);
	cr_assert_not(select_served(&s));
}

/* As long as all that may pass before the first byte. */
Test(select, a_trial_ends_when_its_time_outs_have)
{
	struct selected held;

	pool.timeouts = (struct conf_timeouts){.connect_ms = 1000,
		.prefill_ms = 20000,
		.kv_ready_ms = 300,
		.whole_answer_ms = 4000,
		.first_byte_ms = 50000};
	seg->eps[0].eject = HALF_OPEN_OUT | s.now_ms;
	(void)select_reserve(&s, &held);
	cr_assert_eq(half_open_ms(held.trial), s.now_ms + 2000 + 20000 + 300 + 50000 + 2000);
}

/* --- busy, and how far a selection reaches */

static void
make_busy(uint32_t i)
{
	seg->eps[i].busy = HALF_OPEN_OUT | (s.now_ms + 1);
}

Test(select, a_busy_one_is_passed_by_and_has_no_room)
{
	make_busy(0);
	cr_assert_eq(select_room(&s).free, N - 1);
	cr_assert_eq(select_room(&s).slots, N, "it will have, so nothing is hopeless");
	for (int i = 1; i < N; i++)
		cr_assert_eq(reserve(), i);
	cr_assert_eq(reserve(), -1);
	cr_assert_not(reach_further(EP_AWAY_BUSY), "the others are full: they are waited for");
}

Test(select, where_all_are_busy_they_are_asked_all_the_same)
{
	struct selected held;

	for (uint32_t i = 0; i < N; i++)
		make_busy(i);
	cr_assert_eq(reserve(), -1);
	cr_assert(reach_further(EP_AWAY_BUSY));
	cr_assert_eq(s.reach, EP_AWAY_BUSY);
	cr_assert_eq(select_room(&s).free, N);
	cr_assert_eq(select_reserve(&s, &held)->slot, 0);
	cr_assert_eq(held.busy, seg->eps[0].busy);
	cr_assert_eq(reserve(), 1);
}

Test(select, a_busy_one_that_is_due_is_tried_once)
{
	struct selected held;

	for (uint32_t i = 0; i < N; i++)
		picks[i].max_inflight = 0;
	seg->eps[0].busy = HALF_OPEN_OUT | s.now_ms;
	cr_assert_eq(select_room(&s).slots, UINT64_MAX);
	cr_assert_eq(select_reserve(&s, &held)->slot, 0);
	cr_assert_neq(held.busy, 0);
	cursor = 0;
	cr_assert_eq(select_reserve(&s, &held)->slot, 1);
	cr_assert_eq(held.busy, 0);
}

/* Neither trial is begun without the other. */
Test(select, who_is_ejected_and_busy_keeps_its_ejection_due)
{
	const uint64_t due = HALF_OPEN_OUT | s.now_ms;

	seg->eps[0].eject = due;
	make_busy(0);
	cr_assert_eq(reserve(), 1);
	cr_assert_eq(seg->eps[0].eject, due);
}

Test(select, an_ejected_one_only_where_all_others_are_away)
{
	struct selected held;

	seg->eps[0].eject = HALF_OPEN_OUT | (s.now_ms + 1);
	for (uint32_t i = 1; i < N; i++)
		make_busy(i);
	cr_assert(reach_further(EP_AWAY_EJECTED));
	cr_assert_eq(s.reach, EP_AWAY_BUSY);
	for (uint32_t i = 1; i < N; i++)
		ep_state_set(seg, i, EP_DOWN);
	cr_assert(reach_further(EP_AWAY_EJECTED));
	cr_assert_eq(select_reserve(&s, &held)->slot, 0);
	cr_assert_eq(held.trial, 0, "its time is not over");
	cr_assert_not(reach_further(EP_AWAY_EJECTED));
}

/* Prefill of group 0 and decode of group 1 are busy: both groups have one, and neither has a pair without. */
Test(select, attempts_reach_as_little_further_as_they_can)
{
	struct selection both[ROLE_N];

	pool.pairing = PAIRING_REQUIRE;
	pool.n[ROLE_PREFILL] = 2;
	pool.picks[ROLE_PREFILL] = picks;
	pool.n[ROLE_DECODE] = 2;
	pool.picks[ROLE_DECODE] = picks + 2;
	both[ROLE_PREFILL] = both[ROLE_DECODE] = s;
	both[ROLE_PREFILL].role = ROLE_PREFILL;
	cr_assert_not(select_reach_further(both, SELECT_BOTH_ROLES, EP_AWAY_BUSY));
	make_busy(0);
	make_busy(3);
	cr_assert(select_reach_further(both, SELECT_BOTH_ROLES, EP_AWAY_BUSY));
	cr_assert_eq(
		both[ROLE_PREFILL].reach + both[ROLE_DECODE].reach, EP_AWAY_BUSY, "one of the two");
}

struct usage {
	atomic_uint now, most;
};

static void
enter(struct usage *u)
{
	unsigned now = atomic_fetch_add(&u->now, 1) + 1, most = atomic_load(&u->most);

	while (now > most && !atomic_compare_exchange_weak(&u->most, &most, now))
		;
}

/* One worker: takes a slot, keeps it for some turns, gives it back. */
static void
work(uint32_t worker, struct usage used[N])
{
	int at[3] = {-1, -1, -1};

	s.slot = cursor = worker;
	rnd = worker + 1;
	for (uint32_t k = 0; k < TURNS; k++) {
		int *mine = &at[k % 3];

		if (*mine >= 0) {
			atomic_fetch_sub(&used[*mine].now, 1);
			load_tokens_sub(seg, worker, (uint32_t)*mine, s.tokens);
			load_release(seg, worker, (uint32_t)*mine);
		}
		*mine = reserve();
		if (*mine >= 0)
			enter(&used[*mine]);
	}
}

/* 24 requests want 10 slots, all the time. */
Test(select, eight_workers_use_all_slots_and_never_one_more)
{
	static const uint32_t limits[N] = {1, 2, 3, 4};
	struct usage *used = mmap(NULL, sizeof(struct usage[N]), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	cr_assert_neq(used, MAP_FAILED);
	for (uint32_t i = 0; i < N; i++)
		picks[i].max_inflight = limits[i];
	pool.policy[ROLE_DECODE] = POLICY_LEAST_LOADED;
	for (uint32_t w = 0; w < WORKERS; w++)
		if (fork() == 0) {
			work(w, used);
			_exit(0);
		}
	for (int status = 0, w = 0; w < WORKERS; w++) {
		cr_assert_gt(wait(&status), 0);
		cr_assert_eq(status, 0);
	}
	for (uint32_t i = 0; i < N; i++)
		cr_expect_eq(atomic_load(&used[i].most), limits[i], "%u at endpoint %u, limit %u",
			atomic_load(&used[i].most), i, limits[i]);
	cr_assert_eq(munmap(used, sizeof(struct usage[N])), 0);
}
