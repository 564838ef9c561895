/* What an upgrade needs before it begins: no new instance is started. */
#include "tests/unit/master/supervise/instance.h"

TestSuite(upgrade, .init = setup, .fini = teardown, .timeout = 90);

static bool
is_publishing(const void *arg)
{
	(void)arg;
	return procs_generations(ps) == 2 && !fleet_published(fleet);
}

static bool
has_failed(const void *arg)
{
	(void)arg;
	return seg_slab(seg, SLOT_MASTER(seg))->counters[M_UPGRADES_FAILED] == 1;
}

Test(upgrade, a_socket_that_cannot_be_passed_is_not_left_out)
{
	struct inherit in;

	start();
	inherit_init(&in);
	in.nlisten = INHERIT_LISTEN_MAX - 1;
	cr_expect(listeners_pass(listeners, &in));
	cr_expect_not(listeners_pass(listeners, &in));
}

/* If the new instance failed in its trial, this one would have to start as many workers again. */
Test(upgrade, a_reload_that_is_waited_for_takes_the_slots)
{
	child = busy_worker;
	start();
	hold_arenas();
	ask(2);
	cr_assert(until(is_publishing, NULL));
	cr_assert_null(upgrade_start(upgrade, "test"));
	log_errors_to(on_error, NULL);
	free_arenas();
	cr_assert(until(has_failed, NULL));
	cr_expect_str_eq(
		logged, "upgrade failed, this instance serves: old generations have all slots");
}

static bool
for_some_turns(const void *arg)
{
	static unsigned turns;

	(void)arg;
	return turns++ == 20;
}

static bool
is_second(const void *arg)
{
	(void)arg;
	return reload_number(reload) == 2;
}

Test(upgrade, a_reload_is_finished_first)
{
	start();
	hold_arenas();
	ask(2);
	cr_assert(until(is_publishing, NULL));
	cr_assert_null(upgrade_start(upgrade, "test"));
	cr_assert(until(for_some_turns, NULL));
	cr_expect_not(has_failed(NULL), "there is no program");
	free_arenas();
	cr_assert(until(has_failed, NULL));
	cr_expect(is_second(NULL));
}

Test(upgrade, a_reload_waits_for_its_end)
{
	start();
	cr_assert_null(upgrade_start(upgrade, "test"));
	ask(2);
	cr_expect(reload_is_idle(reload));
	cr_assert(until(has_failed, NULL));
	cr_expect(until(is_second, NULL));
}
