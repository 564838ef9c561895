/*
 * Torture of the shared structures (README.md): the parts, their rounds, the result.
 *
 * A part runs in rounds of a second.  In each its crews start, are disturbed at random while the
 * master publishes, and end; then the master looks at what is left.
 */
#include "tests/torture/torture.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/check.h"
#include "shm/load.h"
#include "tests/torture/crowd.h"

#define ROUND_US 1000000u
#define PUBLISH_BURST 100 /* publications between two looks at the clock */
#define PAUSE_US 200u     /* where the master does not publish */
#define CHECK_EVERY_US 20000u
#define CHECK_SHOWN 20u /* findings that are printed */
#define CREWS 3
#define BUILD 1 /* of the segment: any */

struct seg *seg;
static struct findings { /* shared */
	uint64_t n[BAD_N];
	uint64_t first, first_us; /* enum bad + 1, clock_us; 0: none */
} * findings;
static uint64_t looks; /* of the invariant checker */

// clang-format off
static const struct {
	const char *name, *meaning;
} bad_rows[BAD_N] = {
	[BAD_READ]   = { "bad_read", "a table changed or was freed inside a section" },
	[BAD_ROW]    = { "older_row", "an endpoint is UP for a newer row than the reader's table has" },
	[BAD_ARENA]  = { "arena_kept", "an arena waits though every reader is dead and reaped" },
	[BAD_LIMIT]  = { "limit_exceeded", "more requests at an endpoint than its limit" },
	[BAD_SUM]    = { "wrong_sum", "a count is not what its holders hold" },
	[BAD_LEAK]   = { "leak", "something is reserved after all have left or were reaped" },
	[BAD_LOST]   = { "lost_wakeup", "a flag is READY, or a place is free, and its waiter sleeps on" },
	[BAD_EARLY]  = { "early", "a flag is READY without its notices" },
	[BAD_NOTICE] = { "wrong_notice", "a notice counted that must not, or did not that must" },
	[BAD_GEN]    = { "gen_again", "a gen was given out twice" },
	[BAD_TORN]   = { "torn", "an announcement or a note made of two" },
	[BAD_OLD]    = { "forgotten_seen", "an announcement from before announce_begin()" },
	[BAD_TRIALS] = { "two_trials", "two try one ejected endpoint" },
	[BAD_OUT]    = { "too_many_out", "more endpoints are ejected than may be" },
	[BAD_EJECTED] = { "wrongly_ejected", "an endpoint that never failed is ejected" },
	[BAD_FOREVER] = { "out_for_ever", "an ejected endpoint is not tried again" },
	[BAD_RATE]   = { "wrong_rate", "more or fewer requests of a client than burst and rate allow" },
	[BAD_HINT]   = { "wrong_hint", "an engine is found with a prompt of a former life, or not with a new one" },
	[BAD_CHECK]  = { "check", "the invariant checker found something: see its lines above" },
	[BAD_IDLE]   = { "idle", "a round in which a part did nothing" },
	[BAD_DEATH]  = { "strange_death", "a child died, and not of our signals: see its assertion" },
};

