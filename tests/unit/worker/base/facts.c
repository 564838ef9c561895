/* What is known of a planned request: its own copy, and what requests share. */
#include "worker/base/facts.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/metrics.h"

static struct req_pool *
pool_of(uint32_t id)
{
	const struct req_pool pool = {.refs = 1, .id = id};

	return mem_dup(&pool, sizeof(pool));
}

Test(facts, nothing_is_known_at_first)
{
	struct facts f = {.stream = true};

	facts_init(&f);
	cr_assert_eq(f.pool->id, METRIC_NO_POOL);
	cr_assert_str_eq(f.id, "");
	cr_assert_str_eq(f.model, "");
	cr_assert_str_eq(f.response, "");
	cr_assert_str_eq(f.trace->id, "");
	cr_assert_eq(tried_count(&f), 0);
	facts_fini(&f);
}

Test(facts, a_text_is_as_long_as_it_is)
{
	struct facts f = {.tokens = 0};

	facts_init(&f);
	facts_set(&f.model, "llama/70b", 5);
	cr_assert_str_eq(f.model, "llama");
	facts_set(&f.model, "m", 1);
	cr_assert_str_eq(f.model, "m");
	facts_set(&f.model, NULL, 0);
	cr_assert_str_eq(f.model, "");
	facts_fini(&f);
}

/* The settings live as long as the last request that was planned by them. */
Test(facts, requests_share_the_settings_of_their_pool)
{
	struct req_pool *latest = pool_of(7);
	struct facts a = {.tokens = 0}, b = {.tokens = 0};

	facts_init(&a);
	facts_init(&b);
	facts_take_pool(&a, latest);
	facts_take_pool(&b, latest);
	cr_assert_eq(a.pool, b.pool);
	facts_take_pool(&b, latest); /* planned again, by the same table */
	cr_assert_eq(latest->refs, 3);
	req_pool_unref(&latest);
	facts_fini(&a);
	cr_assert_eq(b.pool->id, 7);
	cr_assert_eq(b.pool->refs, 1);
	facts_fini(&b);
}

Test(facts, a_copy_outlives_what_it_was_copied_from)
{
	struct req_pool *pool = pool_of(3);
	struct facts f = {.tokens = 5}, *copy;

	facts_init(&f);
	facts_set(&f.id, "id", 2);
	facts_set(&f.model, "m", 1);
	facts_set(&f.response, "resp", 4);
	facts_take_pool(&f, pool);
	req_pool_unref(&pool);
	cr_assert(tried_add(&f, 4));
	facts_set_trace(&f, &(struct trace){.id = "0af7", .span = 9});
	f.trace_state = MEM_NEW(struct trace_state);
	copy = facts_copy(&f);
	cr_assert(tried_add(&f, 5));
	facts_fini(&f);
	cr_assert_str_eq(copy->id, "id");
	cr_assert_str_eq(copy->model, "m");
	cr_assert_str_eq(copy->response, "resp");
	cr_assert_str_eq(copy->trace->id, "0af7");
	cr_assert_eq(copy->trace->span, 9);
	cr_assert_eq(copy->tokens, 5);
	cr_assert_eq(copy->pool->id, 3);
	cr_assert_eq(tried_count(copy), 1);
	cr_assert_null(copy->trace_state);
	facts_fini(copy);
	free(copy);
}

Test(facts, endpoints_are_tried_once)
{
	struct facts f = {.tokens = 0};
	struct tried saved = tried_of(&f);

	facts_init(&f);
	tried_drop(&f, 1);
	cr_assert(tried_add(&f, 1));
	cr_assert(tried_add(&f, 1));
	cr_assert_eq(tried_count(&f), 1);
	tried_set(&f, &saved);
	cr_assert_eq(tried_count(&f), 0);
	for (uint32_t i = 0; i < REQ_TRIED_MAX; i++)
		cr_assert(tried_add(&f, i));
	cr_assert_not(tried_add(&f, REQ_TRIED_MAX));
	tried_drop(&f, 0);
	cr_assert(tried_add(&f, REQ_TRIED_MAX));
	facts_fini(&f);
}
