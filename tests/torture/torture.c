/*
 * Torture of the shared structures: readers and reservers as processes, the master publishes, stops
 * and kills.
 *
 * Three parts of a third of the time each.  "domain": readers alone, so that publications are as
 * many as can be; a missing barrier in rcu.c shows here within seconds.  "calm": reservers too,
 * stopped but never killed, so that an exact count kept beside the words can say whether a limit
 * was exceeded.  "storm": everybody is killed at random instructions, reaped and respawned; at the
 * end all words must be 0.  Readers are killed in all three.
 *
 * Oracles: a table's checksum and version do not change inside a section (built with PDROUTER_DEBUG
 * a freed arena is poisoned); no grant above the limit; nothing reserved after the last reap;
 * nobody dies of anything but our signals.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/load.h"
#include "shm/rcu.h"
#include "shm/seg.h"
#include "shm/table.h"

#define READERS 4u   /* slots 0 .. 3 */
#define RESERVERS 4u /* slots 4 .. 7 */
#define CHILDREN (READERS + RESERVERS)
#define ENDPOINTS 3u
#define LIMIT 5u
#define HOLD 6u /* a reserver's own most: together far above the limits */

#define KILL_EVERY_US 1500
#define STOPPED_US 4000
#define PUBLISH_BURST 100 /* publications between two looks at the clock */

/* Beside the segment, and by other means: what the children saw. */
struct seen {
	_Alignas(SHM_LINE) uint64_t reads, bad_reads, grants, refusals;
};
struct oracle {
	_Alignas(SHM_LINE) uint64_t held[ENDPOINTS]; /* calm part only: exact */
	_Alignas(SHM_LINE) uint64_t exceeded, leave; /* leave: reservers give all back and exit */
	uint64_t calm;
	struct seen child[CHILDREN];
};

static struct seg *seg;
static struct oracle *oracle;

static uint64_t
next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void
spin(uint64_t turns)
{
	for (volatile uint64_t i = 0; i < turns; i++)
		;
}

static void
reader(uint32_t slot, uint64_t rnd)
{
	struct seen *seen = &oracle->child[slot];

	for (;;) {
		const struct table *t = rcu_enter(seg, slot);
		const uint64_t version = t->version;
		bool good = table_intact(t, seg->arena_bytes);

		if (next_random(&rnd) % 16 == 0) {
			spin(next_random(&rnd) % 1000);
			good = good && table_intact(t, seg->arena_bytes);
		}
		seen->bad_reads += !good || t->version != version;
		seen->reads++;
		rcu_leave(seg, slot);
		/* with few CPUs: be preempted outside, so that arenas come free */
		if (seen->reads % 256 == 0)
			(void)sched_yield();
	}
}

static uint64_t
flag_value(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static void
exceeded(void)
{
	__atomic_fetch_add(&oracle->exceeded, 1, __ATOMIC_SEQ_CST);
}

static bool
take(uint32_t slot, uint32_t ep)
{
	struct seen *seen = &oracle->child[slot];

	if (!load_reserve(seg, slot, ep, LIMIT)) {
		seen->refusals++;
		return false;
	}
	seen->grants++;
	if (load_count(seg, ep) > LIMIT)
		exceeded();
	if (flag_value(&oracle->calm) &&
		__atomic_add_fetch(&oracle->held[ep], 1, __ATOMIC_SEQ_CST) > LIMIT)
		exceeded();
	return true;
}

static void
give(uint32_t slot, uint32_t ep)
{
	if (flag_value(&oracle->calm))
		__atomic_sub_fetch(&oracle->held[ep], 1, __ATOMIC_SEQ_CST);
	load_release(seg, slot, ep);
}

static void
reserver(uint32_t slot, uint64_t rnd)
{
	const bool greedy = rnd % 8 < 3; /* never yields: preempted, and killed, anywhere */
	uint32_t mine[HOLD], n = 0;

	while (!flag_value(&oracle->leave)) {
		const uint64_t r = next_random(&rnd);
		const uint32_t ep = (uint32_t)(r >> 32) % ENDPOINTS;

		if (n < HOLD && r % 2 == 0) {
			if (take(slot, ep))
				mine[n++] = ep;
		} else if (n > 0) {
			give(slot, mine[--n]);
		}
		if (greedy || r >> 8 & 255)
			continue;
		spin(r >> 16 & 255);
		(void)sched_yield();
	}
	while (n > 0)
		give(slot, mine[--n]);
}

/* The master's side. */
struct run {
	struct rcu_writer *writer;
	uint64_t rnd, lives, version;
	struct child {
		pid_t pid;
		bool stopped;
		uint64_t continue_us;
	} child[CHILDREN];
	uint64_t published, full, kills, in_section, in_operation, given_back, stops,
		strange_deaths;
};

static void
spawn(struct run *r, uint32_t slot)
{
	const uint64_t seed = (r->rnd ^ ++r->lives * UINT64_C(0x9e3779b97f4a7c15)) | 8;
	const pid_t pid = fork();

	if (pid == -1) {
		perror("fork");
		exit(2);
	}
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (slot < READERS)
			reader(slot, seed);
		else
			reserver(slot, seed);
		_exit(0);
	}
	r->child[slot] = (struct child){.pid = pid};
}

