/* The prefix index: which engine has which beginnings of prompts, and for how long. */
#include "shm/prefix.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shm/base/mem.h"
#include "shm/base/prefix_hash.h"
#include "shm/core/atomic.h"
#include "shm/load.h"
#include "shm/restart.h"
#include "shm/table.h"

#define ENDPOINTS 64
#define ROOT 7u
#define TEXT (1u << 21)
#define CAPACITY 100000u

static struct seg *seg;
static struct prefix_secret secret;
static struct prefix_found *found;
static char text[TEXT];
static uint32_t row;

static void
setup(void)
{
	const struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = ENDPOINTS,
		.max_pools = 1,
		.flags_per_worker = 64,
		.prefix_buckets = 1 << 14};
	/* always the same: two full rows that overlap lose hints, which of 30 rows some seeds have */
	const uint64_t seed[2] = {1, 2};
	uint64_t x = 1;

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	prefix_secret_make(&secret, seed);
	found = prefix_found_new(ENDPOINTS);
	row = 1;
	for (uint32_t i = 0; i < TEXT; i++) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		text[i] = (char)(x >> 56);
	}
	for (uint32_t ep = 0; ep < ENDPOINTS; ep++) {
		ep_slot_begin(seg, ep);
		prefix_capacity_set(seg, ep, CAPACITY);
	}
}

static void
teardown(void)
{
	free(found);
	seg_free(&seg);
}

TestSuite(shm_prefix, .init = setup, .fini = teardown);

/* A prompt whose first `n` bytes are those of all, and the rest its own. */
static struct prefix_key
prompt(uint32_t n, uint32_t rest, char mark)
{
	struct prefix_key key;
	char *p = mem_zero(n + rest + 1);

	memcpy(p, text, n);
	memset(p + n, mark, rest);
	prefix_cut(&secret, ROOT, p, n + rest, &key);
	free(p);
	return key;
}

static void
insert(const struct prefix_key *key, uint32_t ep, uint32_t computes)
{
	(void)prefix_insert(seg, key, row, ep, computes);
}

static uint64_t
next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

/* The cuts that the endpoint has. */
static uint32_t
cuts(const struct prefix_key *key, uint32_t ep)
{
	prefix_look(seg, key, row, 1000, found);
	return found->of[ep].round == found->round ? found->of[ep].cuts : 0;
}

/* --- cuts ------------------------------------------------------------------------------- */

Test(shm_prefix, a_mebibyte_has_at_most_64_cuts)
{
	struct prefix_key key = prompt(1 << 20, 0, 0);

	cr_expect_geq(key.n, 56);
	cr_expect_lt(key.n, PREFIX_CUTS, "%u", key.n);
	cr_expect_eq(key.end[0], 256);
	cr_expect_eq(key.end[15], 4096);
	cr_expect_eq(key.end[16], 4608);
	for (uint32_t i = 1; i < key.n; i++) {
		const uint32_t step = key.end[i] - key.end[i - 1];

		cr_expect(step == 256 || step * 8 <= key.end[i - 1], "%u: %u", i, step);
	}
	cr_expect_gt(key.end[key.n - 1], (1u << 20) * 8 / 9);
	key = prompt(TEXT, 0, 0);
	cr_expect_eq(key.n, PREFIX_CUTS, "no more of a longer one");
	cr_expect_eq(prompt(255, 0, 0).n, 0);
	cr_expect_eq(prompt(256, 0, 0).n, 1);
}

Test(shm_prefix, digests_agree_exactly_as_far_as_the_bytes)
{
	const struct prefix_key a = prompt(5000, 3000, 'a'), b = prompt(5000, 3000, 'b');
	struct prefix_key c;

	for (uint32_t i = 0; i < a.n; i++)
		cr_expect_eq(a.digest[i] == b.digest[i], a.end[i] <= 5000, "%u", a.end[i]);
	prefix_cut(&secret, ROOT + 1, text, 5000, &c);
	for (uint32_t i = 0; i < c.n; i++)
		cr_expect_neq(a.digest[i], c.digest[i], "another root");
	/* the same pieces in another order */
	memcpy(text + 256, text, 256);
	prefix_cut(&secret, ROOT, text, 512, &c);
	cr_expect_neq(c.digest[0], c.digest[1]);
}

