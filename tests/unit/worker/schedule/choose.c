/* Both engines of an attempt: what is reserved, and what a choice that comes to nothing leaves behind. */
#include "worker/schedule/choose.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/load.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/base/facts.h"
#include "worker/net/connpool.h"
#include "worker/schedule/cached.h"
#include "worker/schedule/shortage.h"

enum { P, D, N }; /* one endpoint of each role, with one slot */
#define ME 1
#define OTHER 0 /* worker */

static struct table_endpoint eps[N];
static struct table_pick picks[N];
static struct table_pool pool;
static struct table table = {
	.version = 1, .nendpoints = N, .endpoints = eps, .npools = 1, .pools = &pool};
static struct worker w;
static struct selection s[ROLE_N];
static struct reserved got, old;

static void
setup(void)
{
	struct seg_sizes sizes = {
		.max_workers = 1, .max_endpoints = N, .max_pools = 1, .flags_per_worker = 64};
	static struct facts facts = {.tokens = 70};

	w = (struct worker){.slot = ME, .planning = true};
	cr_assert_eq(seg_new(&sizes, 1, &w.seg), 0);
	for (uint32_t i = 0; i < N; i++) {
		ep_slot_begin(w.seg, i);
		ep_state_set(w.seg, i, EP_UP);
		eps[i] = (struct table_endpoint){.slot = i,
			.tag = (uint32_t)ep_tag(w.seg, i),
			.url = "http://engine",
			.authority = "engine",
			.host = "engine",
			.prefix = ""};
		picks[i] = (struct table_pick){.endpoint = i,
			.slot = i,
			.tag = eps[i].tag,
			.max_inflight = 1,
			.weight = 1,
			.resolved = true};
	}
	pool = (struct table_pool){.policy = {POLICY_ROUND_ROBIN, POLICY_ROUND_ROBIN},
		.n = {1, 1},
		.picks = {&picks[P], &picks[D]},
		.max_weight = {1, 1},
		.turns = {{1}, {1}}};
	w.cursor = mem_array((size_t)ROLE_N * TABLE_GROUPS, sizeof(*w.cursor));
	w.retry_turn = mem_array((size_t)ROLE_N * TABLE_GROUPS, sizeof(*w.retry_turn));
	w.round = mem_array(TABLE_GROUPS, sizeof(*w.round));
	w.mean_tokens = mem_array(1, sizeof(*w.mean_tokens));
	w.connpool = connpool_new(&w);
	choose_prepare(s, &w, &(struct demand){&facts, NULL}, &table, &pool, TABLE_ANY_MODEL);
	got = old = (struct reserved){0};
}

static void
teardown(void)
{
	for (enum role r = 0; r < ROLE_N; r++) {
		reservation_drop(&w, &got.of[r]);
		reservation_drop(&w, &old.of[r]);
	}
	for (uint32_t i = 0; i < N; i++)
		cr_expect_eq(seg_row(w.seg, ME, i)->held, 0, "a slot of endpoint %u has leaked", i);
	connpool_free(&w.connpool);
	free(w.cursor);
	free(w.retry_turn);
	free(w.round);
	free(w.mean_tokens);
	seg_free(&w.seg);
}

TestSuite(choose, .init = setup, .fini = teardown);

/* The failed attempt holds both engines' slots. */
static void
hold_old(void)
{
	cr_assert_eq(choose_both(&w, s, &old, NULL), CHOSEN_BOTH);
	s[ROLE_PREFILL].again = s[ROLE_DECODE].again = true;
}

static void
assert_nothing_chosen(void)
{
	for (enum role r = 0; r < ROLE_N; r++) {
		cr_assert_null(got.of[r].ep);
		cr_assert_eq(got.of[r].state, RESERVATION_NONE);
	}
	cr_assert_eq(s[ROLE_PREFILL].groups, SELECT_ALL_GROUPS);
	cr_assert_eq(s[ROLE_DECODE].groups, SELECT_ALL_GROUPS);
}

/* Prepares again, in a worker that has inherited those keys of tls for the pool. */
static void
inherit(struct tls_client *keys)
{
	static struct facts facts = {.tokens = 70};
	static struct conf_pool conf_pool;
	static struct conf conf = {.npools = 1, .pools = &conf_pool};

	conf_pool = (struct conf_pool){.name = (char *)(uintptr_t) "pool", .tls.client = keys};
	w.conf = &conf;
	choose_prepare(s, &w, &(struct demand){&facts, NULL}, &table, &pool, TABLE_ANY_MODEL);
}

Test(choose, a_worker_that_is_older_than_the_pools_keys_of_tls)
{
	struct shortage why = {.roles = 0};
	char keys;

	pool.name = "pool";
	pool.tls = picks[D].tls = true;
	inherit(NULL);
	cr_assert_eq(choose_both(&w, s, &got, NULL), CHOSEN_NO_DECODE);
	assert_nothing_chosen();
	cr_assert_eq(shortage_of_both(&why, s, 1), END_NO_DECODE);
	cr_assert_not_null(strstr(why.detail, "this worker began before"));
	inherit((struct tls_client *)(void *)&keys);
	cr_assert_eq(choose_both(&w, s, &got, NULL), CHOSEN_BOTH);
}

