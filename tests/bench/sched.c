/*
 * sched: how well and how fast the router chooses.  README.md says what is modelled.
 *
 *	sched [--speed ROUNDS] [--plot FILE]	everything: two minutes; FILE is for sched_plot.gp
 *	sched --smoke				two scenarios, two fleets, two replays, no speed: 12 s of CPU
 *	sched --caches [--smoke]		the replays alone
 *
 * Exit status 1 if a mark is missed.
 */
#include "tests/bench/sched.h"

#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/load.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "tests/bench/sched_fleet.h"
#include "tests/bench/sched_sim.h"
#include "worker/schedule/select.h"

#define NELEMS(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_ENGINES 1024

/* Choosing by the scrape alone costs at least so many times our mean wait at the prefill engines. */
#define HERD 2.0

/* What may not be missed: our mean wait against the omniscient one's, as a factor, or so many milliseconds
 * more where both are next to nothing (a prefill takes 220 on average).  Who else uses the engines we
 * know from the scrape, a second late; the omniscient knows at once. */
static const struct near {
	double factor, slack_ms;
} alone = {1.10, 2}, beside_others = {1.50, 15};

static const struct scenario {
	const char *name; /* of at most 10 letters */
	uint32_t routers, workers, n, requests;
	double load;
	bool bursty, weighted;
	uint32_t cached;
	double strangers; /* share of the load that comes past the router, to a quarter of the engines */
	const struct near *near;
	bool smoke;
} scenarios[] = {
	{"4", 1, 1, 4, 200000, 0.8, false, false, 0, 0, &alone, false},
	{"64", 1, 8, 64, 200000, 0.8, false, false, 0, 0, &alone, true},
	{"64-burst", 1, 64, 64, 200000, 0.7, true, false, 0, 0, &alone, false},
	{"256-0.9", 1, 16, 256, 200000, 0.9, false, false, 0, 0, &alone, false},
	{"1024-burst", 1, 64, 1024, 200000, 0.8, true, false, 0, 0, &alone, false},
	{"2-routers", 2, 8, 64, 200000, 0.7, true, false, 0, 0, &beside_others, false},
	{"strangers", 1, 8, 64, 200000, 0.7, false, false, 0, 0.2, &beside_others, true},
	{"weights", 1, 8, 63, 200000, 0.8, false, true, 0, 0, &alone, false},
	{"caches", 1, 8, 64, 200000, 0.8, false, false, 32, 0, &alone, false},
};
#define NSCENARIOS NELEMS(scenarios)

enum row_id {
	ROUND_ROBIN,
	RANDOM,
	POWER_OF_TWO,
	LEAST_REQUESTS,
	LEAST_TOKENS,
	SESSION,
	PREFIX,
	SCRAPED,
	ALL_REQUESTS,
	ALL_TOKENS,
	WORK_LEFT,
	NROWS
};
static const struct line {
	const char *name;
	enum placer placer;
	enum policy_kind policy;
	enum load_kind load;
	bool smoke;
} rows[NROWS] = {
	[ROUND_ROBIN] = {"round_robin", BY_ROUTER, POLICY_ROUND_ROBIN, LOAD_REQUESTS, false},
	[RANDOM] = {"random", BY_ROUTER, POLICY_RANDOM, LOAD_REQUESTS, false},
	[POWER_OF_TWO] = {"power_of_two, requests", BY_ROUTER, POLICY_POWER_OF_TWO, LOAD_REQUESTS,
		false},
	[LEAST_REQUESTS] = {"least_loaded, requests", BY_ROUTER, POLICY_LEAST_LOADED, LOAD_REQUESTS,
		true},
	[LEAST_TOKENS] = {"least_loaded, tokens", BY_ROUTER, POLICY_LEAST_LOADED, LOAD_TOKENS,
		true},
	[SESSION] = {"session", BY_ROUTER, POLICY_SESSION, LOAD_REQUESTS, false},
	[PREFIX] = {"prefix, requests", BY_ROUTER, POLICY_PREFIX, LOAD_REQUESTS, false},
	[SCRAPED] = {"by the scrape alone", BY_SCRAPE, POLICY_LEAST_LOADED, LOAD_REQUESTS, true},
	[ALL_REQUESTS] = {"omniscient, requests", BY_ALL, POLICY_LEAST_LOADED, LOAD_REQUESTS, true},
	[ALL_TOKENS] = {"omniscient, tokens", BY_ALL, POLICY_LEAST_LOADED, LOAD_TOKENS, true},
	[WORK_LEFT] = {"knows the work left", BY_WORKLEFT, POLICY_LEAST_LOADED, LOAD_REQUESTS,
		false},
};