/* All that cut a prompt must find the same digests, whatever the length of a part. */
Test(shm_prefix, wide_registers_make_the_same_hash)
{
#ifdef __x86_64__
	if (!__builtin_cpu_supports("avx2"))
		cr_skip_test("this processor has no AVX2");
#endif
	for (size_t n = 0; n < 20000; n += 1 + n / 7)
		cr_assert_eq(prefix_hash_wide(text + n % 5, n, secret.bytes, sizeof(secret.bytes)),
			XXH3_64bits_withSecret(
				text + n % 5, n, secret.bytes, sizeof(secret.bytes)));
}

Test(shm_prefix, a_root_knows_its_parts_apart)
{
	const uint64_t ab = prefix_root(&secret, prefix_root(&secret, 0, "a", 1), "b", 1);

	cr_expect_neq(prefix_root(&secret, 0, "ab", 2), ab);
	cr_expect_neq(prefix_root(&secret, prefix_root(&secret, 0, "b", 1), "a", 1), ab);
	cr_expect_neq(prefix_root(&secret, prefix_root(&secret, 0, "ab", 2), NULL, 0), ab);
}

/* A client that knows neither seed finds no collision by computing the hash itself. */
Test(shm_prefix, another_seed_gives_other_digests)
{
	const uint64_t seed[2] = {1, 7};
	const struct prefix_key a = prompt(2000, 0, 0);
	struct prefix_key b;

	prefix_secret_make(&secret, seed);
	b = prompt(2000, 0, 0);
	for (uint32_t i = 0; i < a.n; i++)
		cr_expect_neq(a.digest[i], b.digest[i]);
}

/* --- the table -------------------------------------------------------------------------- */

Test(shm_prefix, each_engine_is_found_with_its_longest_beginning)
{
	const uint32_t lengths[] = {300, 700, 4096, 5000, 30000, 90000, 130000};
	const struct prefix_key want = prompt(131072, 0, 0);

	for (uint32_t ep = 0; ep < 7; ep++) {
		const struct prefix_key key = prompt(lengths[ep], 2000, (char)('a' + ep));

		insert(&key, ep, 100);
	}
	prefix_look(seg, &want, row, 1000, found);
	for (uint32_t ep = 0; ep < 7; ep++) {
		uint32_t n = 0;

		while (n < want.n && want.end[n] <= lengths[ep])
			n++;
		cr_expect_eq(found->of[ep].round, found->round);
		cr_expect_eq(found->of[ep].cuts, n, "%u: %u, not %u", ep, found->of[ep].cuts, n);
	}
	cr_expect_neq(found->of[7].round, found->round);
}

Test(shm_prefix, what_was_found_for_one_prompt_is_not_for_the_next)
{
	const struct prefix_key a = prompt(2000, 0, 0), b = prompt(0, 2000, 'b');

	insert(&a, 3, 100);
	cr_expect_eq(cuts(&a, 3), a.n);
	cr_expect_eq(cuts(&b, 3), 0);
	found->round = UINT32_MAX;
	found->of[5] = (struct prefix_hit){.round = 1, .cuts = 9};
	cr_expect_eq(cuts(&a, 5), 0, "2^32 prompts later");
	cr_expect_eq(cuts(&a, 3), a.n);
}

Test(shm_prefix, an_engine_forgets_the_beginning_when_it_has_computed_more_than_it_holds)
{
	const struct prefix_key key = prompt(3000, 0, 0), other = prompt(0, 3000, 'o');

	insert(&key, 1, 1000);
	insert(&other, 1, CAPACITY - 1000);
	cr_expect_eq(cuts(&key, 1), key.n);
	insert(&other, 1, 2000);
	cr_expect_eq(cuts(&key, 1), 0);
	insert(&key, 1, 1000);
	cr_expect_eq(cuts(&key, 1), key.n);
	insert(&other, 2, 10 * CAPACITY);
	cr_expect_eq(cuts(&key, 1), key.n, "each engine has a count of its own");
}

