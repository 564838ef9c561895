/* Drains that outlive what they are of: read before the first table, kept for found endpoints that are away. */
#include "tests/unit/master/fleet.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "master/fleet/discover.h"
#include "master/fleet/drain.h"
#include "master/fleet/keep.h"
#include "master/fleet/state_file.h"
#include "master/fleet/weight.h"
#include "shm/base/clock.h"
#include "shm/metrics.h"

#define P1 "http://127.0.0.1:8101"
#define P2 "http://127.0.0.1:8102"
#define D1 "http://127.0.0.1:8201"

static char path[64];

static void
remove_files(void)
{
	char *command = mem_printf("rm -f %s %s.lock %s.broken", path, path, path);

	cr_expect_eq(system(command), 0);
	free(command);
}

static void
setup(void)
{
	(void)snprintf(path, sizeof(path), "/tmp/pdr-keep-%d", (int)getpid());
	remove_files(); /* of a process that had this number and was killed */
	log_setup(LOG_L_ERROR, LOG_F_LOGFMT);
	fleet_setup(8, 4);
}

static void
teardown(void)
{
	fleet_teardown();
	remove_files();
}

TestSuite(keep, .init = setup, .fini = teardown);

/* P1 and D1 configured; other prefill engines may be announced. */
static struct conf *
conf_of(bool announced)
{
	static char network[] = "127.0.0.0/8", *networks[] = {network};
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");

	conf_endpoint(p, ROLE_PREFILL, P1);
	conf_endpoint(p, ROLE_DECODE, D1);
	if (announced) {
		p->announce_networks = networks;
		p->nannounce_networks = 1;
	}
	return c;
}

static void
announce(const char *url)
{
	char text[64];
	struct found one = {.as = {.role = ROLE_PREFILL, .weight = 1}};

	(void)snprintf(text, sizeof(text), "%s", url != NULL ? url : "");
	one.as.url = text;
	fleet_found(fleet, "main", DISCOVER_ANNOUNCED, &one, url != NULL);
}

static void
settle(void)
{
	while (!fleet_state_is_settled(fleet)) {
		(void)usleep(100);
		fleet_sigchld(fleet);
	}
}

static int
operator(int (*fn)(struct fleet *, const char *, struct evbuffer *), const char *what)
{
	struct evbuffer *out = evbuffer_new();
	int r = fn(fleet, what, out);

	evbuffer_free(out);
	return r;
}

static void
restart(void)
{
	fleet_free(&fleet);
	event_base_free(base);
	seg_free(&seg);
	fleet_setup(8, 4);
	fleet_keep(fleet, path);
}

static bool
is_drained(const char *url)
{
	return endpoint_of(url)->drained &&
	       ep_state_get(seg, endpoint_of(url)->engine.slot) == EP_DRAINING;
}

Test(keep, drained_in_the_first_table)
{
	fleet_keep(fleet, path);
	apply(conf_of(false));
	cr_expect_eq(access(path, F_OK), -1, "nothing to say");
	cr_assert_eq(operator(drain_begin, P1), 0);
	restart();
	apply(conf_of(false));
	cr_expect(is_drained(P1));
	cr_expect_eq(ep_state_get(seg, row_of(P1)->slot), EP_DRAINING);
	cr_expect_not(is_drained(D1));
	cr_assert_eq(operator(drain_end, P1), 0);
	restart();
	apply(conf_of(false));
	cr_expect_not(is_drained(P1));
}

static uint32_t
weight_in_table(const char *url)
{
	return row_of(url)->weight;
}

static struct conf *
conf_weighing(uint32_t weight)
{
	struct conf *c = conf_of(false);

	c->pools[0].endpoints[0].weight = weight;
	c->pools[0].endpoints[1].weight = 1;
	return c;
}

/* Until the configuration has another one than when the operator set it: the last word counts. */
Test(keep, a_weight_in_the_first_table)
{
	fleet_keep(fleet, path);
	apply(conf_weighing(2));
	cr_assert_eq(operator(weight_set, "50 " P1), 0);
	cr_expect_eq(weight_in_table(P1), 50, "at once");
	apply(conf_weighing(2));
	cr_expect_eq(weight_in_table(P1), 50);
	settle();
	restart();
	apply(conf_weighing(2));
	cr_expect_eq(weight_in_table(P1), 50);
	cr_expect_eq(weight_in_table(D1), 1);
	apply(conf_weighing(3));
	cr_expect_eq(weight_in_table(P1), 3);
	settle();
	restart();
	apply(conf_weighing(2));
	cr_expect_eq(weight_in_table(P1), 2, "nor is it in the file");
}

Test(keep, the_configuration_changes_a_weight_while_pdrouter_does_not_run)
{
	fleet_keep(fleet, path);
	apply(conf_weighing(2));
	cr_assert_eq(operator(weight_set, "50 " P1), 0);
	settle();
	restart();
	apply(conf_weighing(4));
	cr_expect_eq(weight_in_table(P1), 4);
}

