/* Fixed thresholds and the learned one over fleets and loads. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "tests/bench/sched.h"
#include "tests/bench/sched_routes.h"

#define NELEMS(a) (sizeof(a) / sizeof((a)[0]))

/* The learned threshold against the better of the two fixed choices, all direct or all disaggregated. */
#define WORSE 1.05

static const double loads[] = {0.3, 0.6, 0.8, 0.9, 0.95};
enum { NLOADS = NELEMS(loads) };

/* Moving a cache takes 5 ms and 15 us a token over RDMA (a model of 70 G parameters has 320 KB of it a token), 1 ms a token
 * over 2.5 Gbit/s. */
static const struct fleet_row {
	const char *name;
	struct routes_plan plan;
	size_t marked; /* loads */
	bool smoke;
} fleets[] = {
	{"2:2", {40000, 1, 2, 2, 800, 1.35, 235, .005, 15e-6, 0, 0, 0}, NLOADS, false},
	{"8:8", {40000, 1, 8, 8, 800, 1.35, 235, .005, 15e-6, 0, 0, 0}, NLOADS, false},
	{"8:8, 8 workers", {100000, 8, 8, 8, 800, 1.35, 235, .005, 15e-6, 0, 0, 0}, NLOADS, true},
	{"4:4, slow network", {40000, 1, 4, 4, 800, 1.35, 235, .02, 200e-6, 0, 0, 0}, NLOADS,
		false},
	{"4:4, slower, long", {40000, 1, 4, 4, 1500, 1, 400, .1, 400e-6, 0, 0, 0}, NLOADS, false},
	{"4:4, chat", {40000, 1, 4, 4, 200, .8, 120, .005, 30e-6, 0, 0, 0}, NLOADS, true},
	{"2:6, chat", {100000, 4, 2, 6, 300, 1, 235, .005, 30e-6, 0, 0, 0}, NLOADS, false},
	{"1:7", {40000, 1, 1, 7, 800, 1.35, 235, .005, 15e-6, 0, 0, 0}, NLOADS, false},
	{"1:1", {40000, 1, 1, 1, 800, 1.35, 235, .005, 15e-6, 0, 0, 0}, NLOADS, false},
	{"6:2, documents", {40000, 1, 6, 2, 4000, .8, 100, .005, 15e-6, 0, 0, 0}, NLOADS, false},
	{"16:8, agents", {40000, 1, 16, 8, 6000, 1, 150, .01, 30e-6, 0, 0, 0}, NLOADS, false},
	{"4:4, network slows", {40000, 1, 4, 4, 800, 1.35, 235, .005, 15e-6, 1e-3, 0, 0}, 0, false},
	{"4:4, network mends", {40000, 1, 4, 4, 800, 1.35, 235, .005, 1e-3, 15e-6, 0, 0}, NLOADS,
		false},
	{"4:4, all about 1000", {40000, 1, 4, 4, 1000, .15, 235, .005, 15e-6, 0, 0, 0}, 4, false},
	{"4:4, all about 300", {40000, 1, 4, 4, 300, .1, 235, .005, 15e-6, 0, 0, 0}, 4, false},
};

/* Close to its capacity a fleet's mean is made by a few busy spells: of so many runs, another seed each, the mean. */
#define RUNS 3

static const uint32_t thresholds[] = {0, ROUTES_ALL_DIRECT, ROUTES_AUTO, 256, 1024, 4096};
enum { NONE_DIRECT, ALL_DIRECT, LEARNED, NFIRST, NTHRESHOLDS = NELEMS(thresholds) };

static struct routes_result (*results)
	[NTHRESHOLDS]; /* [NELEMS(fleets) * NLOADS], shared with the processes that simulate */
static bool short_form;

static void
run(size_t i)
{
	const struct fleet_row *f = &fleets[i / NLOADS];
	struct routes_plan plan = f->plan;

	if (short_form && !f->smoke)
		return;
	plan.load = loads[i % NLOADS];
	for (size_t k = 0; k < (short_form ? NFIRST : NTHRESHOLDS); k++)
		for (plan.seed = RUNS * i + 1; plan.seed <= RUNS * (i + 1); plan.seed++) {
			struct routes_result r;

			routes_run(&plan, thresholds[k], &r);
			results[i][k].mean_s += r.mean_s / RUNS;
			results[i][k].direct += r.direct / RUNS;
		}
}

static size_t
best_fixed(const struct routes_result *r)
{
	size_t best = NONE_DIRECT;

	for (size_t k = 0; k < NTHRESHOLDS; k++)
		if (k != LEARNED && r[k].mean_s < r[best].mean_s)
			best = k;
	return best;
}

static void
print_row(const struct fleet_row *f, size_t load, const struct routes_result *r)
{
	const size_t best = best_fixed(r);

	printf("%-20s %4.2f %10.0f %10.0f %9.0f %4.0f%%", f->name, loads[load],
		1000 * r[NONE_DIRECT].mean_s, 1000 * r[ALL_DIRECT].mean_s, 1000 * r[LEARNED].mean_s,
		100 * r[LEARNED].direct);
	if (short_form)
		printf("\n");
	else if (best == ALL_DIRECT)
		printf("%10.0f    all\n", 1000 * r[best].mean_s);
	else
		printf("%10.0f %6u\n", 1000 * r[best].mean_s, thresholds[best]);
}

static double
worse(const struct routes_result *r)
{
	const double none = r[NONE_DIRECT].mean_s, all = r[ALL_DIRECT].mean_s;

	return r[LEARNED].mean_s / (none < all ? none : all);
}

/* One line a fleet: the worst of its loads. */
static int
mark_fleet(const struct fleet_row *f, struct routes_result (*r)[NTHRESHOLDS])
{
	double worst = 0, mean = 0;
	char text[160];

	for (size_t load = 0; load < NLOADS; load++) {
		if (load < f->marked && worse(r[load]) > worst)
			worst = worse(r[load]);
		mean += worse(r[load]) / NLOADS;
	}
	(void)snprintf(text, sizeof(text),
		"%s: learned threshold: at worst %.3f of the better fixed choice (at most %.2f), %.2f on average",
		f->name, worst, WORSE, mean);
	return f->marked > 0 ? sched_mark(worst <= WORSE, text) : 0;
}

int
sched_thresholds(bool smoke)
{
	const size_t n = NELEMS(fleets) * NLOADS;
	int missed = 0;

	short_form = smoke;
	results = mmap(NULL, n * sizeof(*results), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (results == MAP_FAILED)
		die("mmap");
	sched_spread(run, n);
	printf("\nuntil the first token, mean, ms\n%-20s %4s %10s %10s %15s%s\n", "", "load",
		"all long", "all direct", "learned, direct", smoke ? "" : "       best fixed");
	for (size_t i = 0; i < n; i++)
		if (!smoke || fleets[i / NLOADS].smoke)
			print_row(&fleets[i / NLOADS], i % NLOADS, results[i]);
	printf("\nmarks\n");
	for (size_t i = 0; i < NELEMS(fleets); i++)
		if (!smoke || fleets[i].smoke)
			missed += mark_fleet(&fleets[i], &results[i * NLOADS]);
	(void)munmap(results, n * sizeof(*results));
	return missed;
}
