/* Prompts that have beginnings in common, engines with prefix caches: who finds them, and at what price. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shm/base/mem.h"
#include "tests/bench/sched.h"
#include "tests/bench/sched_replay.h"
#include "tests/bench/sched_rivals.h"
#include "tests/bench/sched_sim.h"

#define NELEMS(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_ENGINES 256

/* Marks: against the oracle, against one worker, against one router. */
#define MEAN 1.10
#define P99 1.20
#define HITS 0.02 /* below the oracle's */
#define WORKERS 1.02
#define ROUTERS 1.10
#define TALK_S 0.015 /* half of the notifier's 10 ms at each side, and what the sockets take */
#define LOAD 0.7     /* of engines without caches */

/* The whole trace; for a large fleet copies of its first quarter of an hour. */
#define ALL UINT32_MAX
#define QUARTER 3000
#define SHORT 4000 /* requests of --smoke */

/* Which worker gets a request is drawn.  The figures of several workers are means of so many draws: at 256 engines single
 * ones differ by 4%. */
#define DRAWS 3

static const struct scenario {
	const char *name;
	enum replay_kind kind;
	uint32_t n, requests, copies;
	double held; /* share of the working set that the caches of all engines together hold */
	bool smoke;
} scenarios[] = {
	{"4, 5%", REPLAY_CONVERSATION, 4, ALL, 1, 0.05, false},
	{"4, 20%", REPLAY_CONVERSATION, 4, ALL, 1, 0.20, true},
	{"4, 50%", REPLAY_CONVERSATION, 4, ALL, 1, 0.50, false},
	{"8, 5%", REPLAY_CONVERSATION, 8, ALL, 1, 0.05, false},
	{"8, 20%", REPLAY_CONVERSATION, 8, ALL, 1, 0.20, false},
	{"8, 50%", REPLAY_CONVERSATION, 8, ALL, 1, 0.50, false},
	{"32, 20%", REPLAY_CONVERSATION, 32, ALL, 4, 0.20, false},
	{"256, 20%", REPLAY_CONVERSATION, 256, QUARTER, 32, 0.20, false},
	{"4, 5%", REPLAY_AGENTS, 4, 12000, 1, 0.05, false},
	{"4, 20%", REPLAY_AGENTS, 4, 12000, 1, 0.20, false},
	{"8, 50%", REPLAY_AGENTS, 8, 12000, 1, 0.50, true},
	{"32, 20%", REPLAY_AGENTS, 32, 48000, 1, 0.20, false},
	{"256, 20%", REPLAY_AGENTS, 256, 96000, 1, 0.20, false},
};
#define NSCENARIOS NELEMS(scenarios)

enum row_id {
	ORACLE,
	LEAST,
	PREFIX,
	SGLANG,
	SGLANG_TIGHT,
	DYNAMO,
	DYNAMO_PREFILL,
	LLMD,
	OURS,
	OURS_8,
	LEAST_2,
	OURS_2,
	SIBLINGS_2,
	NROWS
};
static const struct row {
	const char *name;
	uint32_t routers, workers;
	enum policy_kind policy;
	rival_fn *place; /* NULL: the policy */
	struct rival rival;
	bool smoke;
	double talk_s;
} rows[NROWS] = {
	[ORACLE] = {"oracle", 1, 1, POLICY_LEAST_LOADED, rival_oracle, {0}, true},
	[LEAST] = {"least_loaded", 1, 1, POLICY_LEAST_LOADED, NULL, {0}, true},
	[PREFIX] = {"prefix", 1, 1, POLICY_PREFIX, NULL, {0}, false},
	[SGLANG] = {"sglang 0.3/64/1.5", 1, 1, POLICY_LEAST_LOADED, rival_sglang,
		{.threshold = 0.3, .balance_abs = 64, .balance_rel = 1.5}, false},
	[SGLANG_TIGHT] = {"sglang 0.5/4/1.1", 1, 1, POLICY_LEAST_LOADED, rival_sglang,
		{.threshold = 0.5, .balance_abs = 4, .balance_rel = 1.1}, false},
	[DYNAMO] = {"dynamo 1.0", 1, 1, POLICY_LEAST_LOADED, rival_dynamo, {.overlap_weight = 1},
		false},
	[DYNAMO_PREFILL] = {"dynamo, prefill alone", 1, 1, POLICY_LEAST_LOADED, rival_dynamo,
		{.overlap_weight = 1, .prefill_only = true}, false},
	[LLMD] = {"llm-d 2:1", 1, 1, POLICY_LEAST_LOADED, rival_llmd,
		{.prefix_weight = 2, .queue_weight = 1}, false},
	[OURS] = {"cache_aware", 1, 1, POLICY_CACHE_AWARE, NULL, {0}, true},
	[OURS_8] = {"cache_aware, 8 workers", 1, 8, POLICY_CACHE_AWARE, NULL, {0}, true},
	[LEAST_2] = {"least_loaded, 2 routers", 2, 8, POLICY_LEAST_LOADED, NULL, {0}, false},
	[OURS_2] = {"cache_aware, 2 routers", 2, 8, POLICY_CACHE_AWARE, NULL, {0}, false},
	[SIBLINGS_2] = {"cache_aware, 2 siblings", 2, 8, POLICY_CACHE_AWARE, NULL, {0}, false,
		TALK_S},
};