/* All that a master does after waitpid returned. */
static void
bury(struct run *r, uint32_t slot)
{
	r->in_section += seg->readers[slot].ctr != 0;
	r->in_operation += seg->procs[slot].journal != 0;
	rcu_reap(seg, slot);
	r->given_back += load_reap(seg, slot);
}

static void
kill_child(struct run *r, uint32_t slot)
{
	int status = 0;

	(void)kill(r->child[slot].pid, SIGKILL);
	(void)waitpid(r->child[slot].pid, &status, 0);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		r->strange_deaths++; /* an assertion of the child's was faster */
	r->kills++;
	bury(r, slot);
}

/* False if all arenas wait for readers. */
static bool
publish(struct run *r)
{
	struct table_builder b;
	void *arena = rcu_arena_get(r->writer);
	struct table *t;

	if (arena == NULL) {
		r->full++;
		return false;
	}
	t = table_begin(&b, arena, seg->arena_bytes, 1, ENDPOINTS);
	t->version = ++r->version;
	for (uint32_t i = 0; i < ENDPOINTS; i++)
		table_endpoint_at(&b, i)->tag = (uint32_t)r->version;
	table_pool_at(&b, 0)->name = table_str(&b, "torture");
	if (table_end(&b) != 0) {
		fprintf(stderr, "a small table did not fit its arena\n");
		exit(2);
	}
	rcu_publish(r->writer, arena);
	r->published++;
	return true;
}

static void
disturb(struct run *r, uint32_t slot, uint64_t now_us, bool calm)
{
	struct child *c = &r->child[slot];

	if (c->stopped)
		return;
	if (next_random(&r->rnd) % 3 == 0 || (calm && slot >= READERS)) {
		(void)kill(c->pid, SIGSTOP);
		c->stopped = true;
		c->continue_us = now_us + STOPPED_US;
		r->stops++;
	} else {
		kill_child(r, slot);
		spawn(r, slot);
	}
}

static void
resume(struct run *r, uint64_t now_us)
{
	for (uint32_t i = 0; i < CHILDREN; i++) {
		struct child *c = &r->child[i];

		if (!c->stopped || now_us < c->continue_us)
			continue;
		(void)kill(c->pid, SIGCONT);
		c->stopped = false;
	}
}

/* Publishes and disturbs the slots below `slots` for so long. */
static void
part(struct run *r, uint64_t us, uint32_t slots, bool calm)
{
	const uint64_t end_us = clock_us() + us;
	uint64_t disturb_us = 0;

	for (;;) {
		const uint64_t now_us = clock_us();

		if (now_us >= end_us)
			break;
		for (int i = 0; i < PUBLISH_BURST && publish(r); i++)
			;
		if (slots > READERS)
			(void)sched_yield();
		resume(r, now_us);
		if (now_us < disturb_us)
			continue;
		disturb(r, (uint32_t)(next_random(&r->rnd) % slots), now_us, calm);
		disturb_us = now_us + KILL_EVERY_US;
	}
	resume(r, UINT64_MAX);
}

static uint64_t
reserved(void)
{
	uint64_t n = 0;

	for (uint32_t ep = 0; ep < ENDPOINTS; ep++)
		n += load_count(seg, ep);
	return n;
}