static struct sim_result (
	*results)[NROWS]; /* [NSCENARIOS], shared with the processes that simulate */
static bool smoke;

void
die(const char *what)
{
	perror(what);
	exit(1);
}

/* --- running ------------------------------------------------------------------------------------- */

static void
run(size_t i)
{
	/* the longest first */
	const size_t scenario = NSCENARIOS - 1 - i / NROWS, row = i % NROWS;
	const struct scenario *sc = &scenarios[scenario];
	uint32_t weights[MAX_ENGINES];
	double speed = 0;
	struct trace trace;

	if (smoke && !(sc->smoke && rows[row].smoke))
		return;
	for (uint32_t k = 0; k < sc->n; k++)
		speed += weights[k] = sc->weighted ? 1u << k % 3 : 1;
	/* the seed is the scenario's: every policy gets the same requests */
	trace_init(&trace, &(struct trace_plan){.seed = scenario + 1,
				   .requests = smoke ? sc->requests / 2 : sc->requests,
				   .routers = sc->routers,
				   .workers = sc->workers,
				   .n = sc->n,
				   .speed = speed,
				   .load = sc->load,
				   .bursty = sc->bursty,
				   .strangers = sc->strangers});
	sim_run(&(struct sim_plan){.trace = &trace,
			.routers = sc->routers,
			.workers = sc->workers,
			.n = sc->n,
			.weights = weights,
			.cached = sc->cached,
			.placer = rows[row].placer,
			.policy = rows[row].policy,
			.load = rows[row].load},
		&results[scenario][row]);
	trace_fini(&trace);
}

static void
reap(void)
{
	int status;

	if (wait(&status) == -1)
		die("wait");
	if (status != 0) {
		(void)fprintf(stderr, "sched: a simulation failed, status 0x%x\n", status);
		exit(1);
	}
}

void
sched_spread(void (*job)(size_t), size_t n)
{
	const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	long running = 0;

	for (size_t i = 0; i < n; i++) {
		pid_t pid;

		if (running == cpus) {
			reap();
			running--;
		}
		pid = fork();
		if (pid == -1)
			die("fork");
		if (pid == 0) {
			job(i);
			_exit(0);
		}
		running++;
	}
	while (running-- > 0)
		reap();
}

/* --- tables -------------------------------------------------------------------------------------- */

enum cell { PREFILL_WAIT, DECODE_WAIT, LONGEST };

static void
print_cell(const struct sim_result *r, enum cell cell)
{
	char text[32];

	if (cell == LONGEST)
		(void)snprintf(text, sizeof(text), "%u %5u", r->longest[ROLE_PREFILL],
			r->longest[ROLE_DECODE]);
	else
		(void)snprintf(text, sizeof(text), "%.*f %6.0f", r->mean_s[cell] < 0.01 ? 1 : 0,
			1000 * r->mean_s[cell], 1000 * r->p99_s[cell]);
	printf("%13s", text);
}

static void
print_table(const char *title, enum cell cell)
{
	printf("\n%s\n%-24s", title, "");
	for (size_t i = 0; i < NSCENARIOS; i++)
		if (!smoke || scenarios[i].smoke)
			printf("%13s", scenarios[i].name);
	printf("\n");
	for (size_t row = 0; row < NROWS; row++) {
		if (smoke && !rows[row].smoke)
			continue;
		printf("%-24s", rows[row].name);
		for (size_t i = 0; i < NSCENARIOS; i++)
			if (!smoke || scenarios[i].smoke)
				print_cell(&results[i][row], cell);
		printf("\n");
	}
}

/* What tests/bench/sched_plot.gp draws. */
static void
write_plot(const char *path)
{
	FILE *f = fopen(path, "w");

	if (f == NULL)
		die(path);
	for (int p99 = 0; p99 < 2; p99++) {
		(void)fprintf(f, "policy");
		for (size_t i = 0; i < NSCENARIOS; i++)
			(void)fprintf(f, " %s", scenarios[i].name);
		for (size_t row = 0; row < NROWS; row++) {
			(void)fprintf(f, "\n\"%s\"", rows[row].name);
			for (size_t i = 0; i < NSCENARIOS; i++)
				(void)fprintf(f, " %.5f",
					p99 ? results[i][row].p99_s[ROLE_PREFILL]
					    : results[i][row].mean_s[ROLE_PREFILL]);
		}
		(void)fprintf(f, "\n\n\n");
	}
	(void)fprintf(f, "time scrape least_loaded round_robin\n");
	for (int k = 0; k < SIM_SERIES; k++)
		(void)fprintf(f, "%.1f %u %u %u\n", k * SIM_SERIES_S, results[1][SCRAPED].series[k],
			results[1][LEAST_REQUESTS].series[k], results[1][ROUND_ROBIN].series[k]);
	if (fclose(f) != 0)
		die(path);
}