Test(shm_prefix, what_is_used_again_stays)
{
	const struct prefix_key key = prompt(3000, 0, 0), other = prompt(0, 3000, 'o');

	insert(&key, 1, 1000);
	for (int i = 0; i < 10; i++) {
		insert(&other, 1, CAPACITY / 2);
		insert(&key, 1, 0);
	}
	cr_expect_eq(cuts(&key, 1), key.n);
}

Test(shm_prefix, an_unknown_capacity_is_taken_for_a_usual_one)
{
	const struct prefix_key key = prompt(3000, 0, 0);

	prefix_capacity_set(seg, 1, 0);
	insert(&key, 1, 0);
	insert(&key, 2, 0);
	shm_add(&seg->prefix_engines[1].computed, PREFIX_CAPACITY_UNKNOWN - 64);
	cr_expect_eq(cuts(&key, 1), key.n);
	shm_add(&seg->prefix_engines[1].computed, 128);
	cr_expect_eq(cuts(&key, 1), 0);
	prefix_capacity_set(seg, 2, UINT64_MAX);
	cr_expect_eq(prefix_capacity(seg, 2), PREFIX_CAPACITY_MAX);
}

/* As vLLM with --no-enable-prefix-caching says: the same prompt at once is computed again. */
Test(shm_prefix, an_engine_that_keeps_nothing_has_nothing)
{
	const struct prefix_key key = prompt(3000, 0, 0);

	prefix_capacity_set(seg, 1, 1);
	insert(&key, 1, 1000);
	cr_expect_eq(cuts(&key, 1), 0);
	insert(&key, 1, 0);
	cr_expect_eq(cuts(&key, 1), 0);
}

/* Each life voids the words of all former ones, however many there were. */
Test(shm_prefix, a_restart_voids_what_the_engine_had)
{
	const struct prefix_key key = prompt(3000, 0, 0);

	prefix_capacity_set(seg, 1, PREFIX_CAPACITY_MAX);
	insert(&key, 1, 1000);
	insert(&key, 2, 1000);
	for (int i = 0; i < 300; i++) {
		restart_begin(seg, 1);
		cr_assert_eq(cuts(&key, 1), 0, "restart %d", i);
	}
	cr_expect_eq(cuts(&key, 2), key.n);
	insert(&key, 1, 1000);
	cr_expect_eq(cuts(&key, 1), key.n);
	ep_slot_begin(seg, 1);
	cr_expect_eq(cuts(&key, 1), 0, "another engine has the slot");
	insert(&key, 2, 0);
	prefix_void(seg, 2);
	cr_expect_eq(cuts(&key, 2), 0, "its cache was cleared");
}

/* The engine says what it stores and removes: the capacity and what workers expect no longer count. */
Test(shm_prefix, with_kv_events_removed_tokens_decide)
{
	const struct prefix_key key = prompt(3000, 0, 0), other = prompt(0, 3000, 'o');

	prefix_follow(seg, 1, 0, 0);
	insert(&key, 1, 1000);
	prefix_follow(seg, 1, 1000, 1000);
	insert(&other, 1, 50 * CAPACITY); /* a worker's guess */
	cr_expect_eq(cuts(&key, 1), key.n);
	prefix_follow(seg, 1, 2 * CAPACITY, 2 * CAPACITY + 1000); /* nothing was removed */
	cr_expect_eq(cuts(&key, 1), key.n);
	prefix_follow(seg, 1, 10 * CAPACITY, 2 * CAPACITY); /* ten times as much was stored since */
	cr_expect_eq(cuts(&key, 1), 0);
	insert(&key, 1, 1000);
	cr_expect_eq(cuts(&key, 1), key.n);
	/* some events were missed: the capacity counts */
	prefix_follow(seg, 1, CAPACITY - 1000, PREFIX_HELD_UNKNOWN);
	cr_expect_eq(cuts(&key, 1), key.n);
	prefix_follow(seg, 1, 2000, PREFIX_HELD_UNKNOWN);
	cr_expect_eq(cuts(&key, 1), 0);
	insert(&key, 1, 1000);
	prefix_unfollow(seg, 1); /* workers' guesses count again */
	insert(&other, 1, 2 * CAPACITY);
	cr_expect_eq(cuts(&key, 1), 0);
	cr_expect_eq(cuts(&other, 1), other.n);
}