static void
domain_part(struct run *r, uint64_t us)
{
	for (uint32_t slot = 0; slot < READERS; slot++)
		spawn(r, slot);
	part(r, us, READERS, false);
}

/* The reservers leave by themselves; what they leave behind is not reaped but must be nothing. */
static uint64_t
calm_part(struct run *r, uint64_t us)
{
	oracle->calm = 1;
	for (uint32_t slot = READERS; slot < CHILDREN; slot++)
		spawn(r, slot);
	part(r, us, CHILDREN, true);
	__atomic_store_n(&oracle->leave, 1, __ATOMIC_SEQ_CST);
	for (uint32_t slot = READERS; slot < CHILDREN; slot++) {
		int status = 0;

		(void)waitpid(r->child[slot].pid, &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			r->strange_deaths++;
	}
	return reserved();
}

static uint64_t
storm_part(struct run *r, uint64_t us)
{
	oracle->calm = oracle->leave = 0;
	for (uint32_t slot = READERS; slot < CHILDREN; slot++)
		spawn(r, slot);
	part(r, us, CHILDREN, false);
	for (uint32_t slot = 0; slot < CHILDREN; slot++)
		kill_child(r, slot);
	return reserved();
}

static int
report(const struct run *r, uint64_t left_calm, uint64_t left_storm)
{
	struct seen sum = {0};
	unsigned waiting = rcu_poll(r->writer);

	for (uint32_t i = 0; i < CHILDREN; i++) {
		sum.reads += oracle->child[i].reads;
		sum.bad_reads += oracle->child[i].bad_reads;
		sum.grants += oracle->child[i].grants;
		sum.refusals += oracle->child[i].refusals;
	}
	printf("published=%" PRIu64 " found_no_arena=%" PRIu64 " reads=%" PRIu64 " grants=%" PRIu64
	       " refusals=%" PRIu64 "\n",
		r->published, r->full, sum.reads, sum.grants, sum.refusals);
	printf("kills=%" PRIu64 " in_section=%" PRIu64 " in_operation=%" PRIu64
	       " given_back=%" PRIu64 " stops=%" PRIu64 "\n",
		r->kills, r->in_section, r->in_operation, r->given_back, r->stops);
	printf("BAD: reads=%" PRIu64 " limit_exceeded=%" PRIu64 " left_calm=%" PRIu64
	       " left_storm=%" PRIu64 " strange_deaths=%" PRIu64 " arenas_waiting=%u\n",
		sum.bad_reads, oracle->exceeded, left_calm, left_storm, r->strange_deaths, waiting);
	return sum.bad_reads > 0 || oracle->exceeded > 0 || left_calm > 0 || left_storm > 0 ||
	       r->strange_deaths > 0 || waiting > 0;
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

int
main(int argc, char **argv)
{
	static const struct seg_sizes sizes = {.max_workers = CHILDREN / 2,
		.max_endpoints = ENDPOINTS,
		.max_pools = 1,
		.flags_per_worker = 64};
	uint64_t seconds = 20, seed = clock_us(), left_calm, left_storm;
	struct run run = {0};
	int r;

	for (int i = 1; i < argc; i += 2) {
		if (i + 1 < argc && strcmp(argv[i], "--seconds") == 0) {
			seconds = number(argv[i + 1]);
		} else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0) {
			seed = number(argv[i + 1]);
		} else {
			fprintf(stderr, "usage: torture [--seconds N] [--seed S]\n");
			return 2;
		}
	}
	printf("seconds=%" PRIu64 " seed=%" PRIu64 "\n", seconds, seed);
	(void)fflush(stdout); /* or each child would print it again */
	r = seg_new(&sizes, 1, &seg);
	oracle = mmap(
		NULL, sizeof(*oracle), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (r != 0 || oracle == MAP_FAILED) {
		fprintf(stderr, "torture: no shared memory: %s\n", strerror(r != 0 ? -r : errno));
		return 2;
	}
	run.rnd = seed | 1;
	run.writer = rcu_writer_new(seg);
	(void)publish(&run);
	domain_part(&run, seconds * 1000000 / 3);
	left_calm = calm_part(&run, seconds * 1000000 / 3);
	left_storm = storm_part(&run, seconds * 1000000 / 3);
	r = report(&run, left_calm, left_storm);
	rcu_writer_free(&run.writer);
	seg_free(&seg);
	return r;
}