/* --- marks --------------------------------------------------------------------------------------- */

int
sched_mark(bool ok, const char *what)
{
	printf("  %s %s\n", ok ? "ok  " : "MISS", what);
	return !ok;
}

/* Our mean wait against the omniscient one's of the same measure. */
static int
mark_near(const struct scenario *sc, const struct sim_result *r, enum role role, bool tokens)
{
	const double ours = r[tokens ? LEAST_TOKENS : LEAST_REQUESTS].mean_s[role];
	const double ideal = r[tokens ? ALL_TOKENS : ALL_REQUESTS].mean_s[role];
	char text[160];

	(void)snprintf(text, sizeof(text),
		"%s: %s, least_loaded by %s: %.1f ms, omniscient %.1f: %.3f of it (at most %.2f, or %.0f ms more)",
		sc->name, role_name(role), tokens ? "tokens" : "requests", 1000 * ours,
		1000 * ideal, ours / ideal, sc->near->factor, sc->near->slack_ms);
	return sched_mark(
		ours <= ideal * sc->near->factor || ours <= ideal + sc->near->slack_ms / 1000,
		text);
}

static int
mark_herd(const struct scenario *sc, const struct sim_result *r)
{
	const double factor =
		r[SCRAPED].mean_s[ROLE_PREFILL] / r[LEAST_REQUESTS].mean_s[ROLE_PREFILL];
	char text[160];
	bool ok = factor >= HERD;

	/* the longest at few engines is one long prompt's, and strangers' is nobody's choice */
	for (int role = 0; role < ROLE_N; role++)
		ok &= sc->n < 64 || sc->strangers > 0 ||
		      r[SCRAPED].longest[role] >= HERD * r[LEAST_REQUESTS].longest[role];
	(void)snprintf(text, sizeof(text),
		"%s: by the scrape alone: %.1f x our wait; longest %u and %u, ours %u and %u (at least %.0f x)",
		sc->name, factor, r[SCRAPED].longest[ROLE_PREFILL], r[SCRAPED].longest[ROLE_DECODE],
		r[LEAST_REQUESTS].longest[ROLE_PREFILL], r[LEAST_REQUESTS].longest[ROLE_DECODE],
		HERD);
	return sched_mark(ok, text);
}

/* Rounds that go in step are worse than chance. */
static int
mark_rounds(const struct scenario *sc, const struct sim_result *r)
{
	const double turns = r[ROUND_ROBIN].mean_s[ROLE_PREFILL],
		     chance = r[RANDOM].mean_s[ROLE_PREFILL];
	char text[160];

	(void)snprintf(text, sizeof(text),
		"%s: prefill, round_robin: %.0f ms, random %.0f (not more than that)", sc->name,
		1000 * turns, 1000 * chance);
	return sched_mark(turns <= chance, text);
}

/*
 * 64 workers, started at the same instant, choose among 64 idle endpoints, none seeing what the others do:
 * each gives its place back before the next looks.  Then all take what they chose, and choose again.
 * Returns the most that one endpoint got.
 */
static uint32_t
crowd(enum policy_kind policy, bool own_cursors, int times)
{
	enum { N = 64 };
	uint32_t weights[N], cursors[N], chosen[N], got[N] = {0}, most = 0;
	struct fleet f;

	for (uint32_t i = 0; i < N; i++) {
		weights[i] = 1;
		cursors[i] = own_cursors ? select_cursor(i) : 0;
	}
	fleet_init(&f,
		&(struct fleet_plan){.workers = N, .n = N, .weights = weights, .policy = policy});
	for (int k = 0; k < times; k++) {
		const struct table_pick *picks = rcu_current(f.writer)->pools[0].picks[0];

		for (uint32_t w = 0; w < N; w++) {
			uint64_t rnd = w + 1;
			struct selected held;
			const struct selection s = {.seg = f.seg,
				.slot = w,
				.table = rcu_enter(f.seg, w),
				.pool = &rcu_current(f.writer)->pools[0],
				.role = ROLE_PREFILL,
				.model = TABLE_ANY_MODEL,
				.groups = SELECT_ALL_GROUPS,
				.tokens = 1,
				.cursor = &cursors[w],
				.rnd = &rnd};

			chosen[w] = (uint32_t)(select_reserve(&s, &held) - picks);
			load_tokens_sub(f.seg, w, picks[chosen[w]].slot, held.tokens);
			load_release(f.seg, w, picks[chosen[w]].slot);
			rcu_leave(f.seg, w);
		}
		for (uint32_t w = 0; w < N; w++) {
			(void)load_reserve(f.seg, w, picks[chosen[w]].slot, 0);
			got[chosen[w]]++;
		}
	}
	for (uint32_t i = 0; i < N; i++)
		most = got[i] > most ? got[i] : most;
	fleet_fini(&f);
	return most;
}