static const struct part {
	const char *name;
	unsigned share; /* of the time */
	bool publishes;
	unsigned disturb_us; /* between two children stopped or killed */
	struct crew crews[CREWS]; /* ended in this order */
	void (*begin)(void);
	void (*settle[2])(void);
} parts[] = {
	{ "domain", 4, true, 1500,
		{ { reader, 0, 4, STOPS | DIES, 1, reader_bury, NULL } },
		NULL, { readers_settle } },
	{ "calm", 2, true, 1500,
		{ { reserver, 4, 4, STOPS, 1, NULL, NULL },
		  { reader, 0, 4, STOPS | DIES, 1, reader_bury, NULL } },
		reservers_calm, { reservers_settle, readers_settle } },
	{ "storm", 3, true, 1500,
		{ { reserver, 4, 4, STOPS | DIES, 3, reserver_bury, NULL },
		  { reader, 0, 4, STOPS | DIES, 1, reader_bury, NULL } },
		reservers_storm, { reservers_settle, readers_settle } },
	{ "flags-calm", 3, false, 1500, /* no kick covers a lost wake-up */
		{ { waiter, 0, 2, STOPS, 1, NULL, waiter_wake },
		  { waiter, 2, 2, STOPS | DIES, 1, waiter_bury, waiter_wake },
		  { notifier, 4, 2, STOPS, 1, NULL, NULL } },
		NULL, { flags_settle } },
	{ "flags-storm", 3, false, 500,
		{ { waiter, 0, 3, STOPS, 1, NULL, waiter_wake },
		  { waiter, 3, 1, STOPS | DIES, 2, waiter_bury, waiter_wake },
		  { notifier, 4, 2, STOPS | DIES, 8, notifier_bury, NULL } },
		NULL, { flags_settle } },
	{ "eject-calm", 1, false, 500, /* nobody brings back what is too much */
		{ { recorder, 4, 4, STOPS, 1, NULL, NULL } },
		recorders_calm, { recorders_settle } },
	{ "eject-storm", 2, false, 500,
		{ { recorder, 4, 4, STOPS | DIES, 1, recorder_bury, NULL } },
		recorders_storm, { recorders_settle } },
	{ "quotas-calm", 1, false, 1500,
		{ { arriver, 4, 4, STOPS, 1, NULL, NULL } },
		arrivals_calm, { arrivals_settle } },
	{ "quotas-storm", 2, false, 1500,
		{ { arriver, 4, 4, STOPS | DIES, 3, arriver_bury, NULL } },
		arrivals_storm, { arrivals_settle } },
	{ "queue-calm", 1, false, 1500, /* nobody is called because another has died */
		{ { queuer, 0, 6, STOPS, 1, NULL, queuer_wake } },
		queuers_calm, { queuers_settle } },
	{ "queue-storm", 2, false, 1500,
		{ { queuer, 0, 6, STOPS | DIES, 1, queuer_bury, queuer_wake } },
		queuers_storm, { queuers_settle } },
	{ "changes", 1, false, 1500,
		{ { changer, 4, 1, STOPS | RULES, 1, NULL, NULL },
		  { requester, 0, 1, STOPS, 1, NULL, NULL } },
		NULL, { changes_settle } },
	{ "announce", 1, false, 1500,
		{ { listener, 1, 3, STOPS | DIES, 1, NULL, NULL },
		  { announcer, 0, 1, STOPS | DIES, 3, NULL, NULL } },
		NULL, { announce_settle } },
	{ "siblings", 1, false, 500,
		{ { collector, 3, 1, STOPS | DIES, 3, NULL, NULL },
		  { noter, 0, 3, STOPS | DIES, 1, NULL, NULL } },
		NULL, { noters_settle } },
	{ "prefix", 1, false, 1500,
		{ { indexer, 0, 3, STOPS | DIES, 1, NULL, NULL },
		  { scribbler, 3, 1, STOPS | DIES, 1, NULL, NULL } },
		NULL, { indexers_settle } },
};
// clang-format on
#define NPARTS (sizeof(parts) / sizeof(parts[0]))

struct options {
	uint64_t seconds, seed;
	const char *part; /* NULL: all */
	bool threads, first;
};

void
bad(enum bad what)
{
	uint64_t none = 0;

	seen_add(&findings->n[what], 1);
	if (__atomic_compare_exchange_n(&findings->first, &none, (uint64_t)what + 1, false,
		    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		seen_set(&findings->first_us, clock_us());
}

void *
shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED) {
		fprintf(stderr, "torture: no shared memory: %s\n", strerror(errno));
		exit(2);
	}
	return p;
}

enum end
life_end(const struct life *l)
{
	return (enum end)seen_get(l->end);
}

void
spin(uint64_t turns)
{
	for (volatile uint64_t i = 0; i < turns; i++)
		;
}

static bool
all_well(void)
{
	return seen_get(&findings->first) == 0;
}

static void
on_finding(const char *line, void *arg)
{
	unsigned *shown = arg;

	if (++*shown <= CHECK_SHOWN)
		printf("check: %s\n", line);
}

/* The invariant checker, in the middle of it all or when a round is over. */
static void
look_over(void)
{
	static unsigned shown;

	if (check_segment(seg, BUILD, publisher(), on_finding, &shown) > 0)
		bad(BAD_CHECK);
	looks++;
}

static void
publish_or_pause(const struct part *p)
{
	bool room = true;

	if (!p->publishes) {
		(void)usleep(PAUSE_US);
		return;
	}
	for (int i = 0; i < PUBLISH_BURST && room; i++)
		room = publish();
	/* to those who hold the arenas, or who only reserve */
	if (!room || p->crews[1].body != NULL)
		(void)sched_yield();
}

static void
round_run(const struct options *o, const struct part *p, uint64_t us)
{
	const uint64_t end_us = clock_us() + us;
	uint64_t disturb_us = 0, check_us = 0, now_us;

	for (int i = CREWS - 1; i >= 0; i--)
		if (p->crews[i].body != NULL)
			crowd_start(&p->crews[i]);
	while ((now_us = clock_us()) < end_us && (!o->first || all_well())) {
		publish_or_pause(p);
		crowd_resume(now_us);
		if (now_us >= check_us && !o->threads) { /* which have no pids to tell them apart */
			look_over();
			check_us = now_us + CHECK_EVERY_US;
		}
		if (now_us >= disturb_us) {
			crowd_disturb(now_us);
			disturb_us = now_us + p->disturb_us;
		}
	}
	for (int i = 0; i < CREWS; i++)
		if (p->crews[i].body != NULL)
			crowd_end(&p->crews[i]);
}