Test(shm_prefix, a_publisher_may_say_anything)
{
	const struct prefix_key key = prompt(3000, 0, 0);

	insert(&key, 1, 1000);
	prefix_follow(seg, 1, UINT64_MAX, UINT64_MAX - 1);
	(void)cuts(&key, 1);
	prefix_follow(seg, 1, 0, 0);
	insert(&key, 1, 1000);
	cr_expect_eq(cuts(&key, 1), key.n);
	ep_slot_begin(seg, 1); /* another engine has the slot: nothing is left of the events */
	prefix_capacity_set(seg, 1, CAPACITY);
	insert(&key, 1, 1000);
	insert(&key, 1, CAPACITY / 2);
	cr_expect_eq(cuts(&key, 1), key.n);
}

/* A system prompt that all engines have: each of 64 is found, with what it has of its own. */
Test(shm_prefix, a_beginning_that_all_engines_have_is_found_at_all)
{
	const struct prefix_key key = prompt(9000, 0, 0);
	struct prefix_key deep = prompt(9000, 50000, 'd');

	row = prefix_row(ENDPOINTS);
	cr_expect_eq(row, ENDPOINTS / PREFIX_WAYS);
	for (uint32_t ep = 0; ep < ENDPOINTS; ep++)
		insert(&key, ep, 100);
	insert(&deep, 40, 100);
	prefix_look(seg, &deep, row, 1000, found);
	for (uint32_t ep = 0; ep < ENDPOINTS; ep++)
		cr_expect_eq(found->of[ep].cuts, ep == 40 ? deep.n : key.n, "%u: %u", ep,
			found->of[ep].cuts);
}

/* Engines end at a few common cuts, or each at its own: whatever was found of others, each is found at its own. */
Test(shm_prefix, each_of_many_engines_is_found_with_its_longest_beginning)
{
	uint64_t rnd = 4711;
	uint32_t rounds = 0;

	row = prefix_row(ENDPOINTS);
	for (uint32_t round = 0; round < 300; round++) {
		uint32_t want[ENDPOINTS], level[7], lost = 0;
		struct prefix_key key;

		memset(seg->prefix, 0, seg->hdr->prefix_buckets * sizeof(*seg->prefix));
		prefix_cut(&secret, ROOT + round, text, 100000, &key);
		for (uint32_t i = 0; i < 7; i++)
			level[i] = (uint32_t)(next(&rnd) % (key.n + 1));
		for (uint32_t ep = 0; ep < ENDPOINTS; ep++) {
			struct prefix_key has = key;

			has.n = round % 2 == 0 ? level[next(&rnd) % (1 + round % 7)]
					       : (uint32_t)(next(&rnd) % (key.n + 1));
			want[ep] = has.n;
			lost += prefix_insert(seg, &has, row, ep, 0).fresh;
		}
		prefix_look(seg, &key, row, 1000, found);
		for (uint32_t ep = 0; ep < ENDPOINTS && lost == 0; ep++)
			cr_assert_eq(prefix_has(found, ep) ? found->of[ep].cuts : 0, want[ep],
				"round %u, engine %u", round, ep);
		rounds += lost == 0; /* else two rows overlap */
	}
	cr_expect_gt(rounds, 50, "%u", rounds);
}

Test(shm_prefix, a_row_grows_with_the_engines)
{
	cr_expect_eq(prefix_row(0), 1);
	cr_expect_eq(prefix_row(8), 1);
	cr_expect_eq(prefix_row(9), 2);
	cr_expect_eq(prefix_row(256), 32);
}

/* With twice as long rows the engines of the first half are still found. */
Test(shm_prefix, a_longer_row_keeps_half)
{
	const struct prefix_key key = prompt(3000, 0, 0);

	for (uint32_t ep = 0; ep < 8; ep++)
		insert(&key, ep, 100);
	row = 2;
	for (uint32_t ep = 0; ep < 8; ep += 2)
		cr_expect_eq(cuts(&key, ep), key.n, "%u", ep);
}