static int
mark_crowds(void)
{
	static const enum policy_kind kinds[] = {POLICY_ROUND_ROBIN, POLICY_LEAST_LOADED};
	enum { TIMES = 4 };
	int missed = 0;

	for (size_t i = 0; i < NELEMS(kinds); i++) {
		const uint32_t ours = crowd(kinds[i], true, TIMES),
			       herd = crowd(kinds[i], false, TIMES);
		char text[160];

		(void)snprintf(text, sizeof(text),
			"64 workers choose at the same instant among 64 idle endpoints, 4 times, %s: "
			"at most %u on one; cursors all at 0: %u",
			policy_name(kinds[i]), ours, herd);
		missed += sched_mark(ours == TIMES && herd > 8 * TIMES, text);
	}
	return missed;
}

static int
mark_all(void)
{
	int missed = 0;

	printf("\nmarks\n");
	for (size_t i = 0; i < NSCENARIOS; i++) {
		if (smoke && !scenarios[i].smoke)
			continue;
		for (int role = 0; role < ROLE_N; role++)
			for (int tokens = 0; tokens < 2; tokens++)
				missed += mark_near(&scenarios[i], results[i], role, tokens != 0);
		missed += mark_herd(&scenarios[i], results[i]);
		if (!smoke)
			missed += mark_rounds(&scenarios[i], results[i]);
	}
	return missed + mark_crowds();
}

static void
print_extras(void)
{
	printf("\nof the prompts an engine had the prefix in its cache (caches): ");
	for (size_t row = 0; row < NROWS; row++)
		printf("%s%s %.0f%%", row > 0 ? ", " : "", rows[row].name,
			100 * results[NSCENARIOS - 1][row].cache_hits);
	printf("\nshares of engines of weight 1, 2, 4 (weights): ");
	for (size_t row = 0; row < NROWS; row++) {
		const double *share = results[NSCENARIOS - 2][row].share;

		printf("%s%s %.0f %.0f %.0f%%", row > 0 ? ", " : "", rows[row].name, 100 * share[0],
			100 * share[1], 100 * share[2]);
	}
	printf("\n");
}

int
main(int argc, char **argv)
{
	static const struct option options[] = {{"speed", required_argument, NULL, 's'},
		{"plot", required_argument, NULL, 'p'}, {"smoke", no_argument, NULL, 'k'},
		{"caches", no_argument, NULL, 'c'}, {0}};
	const size_t bytes = NSCENARIOS * sizeof(*results);
	const char *plot = NULL;
	bool caches = false;
	int rounds = 2, missed = 0, c;

	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1)
		switch (c) {
		case 's':
			rounds = atoi(optarg);
			break;
		case 'p':
			plot = optarg;
			break;
		case 'k':
			smoke = true;
			break;
		case 'c':
			caches = true;
			break;
		default:
			return 2;
		}
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	if (caches)
		return sched_caches(smoke) > 0;
	results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (results == MAP_FAILED)
		die("mmap");
	sched_spread(run, NSCENARIOS * NROWS);
	print_table("wait at the prefill engine, ms: mean, p99", PREFILL_WAIT);
	print_table("decode: what an idle engine would not have taken, ms: mean, p99", DECODE_WAIT);
	print_table("most requests in one engine: prefill, decode", LONGEST);
	if (!smoke)
		print_extras();
	missed += mark_all();
	missed += sched_thresholds(smoke);
	missed += sched_caches(smoke);
	if (plot != NULL)
		write_plot(plot);
	if (!smoke)
		missed += sched_speed(rounds);
	(void)munmap(results, bytes);
	if (missed > 0)
		printf("%d marks missed\n", missed);
	return missed > 0;
}
