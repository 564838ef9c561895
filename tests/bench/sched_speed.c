/*
 * What one selection costs: rcu_enter, the policy, the reservation of the request and its tokens,
 * rcu_leave, as plan.c does it, in 1 to 64 processes at once on one segment.
 *
 * CPU time of the processes, so that what else runs on the machine counts little; the releases that
 * keep the load where it is are outside the measured part.  A loop of nothing but selections: the words
 * of the lightest endpoints bounce between the cores more than any traffic would make them.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/load.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "tests/bench/sched.h"
#include "tests/bench/sched_fleet.h"
#include "worker/schedule/select.h"

#define MAX_WORKERS 64
#define BATCH 64 /* selections between two looks at the clock, which costs a system call */

static const uint32_t sizes[] = {4, 64, 256, 1024}, crowds[] = {1, 2, 8, MAX_WORKERS};
#define NSIZES (sizeof(sizes) / sizeof(sizes[0]))
#define NCROWDS (sizeof(crowds) / sizeof(crowds[0]))

static const struct {
	const char *name;
	enum policy_kind policy;
	enum load_kind load;
	bool keyed, weighted;
} kinds[] = {
	{"round_robin", POLICY_ROUND_ROBIN, LOAD_REQUESTS, false, false},
	{"random", POLICY_RANDOM, LOAD_REQUESTS, false, false},
	{"power_of_two", POLICY_POWER_OF_TWO, LOAD_REQUESTS, false, false},
	{"least_loaded, requests", POLICY_LEAST_LOADED, LOAD_REQUESTS, false, false},
	{"least_loaded, tokens", POLICY_LEAST_LOADED, LOAD_TOKENS, false, false},
	{"least_loaded, weights", POLICY_LEAST_LOADED, LOAD_TOKENS, false, true},
	{"session", POLICY_SESSION, LOAD_REQUESTS, true, false},
	{"session, weights", POLICY_SESSION, LOAD_REQUESTS, true, true},
	{"prefix", POLICY_PREFIX, LOAD_TOKENS, true, false},
	{"prefix, weights", POLICY_PREFIX, LOAD_TOKENS, true, true},
};
#define NKINDS (sizeof(kinds) / sizeof(kinds[0]))

/* One per process, shared with its parent, a cache line of its own. */
struct timings {
	_Alignas(128) uint64_t ns;
	uint64_t n, release_ns;
};

static uint64_t
cpu_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

struct held {
	uint32_t ep, tokens;
};

/* xorshift, for prompts and keys */
static uint64_t
next(uint64_t *x)
{
	*x ^= *x << 13;
	*x ^= *x >> 7;
	*x ^= *x << 17;
	return *x;
}

static void
work(const struct fleet *f, uint32_t slot, bool keyed, uint64_t enough_ns, struct timings *spent)
{
	uint64_t rnd = slot * 2654435769u + 1, keys = rnd;
	uint32_t cursor = slot;
	struct held held[BATCH];

	while (spent->ns < enough_ns) {
		const uint64_t begin = cpu_ns();
		uint64_t chosen;

		for (int k = 0; k < BATCH; k++) {
			const struct table *t = rcu_enter(f->seg, slot);
			const struct selection s = {.seg = f->seg,
				.slot = slot,
				.table = t,
				.pool = &t->pools[0],
				.role = ROLE_PREFILL,
				.model = TABLE_ANY_MODEL,
				.groups = SELECT_ALL_GROUPS,
				.tokens = 100 + (uint32_t)(next(&keys) % 4000),
				.mean_tokens = 2000,
				.keyed = keyed,
				.key = next(&keys),
				.now_ms = clock_ms(),
				.foreign_max_age_ms = 60000,
				.cursor = &cursor,
				.rnd = &rnd};
			struct selected selected;

			held[k].ep = select_reserve(&s, &selected)->slot;
			held[k].tokens = selected.tokens;
			rcu_leave(f->seg, slot);
		}
		chosen = cpu_ns();
		for (int k = 0; k < BATCH; k++) {
			load_tokens_sub(f->seg, slot, held[k].ep, held[k].tokens);
			load_release(f->seg, slot, held[k].ep);
		}
		spent->ns += chosen - begin;
		spent->release_ns += cpu_ns() - chosen;
		spent->n += BATCH;
	}
}

