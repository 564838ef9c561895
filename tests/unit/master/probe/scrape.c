/* What scrapes tell the workers: whose load it is, under which names, and what of a page is read. */
#include "tests/unit/master/engines.h"

#include <stdlib.h>

#include "master/probe/scrape.h"
#include "shm/prefix.h"

#define RUNNING(n) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nvllm:num_requests_running " n "\n"

TestSuite(scrape, .init = engines_setup, .fini = engines_teardown, .timeout = 60);

static uint32_t
foreign_of(const struct fake *f)
{
	return load_foreign(seg, endpoint_of(f->url)->engine.slot, clock_ms(), 60000);
}

/* Until one more page has been read. */
static void
one_scrape(struct fake *f)
{
	uint32_t slot = endpoint_of(f->url)->engine.slot;
	uint64_t before = ep_scrape_get(seg, slot).at_ms;

	for (uint64_t end = clock_ms() + 5000; ep_scrape_get(seg, slot).at_ms == before;) {
		run_for(1);
		cr_assert_lt(clock_ms(), end);
	}
}

Test(scrape, a_request_of_ours_within_a_scrape_is_not_foreign)
{
	struct fake *f = fake_new("127.0.0.1");

	f->metrics = RUNNING("0");
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	for (int i = 0; i < 5; i++) {
		f->metrics = RUNNING("1");
		f->short_ones = 1; /* it is that 1, and gone when the page is there */
		one_scrape(f);
		cr_assert_eq(f->short_ones, 0);
		cr_assert_eq(foreign_of(f), 0, "%d", i);
		f->metrics = RUNNING("0");
		one_scrape(f);
		cr_assert_eq(foreign_of(f), 0);
	}
}

Test(scrape, foreign_load_is_seen_at_once_where_nothing_of_ours_moves)
{
	struct fake *f = fake_new("127.0.0.1");
	uint32_t slot;

	f->metrics = RUNNING("0");
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	slot = endpoint_of(f->url)->engine.slot;
	cr_assert(load_reserve(seg, 0, slot, 0));
	load_sent(seg, 0, slot, 1);
	one_scrape(f);
	f->metrics = RUNNING("8");
	one_scrape(f);
	cr_assert_eq(foreign_of(f), 7);
	f->metrics = RUNNING("1");
	one_scrape(f);
	cr_assert_eq(foreign_of(f), 0);
	load_sent(seg, 0, slot, -1);
	load_release(seg, 0, slot);
}

Test(scrape, lasting_foreign_load_is_seen_beside_our_short_requests)
{
	struct fake *f = fake_new("127.0.0.1");

	f->metrics = RUNNING("5");
	f->short_ones = 1000;
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	one_scrape(f);
	cr_assert_eq(foreign_of(f), 5);
	f->metrics = RUNNING("0");
	one_scrape(f);
	cr_assert_eq(foreign_of(f), 0, "less is believed at once");
}

Test(scrape, load_of_others_that_changes_is_looked_at_often)
{
	cr_expect_eq(scrape_often_ms(1000, 1), 250);
	cr_expect_eq(scrape_often_ms(1000, 100), 400, "all together 250 a second");
	cr_expect_eq(scrape_often_ms(1000, 2000), 1000, "never less often than the interval");
	cr_expect_eq(scrape_often_ms(50, 1), 50);
	cr_expect_eq(scrape_often_ms(400, 1), 250);
	cr_expect_eq(scrape_often_ms(5000, 1), 1250);
}

Test(scrape, it_is_looked_at_often_until_it_stays_the_same)
{
	struct fake *f = fake_new("127.0.0.1");
	const struct prober *p;

	f->metrics = RUNNING("0");
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	p = endpoint_of(f->url)->engine.prober;
	one_scrape(f);
	cr_expect_eq(p->often, 0);
	f->metrics = RUNNING("8");
	one_scrape(f);
	cr_expect_eq(p->often, 1);
	for (int i = 0; i < 16; i++)
		one_scrape(f);
	cr_expect_eq(p->often, 0, "as it was");
	f->metrics = RUNNING("7");
	one_scrape(f);
	cr_expect_eq(p->often, 1);
	scrape_stop(&endpoint_of(f->url)->engine);
	cr_expect_eq(p->often, 0, "an engine that is not scraped any more");
}

#define TOKENS(n)                                                                                  \
	RUNNING("0") "vllm:prompt_tokens_total " n "\nvllm:generation_tokens_total " n "\n"

static double
tokens_s(const struct fake *f)
{
	double rate = 0;

	(void)scrape_tokens_s(&endpoint_of(f->url)->engine, &rate);
	return rate;
}

static bool
generates(void *f)
{
	return tokens_s(f) > 0;
}

