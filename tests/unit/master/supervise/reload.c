/* Reloads: new workers end before their configuration is in force; an upgrade holds them back. */
#include "tests/unit/master/supervise/instance.h"

/* The worker of a generation of two: it ends by itself once its table is awaited. */
static int
worker_or_not(const struct heritage *h)
{
	char c = CH_READY;

	if (h->conf->workers == 1)
		return worker(h);
	(void)!write(h->channel, &c, 1);
	(void)usleep(200000);
	_exit(CHILD_EXIT_NO_RESPAWN);
}

TestSuite(reload, .init = setup, .fini = teardown, .timeout = 90);

Test(reload, new_workers_that_end_before_their_table_is_out)
{
	start();
	child = worker_or_not;
	hold_arenas();
	ask(2);
	cr_assert(until_phase("serving"));
	cr_expect_str_eq(refusal, "the new workers have ended before they could serve");
	cr_expect_eq(procs_generations(ps), 1);
	free_arenas();
	cr_expect(fleet_published(fleet));
	cr_expect_eq(reload_number(reload), fleet->config_number);
	ask(1);
	cr_assert(until_phase("serving"));
	cr_expect_str_empty(refusal);
	cr_expect_str_empty(fatal);
}

static bool
is_publishing(const void *arg)
{
	(void)arg;
	return procs_generations(ps) == 2 && !fleet_published(fleet);
}

/* Else it would take the slots that the older instance needs to serve again. */
Test(reload, an_upgrade_holds_a_reload_that_waits_for_another)
{
	start();
	child = busy_worker;
	hold_arenas();
	ask(2);
	cr_assert(until(is_publishing, NULL));
	ask(1);
	reload_hold(reload, true);
	free_arenas();
	cr_assert(until_phase("serving"));
	cr_expect(reload_is_idle(reload));
	reload_hold(reload, false);
	reload_turn(reload);
	cr_expect_not(reload_is_idle(reload));
}