static struct sim_result (
	*results)[NROWS]; /* [NSCENARIOS], shared with the processes that simulate */
static bool short_form;

static bool
left_out(const struct scenario *sc, const struct row *row)
{
	return short_form && !(sc->smoke && row->smoke);
}

/* Once, with that draw of who gets which request. */
static void
play(const struct scenario *sc, const struct row *row, uint64_t draw, struct sim_result *ret)
{
	struct rival rival = row->rival;
	uint32_t weights[MAX_ENGINES];
	struct replay r;

	for (uint32_t k = 0; k < sc->n; k++)
		weights[k] = 1;
	replay_init(
		&r, &(struct replay_plan){.kind = sc->kind,
			    .requests = short_form && sc->requests > SHORT ? SHORT : sc->requests,
			    .copies = sc->copies,
			    .routers = row->routers,
			    .workers = row->workers,
			    .draw = draw,
			    .n = sc->n,
			    .load = LOAD});
	rival.tenant = mem_array(r.ids, sizeof(*rival.tenant));
	sim_run(&(struct sim_plan){.trace = &r.trace,
			.routers = row->routers,
			.workers = row->workers,
			.talk_s = row->talk_s,
			.n = sc->n,
			.weights = weights,
			.blocks = (uint32_t)(sc->held * r.distinct / sc->n),
			.placer = row->place != NULL ? BY_RIVAL : BY_ROUTER,
			.policy = row->policy,
			.load = LOAD_TOKENS,
			.place = row->place,
			.rival = &rival},
		ret);
	free(rival.tenant);
	replay_fini(&r);
}

static void
run(size_t i)
{
	/* the longest first */
	const size_t scenario = NSCENARIOS - 1 - i / NROWS, which = i % NROWS;
	const struct scenario *sc = &scenarios[scenario];
	const struct row *row = &rows[which];
	const uint64_t draws = row->workers > 1 ? DRAWS : 1;
	struct sim_result *mean = &results[scenario][which], one;

	for (uint64_t draw = 0; draw < draws && !left_out(sc, row); draw++) {
		play(sc, row, draw, &one);
		mean->ttft_s += one.ttft_s / (double)draws;
		mean->ttft_p99_s += one.ttft_p99_s / (double)draws;
		mean->hit_rate += one.hit_rate / (double)draws;
		mean->imbalance += one.imbalance / (double)draws;
	}
}

/* --- tables -------------------------------------------------------------------------------------- */

