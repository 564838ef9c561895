/* The place of an older instance is taken, or not: the test is the older one. */
#include "tests/unit/master/supervise/instance.h"

static int older[2]; /* the talk: [0] is the older instance's end */

static void
setup_talk(void)
{
	int notices[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, older), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, notices), 0);
	inherit_init(&inherit);
	inherit.instance = 10;
	inherit.from = (struct inherit_old){9, older[1], notices[1]};
	(void)close(notices[0]);
}

static void
setup_newer(void)
{
	setup_talk();
	setup_heir();
}

static int oldest[2]; /* the same of the oldest of many */

static void
setup_last_of_many(void)
{
	int pair[2];

	setup_talk();
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, oldest), 0);
	for (uint32_t i = 0; i < 8; i++) {
		cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
		inherit.old[i] = (struct inherit_old){i + 1, i == 0 ? oldest[1] : pair[0], pair[1]};
	}
	inherit.nold = 8;
	setup_heir();
}

static void
teardown_newer(void)
{
	(void)close(older[0]);
	teardown();
}

TestSuite(takeover, .init = setup_newer, .fini = teardown_newer, .timeout = 90);
TestSuite(takeover_last, .init = setup_last_of_many, .fini = teardown_newer, .timeout = 90);

static void
say(const char *line)
{
	cr_assert_eq(send(older[0], line, strlen(line), MSG_NOSIGNAL), (ssize_t)strlen(line));
}

/* The line that an older instance is told next; "": none. */
static const char *
line_at(int fd)
{
	static char line[600];
	const ssize_t n = recv(fd, line, sizeof(line) - 1, MSG_DONTWAIT);

	line[n > 0 ? n : 0] = '\0';
	return line;
}

static bool
is_told(const void *line)
{
	const char *was;

	do
		was = line_at(older[0]);
	while (was[0] != '\0' && strcmp(was, line) != 0);
	return was[0] != '\0';
}

static bool
serves(const void *arg)
{
	(void)arg;
	return takeover_waits_for(takeover) == 1;
}

static bool
is_at_end(const void *arg)
{
	(void)arg;
	return refused > 0;
}

static bool
is_settled(const void *arg)
{
	(void)arg;
	return fleet_is_settled(fleet);
}

static bool
has_failed(const void *arg)
{
	(void)arg;
	return failed[0] != '\0';
}

static void
begin_trial(void)
{
	start();
	cr_assert(until(is_told, "ready"));
	say("take");
	cr_assert(until(serves, NULL));
}

static void
some_turns(void)
{
	for (int i = 0; i < 5; i++) {
		(void)event_base_loop(base, EVLOOP_NONBLOCK);
		takeover_turn(takeover);
	}
}

/* The older one must see the end of this instance, and serve again. */
Test(takeover, an_instance_that_stops_does_not_take)
{
	start();
	cr_assert(until(is_told, "ready"));
	takeover_stop(takeover, false);
	say("take");
	some_turns();
	cr_expect_eq(takeover_waits_for(takeover), 0);
	cr_expect_str_empty(line_at(older[0]));
}

Test(takeover, the_older_one_ends_before_this_one_is_ready)
{
	(void)close(older[0]);
	cr_assert(until(is_at_end, NULL));
	start();
	cr_assert(until(is_settled, NULL));
	some_turns();
	cr_expect_eq(refused, 1);
	older[0] = dup(STDIN_FILENO);
}

Test(takeover, in_its_trial_an_instance_that_stops_takes_the_older_one_with_it)
{
	begin_trial();
	takeover_stop(takeover, false);
	cr_expect_eq(takeover_waits_for(takeover), 1);
	cr_expect_str_eq(line_at(older[0]), "stop");
}

Test(takeover, in_its_trial_one_that_cannot_go_on_leaves_the_older_one_in_place)
{
	begin_trial();
	cr_expect(takeover_give_up(takeover, "this is why"));
	takeover_stop(takeover, false);
	cr_expect_eq(takeover_waits_for(takeover), 0);
	cr_expect_str_eq(line_at(older[0]), "error this is why");
	cr_expect_str_empty(line_at(older[0]));
	say("final");
	some_turns();
	cr_expect_not(takeover_is_final(takeover));
}

Test(takeover, after_the_trial_there_is_nothing_to_give_up)
{
	begin_trial();
	say("final");
	some_turns();
	cr_expect_not(takeover_give_up(takeover, "this is why"));
	cr_expect_eq(takeover_waits_for(takeover), 1);
}

static int
dies_when_it_serves(const struct heritage *h)
{
	return ready_until(h, CH_SERVE);
}

Test(takeover, workers_that_die_again_and_again_in_the_trial)
{
	child = dies_when_it_serves;
	begin_trial();
	cr_assert(until(has_failed, NULL));
	cr_expect_eq(seg_slab(seg, SLOT_MASTER(seg))->counters[M_WORKER_RESTARTS], 3);
}

Test(takeover, what_is_no_number_is_ignored)
{
	const int64_t *left = &seg_slab(seg, SLOT_MASTER(seg))->gauges[G_OLD_REQUESTS];
	static const char *const wrong[] = {
		"left", "left -1", "left 3x", "left 4294967296", "later 3", "lefty 3"};

	begin_trial();
	say("left 7");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		say(wrong[i]);
	for (int i = 0; i < 2; i++)
		some_turns();
	cr_expect_eq(*left, 7);
	say("left 8 and what another version adds");
	some_turns();
	cr_expect_eq(*left, 8);
}

/* An upgrade that fails cuts no request. */
Test(takeover_last, the_oldest_of_many_must_end_when_the_trial_is_over)
{
	start();
	cr_assert(until(is_told, "ready"));
	say("take");
	some_turns();
	cr_expect_str_eq(line_at(oldest[0]), "report");
	cr_expect_str_empty(line_at(oldest[0]));
	say("final");
	some_turns();
	cr_expect_str_eq(line_at(oldest[0]), "end");
}