static void
part_run(const struct options *o, const struct part *p, uint64_t us)
{
	const uint64_t end_us = clock_us() + us;
	uint64_t now_us;

	if (p->begin != NULL)
		p->begin();
	while ((now_us = clock_us()) < end_us && (!o->first || all_well())) {
		const uint64_t left_us = end_us - now_us;

		/* no short round, in which a part might do nothing */
		round_run(o, p, left_us < ROUND_US || left_us >= 2 * ROUND_US ? ROUND_US : left_us);
		for (int i = 0; i < 2; i++)
			if (p->settle[i] != NULL)
				p->settle[i]();
		look_over();
	}
}

static void
parts_run(const struct options *o)
{
	unsigned shares = 0;

	for (size_t i = 0; i < NPARTS; i++)
		if (o->part == NULL || strcmp(o->part, parts[i].name) == 0)
			shares += parts[i].share;
	for (size_t i = 0; i < NPARTS; i++)
		if (o->part == NULL || strcmp(o->part, parts[i].name) == 0)
			part_run(o, &parts[i], o->seconds * 1000000 * parts[i].share / shares);
}

static int
report(const struct options *o, uint64_t began_us)
{
	crowd_report();
	printf("looked over %" PRIu64 " times\n", looks);
	readers_report();
	reservers_report();
	arrivals_report();
	flags_report();
	recorders_report();
	queuers_report();
	changes_report();
	announce_report();
	noters_report();
	indexers_report();
	for (int i = 0; i < BAD_N; i++)
		if (findings->n[i] > 0)
			printf("BAD %s=%" PRIu64 ": %s\n", bad_rows[i].name, findings->n[i],
				bad_rows[i].meaning);
	if (all_well()) {
		printf("good: nothing bad in %.1f s\n", (double)(clock_us() - began_us) / 1e6);
		return 0;
	}
	printf("torture: %s after %.1f s, seed=%" PRIu64 "\n", bad_rows[findings->first - 1].name,
		(double)(findings->first_us - began_us) / 1e6, o->seed);
	return 1;
}

static _Noreturn void
usage(void)
{
	fprintf(stderr,
		"usage: torture [--seconds N] [--seed S] [--part NAME] [--threads] [--first]\n"
		"  --threads  children are threads: for TSan\n"
		"  --first    end at the first thing that is bad\n"
		"parts:");
	for (size_t i = 0; i < NPARTS; i++)
		fprintf(stderr, " %s", parts[i].name);
	fprintf(stderr, "\n");
	exit(2);
}

static uint64_t
number(const char *text)
{
	char *end;
	const uint64_t v = strtoull(text, &end, 10);

	if (*text < '0' || *text > '9' || *end != '\0') {
		fprintf(stderr, "torture: not a number: %s\n", text);
		exit(2);
	}
	return v;
}

static const char *
part_name(const char *text)
{
	for (size_t i = 0; i < NPARTS; i++)
		if (strcmp(text, parts[i].name) == 0)
			return parts[i].name;
	fprintf(stderr, "torture: no such part: %s\n", text);
	usage();
}

static struct options
options_read(int argc, char **argv)
{
	struct options o = {.seconds = 20, .seed = clock_us()};

	for (int i = 1; i < argc; i++) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;

		if (strcmp(argv[i], "--threads") == 0) {
			o.threads = true;
			continue;
		}
		if (strcmp(argv[i], "--first") == 0) {
			o.first = true;
			continue;
		}
		if (value == NULL)
			usage();
		if (strcmp(argv[i], "--seconds") == 0)
			o.seconds = number(value);
		else if (strcmp(argv[i], "--seed") == 0)
			o.seed = number(value);
		else if (strcmp(argv[i], "--part") == 0)
			o.part = part_name(value);
		else
			usage();
		i++;
	}
	return o;
}

static void
set_up(const struct options *o)
{
	static const struct seg_sizes sizes = {.max_workers = CHILDREN / 2,
		.max_endpoints = ENDPOINTS + RECORDED,
		.max_pools = 1,
		.flags_per_worker = 64,
		.max_quotas = 8,
		.queue_slots = 64,
		.prefix_buckets = 64,
		.sibling_bytes = 4096};
	const int r = seg_new(&sizes, BUILD, &seg);

	if (r != 0) {
		fprintf(stderr, "torture: no segment: %s\n", strerror(-r));
		exit(2);
	}
	findings = shared(sizeof(*findings));
	for (uint32_t ep = 0; ep < ENDPOINTS + RECORDED; ep++)
		ep_slot_begin(seg, ep);
	crowd_init(o->threads, o->seed);
	readers_init();
	reservers_init();
	arrivals_init();
	flags_init();
	recorders_init();
	queuers_init();
	changes_init();
	announce_init();
	noters_init();
	indexers_init();
}

int
main(int argc, char **argv)
{
	const struct options o = options_read(argc, argv);
	const uint64_t began_us = clock_us();
	int r;

	printf("seconds=%" PRIu64 " seed=%" PRIu64 " children=%s\n", o.seconds, o.seed,
		o.threads ? "threads" : "processes");
	(void)fflush(stdout); /* or each child would print it again */
	set_up(&o);
	parts_run(&o);
	r = report(&o, began_us);
	seg_free(&seg);
	return r;
}