static void
print_row(enum replay_kind kind, size_t which, bool tail)
{
	printf("%-24s", rows[which].name);
	for (size_t i = 0; i < NSCENARIOS; i++) {
		const struct sim_result *r = &results[i][which];
		char text[32];

		if (scenarios[i].kind != kind || left_out(&scenarios[i], &rows[which]))
			continue;
		if (tail)
			(void)snprintf(
				text, sizeof(text), "%.2f %.2f", r->ttft_p99_s, r->imbalance);
		else
			(void)snprintf(
				text, sizeof(text), "%.1f %.3f", 100 * r->hit_rate, r->ttft_s);
		printf("%14s", text);
	}
	printf("\n");
}

static void
print_table(enum replay_kind kind, bool tail)
{
	printf("\n%s: %s\n%-24s", kind == REPLAY_CONVERSATION ? "conversations" : "agents",
		tail ? "99th percentile of TTFT in s, busiest engine's time over the mean"
		     : "hit rate in %, mean TTFT in s",
		"engines, share cached");
	for (size_t i = 0; i < NSCENARIOS; i++)
		if (scenarios[i].kind == kind && (!short_form || scenarios[i].smoke))
			printf("%14s", scenarios[i].name);
	printf("\n");
	for (size_t which = 0; which < NROWS; which++)
		if (!short_form || rows[which].smoke)
			print_row(kind, which, tail);
}

/* --- marks --------------------------------------------------------------------------------------- */

static int
mark_most(const struct scenario *sc, const char *what, double ours, double bound)
{
	char text[160];

	(void)snprintf(text, sizeof(text), "%s, %s: %s: %.3f (at most %.3f)",
		sc->kind == REPLAY_CONVERSATION ? "conversations" : "agents", sc->name, what, ours,
		bound);
	return sched_mark(ours <= bound, text);
}

static int
mark_scenario(const struct scenario *sc, const struct sim_result *r)
{
	const struct sim_result *ours = &r[OURS], *oracle = &r[ORACLE], *least = &r[LEAST];
	int missed = 0;

	missed += mark_most(sc, "mean TTFT in s, the oracle's and a tenth more", ours->ttft_s,
		MEAN * oracle->ttft_s);
	missed += mark_most(sc, "99th percentile, the oracle's and a fifth more", ours->ttft_p99_s,
		P99 * oracle->ttft_p99_s);
	missed += mark_most(sc, "share not cached, the oracle's and 2 points more",
		1 - ours->hit_rate, 1 - oracle->hit_rate + HITS);
	missed += mark_most(sc, "mean TTFT, that of least_loaded", ours->ttft_s, least->ttft_s);
	missed += mark_most(sc, "mean TTFT with 8 workers, with 1 and a fiftieth more",
		r[OURS_8].ttft_s, WORKERS * ours->ttft_s);
	return missed;
}

/* Two routers come near to one if they are siblings.  Two that know nothing of each other's prompts do not. */
static int
mark_routers(const struct scenario *sc, const struct sim_result *r)
{
	return mark_most(sc, "mean TTFT with 2 siblings, with 1 router and a tenth more",
		       r[SIBLINGS_2].ttft_s, ROUTERS * r[OURS].ttft_s) +
	       mark_most(sc, "mean TTFT with 2 routers, that of least_loaded with 2",
		       r[OURS_2].ttft_s, r[LEAST_2].ttft_s);
}

static int
mark_all(void)
{
	int missed = 0;

	printf("\nmarks of cache_aware\n");
	for (size_t i = 0; i < NSCENARIOS; i++) {
		if (short_form && !scenarios[i].smoke)
			continue;
		missed += mark_scenario(&scenarios[i], results[i]);
		if (!short_form)
			missed += mark_routers(&scenarios[i], results[i]);
	}
	return missed;
}

int
sched_caches(bool smoke)
{
	const size_t bytes = NSCENARIOS * sizeof(*results);
	int missed;

	short_form = smoke;
	results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (results == MAP_FAILED)
		die("mmap");
	sched_spread(run, NSCENARIOS * NROWS);
	for (int kind = REPLAY_CONVERSATION; kind <= REPLAY_AGENTS; kind++)
		for (int tail = 0; tail < 2; tail++)
			print_table((enum replay_kind)kind, tail != 0);
	missed = mark_all();
	(void)munmap(results, bytes);
	return missed;
}