/* The stalest goes, and nothing that is fresh while there is room. */
Test(shm_prefix, a_full_bucket_gives_up_the_stalest)
{
	struct prefix_taken taken = {0, 0};
	const struct prefix_key key = prompt(256, 0, 0);

	for (uint32_t ep = 0; ep < PREFIX_WAYS; ep++) {
		taken = prefix_insert(seg, &key, 1, ep, 0);
		cr_expect_eq(taken.empty, 1);
	}
	shm_add(&seg->prefix_engines[5].computed, CAPACITY / 2);
	taken = prefix_insert(seg, &key, 1, 20, 0);
	cr_expect_eq(taken.fresh, 1);
	cr_expect_eq(cuts(&key, 5), 0);
	cr_expect_eq(cuts(&key, 20), 1);
	shm_add(&seg->prefix_engines[2].computed, 2 * CAPACITY);
	taken = prefix_insert(seg, &key, 1, 21, 0);
	cr_expect_eq(taken.fresh, 0, "a stale one is no loss");
	cr_expect_eq(cuts(&key, 7), 1);
	taken = prefix_insert(seg, &key, 1, 21, 0);
	cr_expect_eq(taken.fresh + taken.empty, 0, "its own word again");
}

/* Of one cut of one endpoint: two that stored at the same time may have taken a word each. */
Test(shm_prefix, what_is_removed_is_found_no_more)
{
	const struct prefix_key key = prompt(300, 0, 0);
	struct prefix_bucket *b = NULL;

	insert(&key, 1, 100);
	insert(&key, 2, 100);
	for (uint32_t i = 0; i < seg->hdr->prefix_buckets && b == NULL; i++)
		if (seg->prefix[i].word[1] != 0)
			b = &seg->prefix[i];
	cr_assert_not_null(b);
	b->word[2] = b->word[0];
	prefix_removed(seg, key.digest[0], row, 1);
	cr_expect_eq(cuts(&key, 1), 0);
	cr_expect_eq(cuts(&key, 2), 1, "another endpoint's stays");
	prefix_removed(seg, key.digest[0], row, 3); /* has none */
	cr_expect_eq(cuts(&key, 2), 1);
	prefix_stored(seg, key.digest[0], row, 1);
	cr_expect_eq(cuts(&key, 1), 1, "stored again");
	cr_expect_eq(b->word[3], 0, "in its former place");
}

/* A pool that grows has a longer row, and looks in its former places, too. */
Test(shm_prefix, what_was_stored_in_a_shorter_row_is_removed)
{
	const struct prefix_key key = prompt(300, 0, 0);

	row = 1;
	prefix_stored(seg, key.digest[0], row, 3);
	prefix_follow_blocks(seg, 3, 16, true);
	row = 4;
	cr_expect_eq(cuts(&key, 3), 1);
	prefix_removed(seg, key.digest[0], row, 3);
	cr_expect_eq(cuts(&key, 3), 0);
}

Test(shm_prefix, what_was_removed_stays_stale)
{
	const struct prefix_key key = prompt(300, 0, 0);

	prefix_capacity_set(seg, 1, PREFIX_CAPACITY_MAX);
	insert(&key, 1, 100);
	prefix_removed(seg, key.digest[0], row, 1);
	prefix_follow_blocks(seg, 1, 16, true);
	for (uint32_t i = 0; i < 100; i++) {
		cr_expect_eq(cuts(&key, 1), 0);
		prefix_follow(seg, 1, PREFIX_CAPACITY_MAX, PREFIX_HELD_UNKNOWN);
	}
}

Test(shm_prefix, a_pool_has_the_blocks_of_its_first_engine_that_names_some)
{
	const struct table_pick picks[] = {{.slot = 3}, {.slot = 5}};
	struct table_pool pool = {.n = {[ROLE_DECODE] = 2}, .picks = {[ROLE_DECODE] = picks}};

	cr_expect_eq(prefix_block_of(seg, &pool), 0);
	prefix_follow_blocks(seg, 5, 32, false);
	cr_expect_eq(prefix_block_of(seg, &pool), 32);
	prefix_follow_blocks(seg, 3, 16, true);
	cr_expect_eq(prefix_block_of(seg, &pool), 16);
	seg->prefix_engines[3].blocks = UINT64_MAX; /* any word may stand here */
	cr_expect_eq(prefix_block_of(seg, &pool), 32);
	prefix_unfollow(seg, 5);
	cr_expect_eq(prefix_block_of(seg, &pool), 0);
}