Test(choose, both_engines_are_reserved)
{
	cr_assert_eq(choose_both(&w, s, &got, NULL), CHOSEN_BOTH);
	for (enum role r = 0; r < ROLE_N; r++) {
		cr_assert_eq(got.of[r].ep->slot, r);
		cr_assert_eq(got.of[r].state, RESERVATION_HELD);
		cr_assert_eq(got.of[r].tokens, 70);
		cr_assert_eq(load_count(w.seg, r), 1);
	}
}

Test(choose, without_a_decode_engine_the_prefill_engine_is_released)
{
	cr_assert(load_reserve(w.seg, OTHER, D, 1));
	cr_assert_eq(choose_both(&w, s, &got, NULL), CHOSEN_NO_DECODE);
	assert_nothing_chosen();
	cr_assert_eq(load_count(w.seg, P), 0);
	cr_assert_eq(w.owes, 1u << ROLE_PREFILL, "a waiter may take the slot");
}

Test(choose, without_a_prefill_engine_nothing_is_reserved)
{
	cr_assert(load_reserve(w.seg, OTHER, P, 1));
	cr_assert_eq(choose_both(&w, s, &got, NULL), CHOSEN_NONE);
	assert_nothing_chosen();
	cr_assert_eq(load_count(w.seg, D), 0);
}

Test(choose, where_no_slot_is_free_those_of_the_failed_attempt_move)
{
	hold_old();
	cr_assert_eq(choose_both(&w, s, &got, &old), CHOSEN_BOTH);
	for (enum role r = 0; r < ROLE_N; r++) {
		cr_assert_eq(old.of[r].state, RESERVATION_NONE);
		cr_assert_eq(got.of[r].state, RESERVATION_HELD);
		cr_assert_eq(got.of[r].tokens, 70);
		cr_assert_eq(load_count(w.seg, r), 1);
	}
	cr_assert_eq(w.owes, 0, "no slot was free at any moment");
}

Test(choose, a_slot_that_has_moved_goes_back)
{
	hold_old();
	reservation_release(&w, &old.of[ROLE_DECODE]);
	w.owes = 0;
	cr_assert(load_reserve(w.seg, OTHER, D, 1));
	cr_assert_eq(choose_both(&w, s, &got, &old), CHOSEN_NO_DECODE);
	assert_nothing_chosen();
	cr_assert_eq(old.of[ROLE_PREFILL].state, RESERVATION_HELD);
	cr_assert_eq(old.of[ROLE_PREFILL].tokens, 70);
	cr_assert_eq(w.owes, 0);
}

/* The engine computes the prompt once. */
Test(choose, a_prompt_whose_slot_moves_is_counted_once_in_the_index)
{
	struct prefix_found *found = prefix_found_new(N);
	struct prefix_key key = {
		.n = 1, .size = PREFIX_STEP, .end = {PREFIX_STEP}, .digest = {4711}};
	struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = N,
		.max_pools = 1,
		.flags_per_worker = 64,
		.prefix_buckets = 64};
	struct seg *without = w.seg;
	uint64_t before;

	cr_assert_eq(seg_new(&sizes, 1, &w.seg), 0);
	for (uint32_t i = 0; i < N; i++) {
		ep_slot_begin(w.seg, i);
		ep_state_set(w.seg, i, EP_UP);
	}
	w.slab = seg_slab(w.seg, ME);
	w.cached = cached_new(&w);
	prefix_look(w.seg, &key, 1, 70, found);
	for (enum role r = 0; r < ROLE_N; r++) {
		s[r].seg = w.seg;
		s[r].found = found;
		s[r].computes = r == ROLE_PREFILL;
	}
	before = w.seg->prefix_engines[P].computed;
	hold_old();
	cr_expect_eq(w.seg->prefix_engines[P].computed, before + 70);
	cr_assert_eq(choose_both(&w, s, &got, &old), CHOSEN_BOTH);
	cr_expect_eq(got.of[ROLE_PREFILL].guess.prompt, 70);
	cr_expect_eq(w.seg->prefix_engines[P].computed, before + 70);
	cached_free(&w.cached);
	free(found);
	seg_free(&without);
}

/* The failed attempt has no slot there any more, so none that was taken for another attempt becomes its own. */
Test(choose, a_fresh_slot_of_the_same_endpoint_is_released)
{
	hold_old();
	reservation_release(&w, &old.of[ROLE_PREFILL]);
	reservation_release(&w, &old.of[ROLE_DECODE]);
	cr_assert(load_reserve(w.seg, OTHER, D, 1));
	cr_assert_eq(choose_both(&w, s, &got, &old), CHOSEN_NO_DECODE);
	assert_nothing_chosen();
	cr_assert_eq(old.of[ROLE_PREFILL].state, RESERVATION_NONE);
	cr_assert_eq(load_count(w.seg, P), 0);
}