Test(keep, a_weight_is_taken_back)
{
	apply(conf_weighing(2));
	cr_assert_eq(operator(weight_set, "50 host=127.0.0.1 role=prefill"), 0);
	cr_assert_eq(weight_in_table(P1), 50);
	cr_assert_eq(weight_in_table(D1), 1);
	cr_assert_eq(operator(weight_set, "default " P1), 0);
	cr_expect_eq(weight_in_table(P1), 2);
	cr_expect_eq(operator(weight_set, "0 " P1), -1);
	cr_expect_eq(operator(weight_set, "101 " P1), -1);
	cr_expect_eq(operator(weight_set, "5x " P1), -1);
	cr_expect_eq(operator(weight_set, P1), -1);
	cr_expect_eq(operator(weight_set, "5 " P2), -1);
	cr_expect_eq(operator(weight_set, "5 host=10.0.0.1"), -1);
	cr_expect_eq(weight_in_table(P1), 2);
}

Test(keep, a_found_one_comes_back_with_its_weight)
{
	apply(conf_of(true));
	announce(P2);
	cr_assert_eq(operator(weight_set, "50 " P2), 0);
	announce(NULL);
	cr_assert_not_null(keep_first(fleet->keep));
	cr_expect_eq(operator(drain_end, P2), -1, "it was not drained");
	announce(P2);
	cr_expect_eq(endpoint_of(P2)->weight, 50);
	announce(NULL);
	cr_expect_eq(operator(weight_set, "default " P2), 0);
	cr_expect_null(keep_first(fleet->keep));
	announce(P2);
	cr_expect_eq(endpoint_of(P2)->weight, 0);
}

Test(keep, the_next_instance_has_the_weights)
{
	struct membuf passed = {0};

	apply(conf_weighing(2));
	cr_assert_eq(operator(weight_set, "50 " P1), 0);
	fleet_pass_drains(fleet, &passed);
	restart();
	apply(conf_weighing(2));
	cr_expect_eq(weight_in_table(P1), 2);
	fleet_take_drains(fleet, &passed);
	cr_expect_eq(weight_in_table(P1), 50);
	membuf_free(&passed);
}

Test(keep, one_that_is_no_longer_configured_is_forgotten)
{
	struct conf *c;

	fleet_keep(fleet, path);
	apply(conf_of(false));
	cr_assert_eq(operator(drain_begin, D1), 0);
	restart();
	c = conf_make();
	conf_endpoint(conf_pool(c, "main", "m"), ROLE_PREFILL, P1);
	apply(c);
	cr_expect_null(keep_first(fleet->keep));
	apply(conf_of(false));
	cr_expect_not(is_drained(D1));
	restart();
	apply(conf_of(false));
	cr_expect_not(is_drained(D1), "nor is it in the file");
}

Test(keep, a_found_one_comes_back_drained)
{
	apply(conf_of(true));
	announce(P2);
	cr_assert_eq(operator(drain_begin, P2), 0);
	announce(NULL);
	cr_assert_null(endpoint_of(P2));
	cr_assert_not_null(keep_first(fleet->keep));
	announce(P2);
	cr_expect(is_drained(P2));
	cr_expect_null(keep_first(fleet->keep));
	cr_assert_eq(operator(drain_end, P2), 0);
	announce(NULL);
	announce(P2);
	cr_expect_not(is_drained(P2));
}

Test(keep, a_found_one_that_is_away_may_be_undrained)
{
	apply(conf_of(true));
	announce(P2);
	cr_assert_eq(operator(drain_begin, P2), 0);
	announce(NULL);
	cr_expect_eq(operator(drain_end, "127.0.0.1:8102 role=decode"), -1);
	cr_expect_eq(operator(drain_end, "127.0.0.1:8102 role=prefill"), 0);
	cr_expect_eq(operator(drain_end, P2), -1, "no such endpoint");
	announce(P2);
	cr_expect_not(is_drained(P2));
}

Test(keep, it_is_waited_for_over_a_restart_and_not_for_ever)
{
	fleet_keep(fleet, path);
	apply(conf_of(true));
	announce(P2);
	cr_assert_eq(operator(drain_begin, P2), 0);
	restart();
	apply(conf_of(true));
	cr_assert_not_null(keep_first(fleet->keep), "its source has not named it yet");
	announce(P2);
	cr_expect(is_drained(P2));
	announce(NULL);
	keep_first(fleet->keep)->since_ms -= KEEP_AWAY_MS - 1000;
	keep_changed(fleet->keep);
	cr_assert_not_null(keep_first(fleet->keep));
	keep_first(fleet->keep)->since_ms -= 1000;
	keep_changed(fleet->keep);
	cr_expect_null(keep_first(fleet->keep));
	announce(P2);
	cr_expect_not(is_drained(P2));
}