Test(shm_prefix, without_a_table_nothing_is_found)
{
	const struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = ENDPOINTS,
		.max_pools = 1,
		.flags_per_worker = 64};
	const struct prefix_key key = prompt(3000, 0, 0);

	seg_free(&seg);
	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	insert(&key, 1, 100);
	cr_expect_eq(cuts(&key, 1), 0);
}

/* --- whatever stands in the memory ------------------------------------------------------ */

Test(shm_prefix, any_words_are_only_hints)
{
	const struct prefix_key key = prompt(131072, 0, 0);
	uint64_t *words = &seg->prefix[0].word[0];
	uint64_t x = 88172645463325252u;

	for (uint32_t i = 0; i < seg->hdr->prefix_buckets * PREFIX_WAYS; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		words[i] = x;
	}
	for (uint32_t ep = 0; ep < ENDPOINTS; ep++) {
		seg->prefix_engines[ep].computed = x * ep;
		seg->prefix_engines[ep].kept = x * ep;
	}
	for (int i = 0; i < 100; i++) {
		const uint32_t ep = (uint32_t)i % ENDPOINTS;

		insert(&key, ep, 100);
		cr_assert_eq(cuts(&key, ep), key.n);
		for (uint32_t k = 0; k < ENDPOINTS; k++) {
			const struct prefix_guess g = prefix_expect(seg, found, k);

			cr_assert_leq(g.expected, 1000);
			cr_assert_leq(g.hit, 1000);
		}
	}
}