/* Of two pages that lie a second or more apart, however long the machine takes. */
Test(scrape, tokens_per_second)
{
	struct fake *f = fake_new("127.0.0.1");
	uint32_t slot;
	struct ep_scrape s;

	f->metrics = TOKENS("5000");
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	cr_expect_eq(tokens_s(f), 0);
	slot = endpoint_of(f->url)->engine.slot;
	f->metrics = TOKENS("6000");
	cr_assert(wait_for(generates, f, 10000));
	cr_expect_leq(tokens_s(f), 1000);
	s = ep_scrape_get(seg, slot);
	cr_expect(s.has_tokens && s.prompt_tokens == 6000 && s.generated_tokens == 6000);
	f->metrics = TOKENS("7"); /* another process counts from 0 */
	one_scrape(f);
	one_scrape(f);
	cr_expect_eq(ep_scrape_get(seg, slot).generated_tokens, 7);
	cr_expect_eq(tokens_s(f), 0);
	f->metrics = RUNNING("0");
	one_scrape(f);
	one_scrape(f);
	cr_expect_not(ep_scrape_get(seg, slot).has_tokens);
	cr_expect_not(scrape_tokens_s(&endpoint_of(f->url)->engine, &(double){0}));
}

Test(scrape, names_of_other_engines)
{
	struct fake *f = fake_new("127.0.0.1");
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");
	struct ep_scrape s;

	f->metrics = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ntgi_batch 3\ntgi_queue 2\n"
		     "vllm:num_requests_running 50\n";
	conf_endpoint(p, ROLE_DECODE, f->url);
	p->metric_running = (char[]){"tgi_batch"};
	p->metric_waiting = (char[]){"tgi_queue"};
	apply(c);
	cr_assert(wait_for(is_scraped, f, 5000));
	s = ep_scrape_get(seg, endpoint_of(f->url)->engine.slot);
	cr_assert_eq(s.running, 3);
	cr_assert_eq(s.waiting, 2);
	f->metrics = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ntgi_batch 9\n";
	run_for(300);
	cr_assert_eq(ep_scrape_get(seg, endpoint_of(f->url)->engine.slot).running, 3,
		"half a load is none");
	f->metrics = RUNNING("50");
	uint64_t failed = metric_sum(seg, M_SCRAPES_FAILED);

	run_for(300);
	cr_assert_gt(metric_sum(seg, M_SCRAPES_FAILED), failed, "not the names that are wanted");
}

Test(scrape, a_large_page_is_read_in_slices)
{
	static const char
		head[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
		line[] = "vllm:request_prefill_time_seconds_bucket{engine=\"0\",le=\"0.3\","
			 "model_name=\"m\"} 123456.0\n";
	struct fake *f = fake_new("127.0.0.1");
	size_t room = (5u << 20) + 4096, n = sizeof(head) - 1;
	char *page = malloc(room);

	memcpy(page, head, n);
	for (; n < 5u << 20; n += sizeof(line) - 1)
		memcpy(page + n, line, sizeof(line) - 1);
	(void)strcpy(page + n, "vllm:num_requests_running{engine=\"0\"} 9\n");
	f->metrics = page;
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 20000));
	cr_assert_eq(foreign_of(f), 9, "the last line was read");
	free(page);
	f->metrics = PAGE;
}

static uint64_t
life_of(const struct fake *f)
{
	return restart_life(seg, endpoint_of(f->url)->engine.slot);
}

#define STARTED(s) RUNNING("0") "process_start_time_seconds " s "\n"

static bool
is_out(void *f)
{
	return !is_up(f);
}

/* The replica that began later answers until the endpoint is out, then the other one. */
static void
take_turns(struct fake *f)
{
	f->metrics = STARTED("200");
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_out, f, 5000));
	f->metrics = STARTED("100");
	f->health = OK;
	cr_assert(wait_for(is_up, f, 5000));
	one_scrape(f);
}

Test(scrape, two_replicas_in_turn_are_at_most_one_restart)
{
	struct fake *f = fake_new("127.0.0.1");
	uint64_t life;

	f->metrics = STARTED("100");
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	life = life_of(f);
	for (int i = 0; i < 3; i++)
		take_turns(f);
	cr_assert_eq(life_of(f), life + 1);
}

/* What its cache holds, whether or not its load is known. */
Test(scrape, the_capacity_of_the_cache_is_learned)
{
	struct fake *f = fake_new("127.0.0.1");
	uint32_t slot;

	f->metrics = RUNNING("0");
	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	slot = endpoint_of(f->url)->engine.slot;
	cr_assert_eq(prefix_capacity(seg, slot), 0);
	f->metrics = RUNNING(
		"0") "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1.0\n";
	one_scrape(f);
	cr_assert_eq(prefix_capacity(seg, slot), 16000);
	f->metrics = RUNNING("0");
	one_scrape(f);
	cr_assert_eq(prefix_capacity(seg, slot), 16000, "a page without it changes nothing");
}