/* Engines are never all equally busy: what stands there already, held by a slot that chooses nothing. */
static void
fill(const struct fleet *f)
{
	uint64_t x = 4711;

	for (uint32_t ep = 0; ep < 2 * f->n; ep++) {
		load_foreign_set(
			f->seg, ep, (uint32_t)(next(&x) % 2 * (next(&x) % 10)), clock_ms());
		for (uint64_t k = next(&x) % 40; k > 0; k--) {
			(void)load_reserve(f->seg, MAX_WORKERS, ep, 0);
			(void)load_tokens_add(f->seg, MAX_WORKERS, ep, (uint32_t)(next(&x) % 4000));
		}
	}
}

/* Nanoseconds of a selection; *ret_release of giving it back. */
static double
measure(const struct fleet *f, uint32_t crowd, bool keyed, struct timings *timings,
	double *ret_release)
{
	/* together at least a time slice for each, so that they get in each other's way */
	const uint64_t enough_ns = crowd > 8 ? 4000000 : 8000000;
	struct timings sum = {0};
	int gate[2];
	char c;

	memset(timings, 0, crowd * sizeof(*timings));
	if (pipe(gate) == -1)
		die("pipe");
	for (uint32_t i = 0; i < crowd; i++) {
		const pid_t pid = fork();

		if (pid == -1)
			die("fork");
		if (pid > 0)
			continue;
		(void)close(gate[1]);
		if (read(gate[0], &c, 1) != 0) /* the parent closes: all start at once */
			_exit(1);
		work(f, i, keyed, enough_ns, &timings[i]);
		_exit(0);
	}
	(void)close(gate[0]);
	(void)close(gate[1]);
	for (uint32_t i = 0; i < crowd; i++) {
		int status;

		if (wait(&status) == -1 || status != 0)
			die("a selecting process failed");
	}
	for (uint32_t i = 0; i < crowd; i++) {
		sum.ns += timings[i].ns;
		sum.release_ns += timings[i].release_ns;
		sum.n += timings[i].n;
	}
	*ret_release = (double)sum.release_ns / (double)sum.n;
	return (double)sum.ns / (double)sum.n;
}

static void
measure_kind(
	size_t kind, uint32_t n, struct timings *timings, double best[NCROWDS], double *release)
{
	struct fleet f;
	uint32_t weights[1024];

	for (uint32_t i = 0; i < n; i++)
		weights[i] = kinds[kind].weighted ? 1u << i % 3 : 1;
	fleet_init(&f, &(struct fleet_plan){.workers = MAX_WORKERS,
			       .n = n,
			       .weights = weights,
			       .policy = kinds[kind].policy,
			       .loads = {kinds[kind].load, kinds[kind].load}});
	fill(&f);
	for (size_t c = 0; c < NCROWDS; c++) {
		double r, ns = measure(&f, crowds[c], kinds[kind].keyed, timings, &r);

		if (best[c] == 0 || ns < best[c])
			best[c] = ns;
		if (*release == 0 || r < *release)
			*release = r;
	}
	fleet_fini(&f);
}

int
sched_speed(int rounds)
{
	static double best[NKINDS][NSIZES][NCROWDS];
	double release = 0;
	int missed = 0;
	struct timings *timings = mmap(NULL, MAX_WORKERS * sizeof(*timings), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (timings == MAP_FAILED)
		die("mmap");
	for (int round = 0; round < rounds; round++)
		for (size_t k = 0; k < NKINDS; k++)
			for (size_t i = 0; i < NSIZES; i++)
				measure_kind(k, sizes[i], timings, best[k][i], &release);
	(void)munmap(timings, MAX_WORKERS * sizeof(*timings));

	printf("\none selection and its reservation, ns of CPU, with 1, 2, 8, 64 processes at it at once\n");
	printf("%-24s", "endpoints of the role");
	for (size_t i = 0; i < NSIZES; i++)
		printf("%22u", sizes[i]);
	printf("\n");
	for (size_t k = 0; k < NKINDS; k++) {
		printf("%-24s", kinds[k].name);
		for (size_t i = 0; i < NSIZES; i++) {
			printf("  ");
			for (size_t c = 0; c < NCROWDS; c++) {
				printf("%5.0f", best[k][i][c]);
				missed += sizes[i] <= 64 ? best[k][i][c] >= 1000
							 : best[k][i][c] >= 3000;
			}
		}
		printf("\n");
	}
	printf("%-24s%22.0f\nmark: under 1000 ns at 64 endpoints, under 3000 at 1024: %s\n",
		"giving it back", release, missed == 0 ? "ok" : "MISSED");
	return missed;
}