/* A program writes the file, and leaves out an engine that it restarts. */
Test(keep, one_of_an_endpoints_file_comes_back_drained)
{
	static char file[] = "eps.yaml";
	struct conf *with = conf_of(false), *without = conf_make(), *again = conf_of(false);

	conf_endpoint(conf_pool(without, "main", "m"), ROLE_PREFILL, P1);
	with->pools[0].endpoints_file = without->pools[0].endpoints_file = file;
	again->pools[0].endpoints_file = file;
	apply(with);
	cr_assert_eq(operator(drain_begin, D1), 0);
	apply(without);
	cr_assert_not_null(keep_first(fleet->keep));
	apply(again);
	cr_expect(is_drained(D1));
	apply(conf_of(false)); /* no longer a file */
	cr_expect(is_drained(D1));
}

Test(keep, a_source_that_is_no_longer_configured_names_none)
{
	apply(conf_of(true));
	announce(P2);
	cr_assert_eq(operator(drain_begin, P2), 0);
	apply(conf_of(false));
	cr_expect_null(keep_first(fleet->keep));
}

/* The file as another program left it. */
Test(keep, a_broken_file_is_set_aside_and_counted)
{
	char *aside = mem_printf("%s.broken", path);
	FILE *out = fopen(path, "w");

	(void)fputs("{\"pdrouter_state\": 1, \"drained\": [{", out);
	(void)fclose(out);
	fleet_keep(fleet, path);
	apply(conf_of(false));
	cr_expect_eq(access(aside, F_OK), 0);
	cr_expect_eq(metric_sum(seg, M_STATE_FAILED), 1);
	cr_expect_not(is_drained(P1));
	cr_assert_eq(operator(drain_begin, P1), 0);
	cr_expect_str_eq(keep_error(fleet->keep), "");
	restart();
	apply(conf_of(false));
	cr_expect(is_drained(P1));
	free(aside);
}

Test(keep, what_is_away_is_bounded)
{
	FILE *out = fopen(path, "w");
	size_t n = 0;

	(void)fputs("{\"pdrouter_state\": 1, \"drained\": [", out);
	for (int i = 0; i < KEEP_AWAY_MAX + 10; i++)
		(void)fprintf(out,
			"%s{\"pool\":\"main\",\"role\":\"prefill\",\"url\":\"http://10.0.%d.%d:1\"}",
			i > 0 ? "," : "", i / 250, i % 250);
	(void)fputs("]}", out);
	(void)fclose(out);
	fleet_keep(fleet, path);
	apply(conf_of(true));
	for (struct away *a = keep_first(fleet->keep); a != NULL; a = TAILQ_NEXT(a, link))
		n++;
	cr_expect_eq(n, KEEP_AWAY_MAX);
}

/* The other one had the file meanwhile, with drains of its own. */
Test(keep, an_instance_that_serves_again_writes_its_own_drains)
{
	FILE *f;

	fleet_keep(fleet, path);
	apply(conf_of(false));
	cr_assert_eq(operator(drain_begin, P1), 0);
	settle();
	fleet_hold_state(fleet, true);
	f = fopen(path, "w");
	cr_assert_not_null(f);
	(void)fputs("{\"pdrouter_state\": 1, \"drained\": []}\n", f);
	(void)fclose(f);
	fleet_hold_state(fleet, false);
	restart();
	apply(conf_of(false));
	cr_expect(is_drained(P1));
}

/* --- a disk that takes its time -------------------------------------------------------------- */

static unsigned *syncs, slow_ms; /* of all processes */

/* In place of the C library's. */
int
fsync(int fd)
{
	(void)fd;
	if (syncs != NULL)
		__atomic_add_fetch(syncs, 1, __ATOMIC_RELAXED);
	(void)usleep(slow_ms * 1000);
	return 0;
}

Test(keep, a_slow_disk_does_not_stop_the_loop)
{
	uint64_t from;

	syncs = mmap(
		NULL, sizeof(*syncs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fleet_keep(fleet, path);
	apply(conf_of(false));
	slow_ms = 300;
	from = clock_ms();
	cr_assert_eq(operator(drain_begin, P1), 0);
	cr_assert_eq(operator(drain_begin, D1), 0);
	cr_assert_eq(operator(drain_end, P1), 0);
	cr_expect_lt(clock_ms() - from, 600);
	cr_expect_not(fleet_state_is_settled(fleet));
	slow_ms = 0;
	settle();
	cr_expect_eq(*syncs, 4, "two writes: the first drain, and the state after all three");
	restart();
	apply(conf_of(false));
	cr_expect_not(is_drained(P1));
	cr_expect(is_drained(D1));
}