/* Killed at any moment: every word that stands there is whole, and the next insertion works. */
Test(shm_prefix, a_killed_worker_leaves_whole_words)
{
	const struct prefix_key key = prompt(131072, 0, 0);
	int status;

	for (int i = 0; i < 20; i++) {
		const pid_t pid = fork();

		cr_assert_geq(pid, 0);
		if (pid == 0)
			for (uint32_t n = 0;; n++) {
				const struct prefix_key k = prompt(131072 - n % 9000, 9000, 'k');

				insert(&k, 1 + n % 7, 10);
			}
		while (seg->prefix_engines[7].computed < (uint64_t)i * 1000 % 7000)
			(void)usleep(100);
		cr_assert_eq(kill(pid, SIGKILL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
		for (uint32_t k = 0; k < seg->hdr->prefix_buckets * PREFIX_WAYS; k++) {
			const uint64_t word = seg->prefix[k / PREFIX_WAYS].word[k % PREFIX_WAYS];

			cr_assert(word == 0 || (word >> 30 & 0xffff) <= 8, "%#lx", word);
		}
	}
	insert(&key, 8, 100);
	cr_expect_eq(cuts(&key, 8), key.n);
}

/* --- what engines say ------------------------------------------------------------------- */

Test(shm_prefix, the_hit_is_the_prompts_part_before_the_cut)
{
	const struct prefix_key key = prompt(1024, 1024, 'x'), had = prompt(1024, 1024, 'y');
	struct prefix_guess g;

	insert(&had, 1, 100);
	prefix_look(seg, &key, row, 500, found);
	g = prefix_expect(seg, found, 1);
	cr_expect_eq(g.prompt, 500);
	cr_expect_eq(g.hit, 250);
	cr_expect_eq(g.expected, 250);
	g = prefix_expect(seg, found, 2);
	cr_expect_eq(g.prompt, 500);
	cr_expect_eq(g.hit, 0);
	cr_expect_eq(g.expected, 0);
}

static double
after(uint32_t ep, int samples, uint64_t cached)
{
	const struct prefix_guess g = {.prompt = 1000, .hit = 800, .expected = 800};

	for (int i = 0; i < samples; i++)
		prefix_record(seg, ep, &g, cached, 2000); /* tokens of its own, half as long */
	return prefix_sums(seg, ep).kept;
}

/* A few per cent are chance, and would decide between engines that have equally much. */
Test(shm_prefix, who_keeps_to_four_fifths_is_expected_to_have_all)
{
	const struct prefix_key key = prompt(1024, 1024, 'x');

	for (uint32_t ep = 1; ep <= 3; ep++)
		insert(&key, ep, 100);
	cr_assert_lt(after(1, 200, 1500), 0.97);
	cr_assert_lt(after(2, 200, 1000), 0.8);
	prefix_look(seg, &key, row, 500, found);
	cr_expect_eq(prefix_expect(seg, found, 1).expected, 500);
	cr_expect_lt(prefix_expect(seg, found, 2).expected, 400);
	cr_expect_eq(prefix_expect(seg, found, 3).expected, 500);
}

Test(shm_prefix, what_an_engine_keeps_to_is_learned_slowly_both_ways)
{
	cr_expect_float_eq(prefix_sums(seg, 1).kept, 1, 0.001);
	cr_expect_float_eq(after(1, 50, 1600), 1, 0.01);
	cr_expect_gt(after(1, 3, 0), 0.85, "few samples change little");
	cr_expect_lt(after(1, 200, 0), 0.3);
	cr_expect_gt(after(1, 200, 1600), 0.9, "and back");
	cr_expect_leq(after(1, 1000, 2000), 1, "what it has beyond the hit is no part of it");
	cr_expect_float_eq(prefix_sums(seg, 2).kept, 1, 0.001, "each of its own");
	ep_slot_begin(seg, 1);
	cr_expect_float_eq(prefix_sums(seg, 1).kept, 1, 0.001);
}

Test(shm_prefix, sums_are_of_answers_that_say_it)
{
	const struct prefix_guess g = {.prompt = 1000, .hit = 800, .expected = 700}, none = {0};
	struct prefix_sums s;

	prefix_record(seg, 1, &g, PREFIX_UNSAID, 2000); /* perhaps it never says */
	prefix_record(seg, 1, &g, 1000, 2000);
	prefix_record(seg, 1, &g, PREFIX_UNSAID, 2000); /* 0 */
	prefix_record(seg, 1, &g, 5000, 2000);          /* an engine may lie */
	prefix_record(seg, 1, &none, 1000, 2000);
	prefix_record(seg, 1, &g, 0, 0);
	s = prefix_sums(seg, 1);
	cr_expect_eq(s.answers, 3);
	cr_expect_eq(s.prompt, 3000);
	cr_expect_eq(s.expected, 2100);
	cr_expect_eq(s.cached, 1500);
}

Test(shm_prefix, sums_that_cannot_be_begin_again)
{
	const struct prefix_guess g = {.prompt = 1000, .hit = 800, .expected = 700};

	prefix_record(seg, 1, &g, 1000, 2000);
	cr_expect_eq(prefix_mend(seg, 1), 0);
	seg->prefix_engines[1].expected = UINT64_MAX / 2;
	cr_expect_eq(prefix_mend(seg, 1), 1);
	cr_expect_eq(prefix_sums(seg, 1).expected, 0);
	cr_expect_eq(prefix_sums(seg, 1).prompt, 1000);
}

/* The same in routers with other secrets, and of the bytes of both parts. */
Test(prefix, what_is_between_two_cuts_has_a_hash_of_its_own)
{
	static char a[1024], b[4096];
	struct prefix_secret one, other;
	struct prefix_key k, l;

	prefix_secret_make(&one, (const uint64_t[2]){1, 2});
	prefix_secret_make(&other, (const uint64_t[2]){3, 4});
	prefix_cut_two(&one, 0, a, sizeof(a), b, sizeof(b), &k);
	prefix_cut_two(&other, 0, a, sizeof(a), b, sizeof(b), &l);
	for (uint32_t i = 0; i < k.n; i++) {
		char *p = k.end[i] <= sizeof(a) ? a + k.end[i] : b + k.end[i] - sizeof(a);
		const uint64_t was = prefix_between(&k, i);

		cr_expect_eq(prefix_between(&l, i), was);
		p[-1] ^= 1;
		cr_expect_neq(prefix_between(&k, i), was, "%u", i);
		if (i + 1 < k.n)
			cr_expect_eq(prefix_between(&k, i + 1), prefix_between(&l, i + 1));
		p[-1] ^= 1;
	}
}
