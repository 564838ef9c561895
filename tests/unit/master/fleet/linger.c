/* How long engines that are no longer known serve. */
#include "tests/unit/master/fleet.h"

#include "master/fleet/linger.h"
#include "master/fleet/state.h"
#include "shm/base/clock.h"
#include "tests/unit/running_time.h"

#define P1 "http://127.0.0.1:8101"
#define P2 "http://127.0.0.1:8102"
#define D1 "http://127.0.0.1:8201"

static struct lingering lingering;
static unsigned over;

static void
on_over(void *arg)
{
	(void)arg;
	over++;
}

static void
set_up(const char *url, enum ep_state state)
{
	state_set(endpoint_of(url), state, false);
}

/* P1, which is up, is no longer known; P2 is in its place, and D1 is of the other role. */
static void
setup(void)
{
	struct targets former = {.v = mem_array(1, sizeof(*former.v)), .n = 1};
	struct conf *c;

	fleet_setup(4, 2);
	c = conf_make();
	c->health_interval_ms = 3600000;
	c->fall = 1000;
	conf_endpoint(conf_pool(c, "main", "m"), ROLE_PREFILL, P1);
	conf_endpoint(&c->pools[0], ROLE_PREFILL, P2);
	conf_endpoint(&c->pools[0], ROLE_DECODE, D1);
	apply(c);
	set_up(P1, EP_UP);
	set_up(D1, EP_UP);
	over = 0;
	linger_init(&lingering, fleet, "main", ROLE_PREFILL, on_over, NULL);
	former.v[0] = (struct target){.url = mem_strdup(P1)};
	linger_begin(&lingering, &former);
	cr_assert_eq(lingering.leaving.n, 1);
}

static void
teardown(void)
{
	linger_fini(&lingering);
	fleet_teardown();
}

TestSuite(linger, .init = setup, .fini = teardown, .timeout = 60);

static void
run(uint64_t ms)
{
	const struct timeval tv = clock_tv(ms);

	(void)event_base_loopexit(base, &tv);
	(void)event_base_dispatch(base);
}

static void
expect_over(void)
{
	while (over == 0)
		run(10);
	cr_assert_eq(lingering.leaving.n, 0);
	run(50);
	cr_assert_eq(over, 1);
}

Test(linger, it_ends_when_another_engine_is_up)
{
	run(100);
	cr_assert_eq(over, 0);
	set_up(P2, EP_UP);
	expect_over();
}

Test(linger, it_ends_when_no_former_engine_is_up)
{
	run(50);
	cr_assert_eq(over, 0);
	set_up(P1, EP_DOWN);
	expect_over();
}

Test(linger, it_ends_after_10_s)
{
	lingering.since_ms -= 9000;
	run(100);
	cr_assert_eq(over, 0);
	lingering.since_ms -= 1000;
	expect_over();
}

Test(linger, it_does_not_begin_beside_an_engine_that_is_up)
{
	struct targets former = {.v = mem_array(1, sizeof(*former.v)), .n = 1};

	set_up(P2, EP_UP);
	former.v[0] = (struct target){.url = mem_strdup(P1)};
	linger_begin(&lingering, &former);
	cr_assert_eq(lingering.leaving.n, 0);
	run(50);
	cr_assert_eq(over, 0, "the caller has seen it");
}

/* A second reload goes on with the time of the first one. */
Test(linger, a_second_reload_does_not_prolong_it)
{
	const uint64_t since_ms = lingering.since_ms;
	struct targets former = {.v = mem_array(1, sizeof(*former.v)), .n = 1};

	run(20);
	former.v[0] = (struct target){.url = mem_strdup(P1)};
	linger_begin(&lingering, &former);
	cr_assert_eq(lingering.leaving.n, 1);
	cr_assert_eq(lingering.since_ms, since_ms);
}

/* --- a pool of several models --------------------------------------------------------------- */

#define P3 "http://127.0.0.1:8103"

static void
serves(const char *url, const char *list)
{
	size_t left_out;

	cr_assert_gt(models_read(list, strlen(list), NULL, 0, &endpoint_of(url)->engine.models,
			     &left_out),
		0);
}

/* Of a pool that learns its models, P1 with the model `a` leaves, P2 with `b` stays and P3 is new. */
static void
setup_models(void)
{
	struct conf *c;

	fleet_setup(4, 2);
	c = conf_make();
	c->health_interval_ms = 3600000;
	c->fall = 1000;
	conf_endpoint(conf_pool(c, "main", NULL), ROLE_PREFILL, P1);
	conf_endpoint(&c->pools[0], ROLE_PREFILL, P2);
	conf_endpoint(&c->pools[0], ROLE_PREFILL, P3);
	apply(c);
	serves(P1, "{\"data\":[{\"id\":\"a\"}]}");
	serves(P2, "{\"data\":[{\"id\":\"b\"}]}");
	set_up(P1, EP_UP);
	set_up(P2, EP_UP);
	over = 0;
	linger_init(&lingering, fleet, "main", ROLE_PREFILL, on_over, NULL);
}

TestSuite(linger_models, .init = setup_models, .fini = teardown, .timeout = 60);

static void
leave(const char *url)
{
	struct targets former = {.v = mem_array(1, sizeof(*former.v)), .n = 1};

	former.v[0] = (struct target){.url = mem_strdup(url)};
	linger_begin(&lingering, &former);
}

Test(linger_models, it_ends_when_an_engine_of_the_same_models_is_up)
{
	leave(P1);
	run(100);
	cr_assert_eq(over, 0, "P2 serves another model");
	serves(P3, "{\"data\":[{\"id\":\"a\"},{\"id\":\"lora\"}]}");
	set_up(P3, EP_UP);
	expect_over();
}

Test(linger_models, it_ends_when_all_others_are_up)
{
	serves(P3, "{\"data\":[{\"id\":\"b\"}]}");
	set_up(P3, EP_UP);
	leave(P1);
	expect_over(); /* its model is no longer served by intention */
}

static void
leave_both(void)
{
	struct targets former = {.v = mem_array(2, sizeof(*former.v)), .n = 2};

	former.v[0] = (struct target){.url = mem_strdup(P1)};
	former.v[1] = (struct target){.url = mem_strdup(P2)};
	linger_begin(&lingering, &former);
}

Test(linger_models, one_engine_may_be_in_the_place_of_several)
{
	serves(P3, "{\"data\":[{\"id\":\"a\"},{\"id\":\"b\"}]}");
	set_up(P3, EP_UP);
	leave_both();
	cr_expect_eq(lingering.leaving.n, 0);
	serves(P3, "{\"data\":[{\"id\":\"a\"},{\"id\":\"c\"}]}");
	leave_both();
	cr_expect_eq(lingering.leaving.n, 2, "b is not served");
}

Test(linger_models, under_pairing_require_the_other_engine_is_of_the_same_group)
{
	struct conf *c = confs[nconfs - 1];

	c->pools[0].pairing = PAIRING_REQUIRE;
	c->pools[0].endpoints[0].group = (char[]){"rack-1"};
	c->pools[0].endpoints[1].group = (char[]){"rack-2"};
	c->pools[0].endpoints[2].group = (char[]){"rack-1"};
	serves(P2, "{\"data\":[{\"id\":\"a\"}]}");
	leave(P1);
	run(100);
	cr_assert_eq(over, 0, "decode engines of rack-1 have no other partner");
	serves(P3, "{\"data\":[{\"id\":\"a\"}]}");
	set_up(P3, EP_UP);
	expect_over();
}
