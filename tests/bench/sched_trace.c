#include "tests/bench/sched_trace.h"

#include <math.h>
#include <stdlib.h>

#include "shm/base/mem.h"

/* Prompts and outputs are lognormal: half of the prompts are below 800 tokens, one in 5,000 is above
 * 90,000; the work of outputs is chosen so that both roles are equally loaded. */
#define PROMPT_MEDIAN 800.0
#define PROMPT_SIGMA 1.35
#define OUTPUT_MEDIAN 235.0

/* Bursts: a third of the time 1.8 times the mean rate, else 0.6 times. */
#define BURST_S 2.0
#define QUIET_S 4.0
#define BURST_RATE 1.8
#define QUIET_RATE 0.6

/* So many different ones per engine; the k-th is drawn as often as 1 / k^S says. */
#define SESSIONS 1000
#define SESSION_S 0.6
#define PREFIXES 10
#define PREFIX_S 1.0

uint64_t
dice_mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

uint64_t
dice_next(uint64_t *state)
{
	return dice_mix(*state += 0x9e3779b97f4a7c15u);
}

double
dice_unit(uint64_t *state)
{
	return ((double)(int64_t)(dice_next(state) >> 11) + 1) * 0x1p-53;
}

static double
lognormal(uint64_t *state, double median, double sigma)
{
	const double r = sqrt(-2 * log(dice_unit(state))); /* Box and Muller */

	return median * exp(sigma * r * cos(2 * M_PI * dice_unit(state)));
}

uint32_t
dice_tokens(uint64_t *state, double median, double sigma, uint32_t max)
{
	const double v = lognormal(state, median, sigma);

	return v < 1 ? 1 : v < max ? (uint32_t)v : max;
}

/* Distribution function of Zipf's law. */
static double *
zipf_new(uint32_t n, double s)
{
	double *sums = mem_array(n, sizeof(*sums)), sum = 0;

	for (uint32_t k = 0; k < n; k++)
		sums[k] = sum += pow(k + 1, -s);
	for (uint32_t k = 0; k < n; k++)
		sums[k] /= sum;
	return sums;
}

static uint32_t
zipf(uint64_t *state, const double *sums, uint32_t n)
{
	const double u = dice_unit(state);
	uint32_t low = 0, high = n - 1;

	while (low < high) {
		const uint32_t mid = (low + high) / 2;

		if (sums[mid] < u)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Sizes and keys of all requests.  Each session begins all its prompts with the same prefix. */
static void
draw_demands(struct trace *t, const struct trace_plan *plan, uint64_t *dice)
{
	const uint32_t nsessions = SESSIONS * plan->n, nprefixes = PREFIXES * plan->n;
	double *sessions = zipf_new(nsessions, SESSION_S),
	       *prefixes = zipf_new(nprefixes, PREFIX_S);
	uint32_t *prefix_of = mem_array(nsessions, sizeof(*prefix_of));

	for (uint32_t i = 0; i < nsessions; i++)
		prefix_of[i] = zipf(dice, prefixes, nprefixes);
	for (uint32_t i = 0; i < t->n; i++) {
		struct demand *d = &t->demands[i];
		const uint32_t session = zipf(dice, sessions, nsessions);

		d->prompt = dice_tokens(dice, PROMPT_MEDIAN, PROMPT_SIGMA, PROMPT_MAX);
		d->guess = dice_tokens(dice, d->prompt, GUESS_SIGMA, 2 * PROMPT_MAX);
		d->output = dice_tokens(dice, OUTPUT_MEDIAN, OUTPUT_SIGMA, OUTPUT_MAX);
		d->router = dice_unit(dice) <= plan->strangers
				    ? STRANGER
				    : (uint32_t)(dice_next(dice) % plan->routers);
		d->worker = (uint32_t)(dice_next(dice) % plan->workers);
		d->session = dice_mix(session + 1);
		d->prefix = dice_mix(prefix_of[session] + 1);
	}
	free(sessions);
	free(prefixes);
	free(prefix_of);
}

/* When they come: at the mean rate that asks for plan->load of the prefill engines' time. */
static void
draw_times(struct trace *t, const struct trace_plan *plan, uint64_t *dice)
{
	double prefill = 0, output = 0, now = 0, phase_end = 0, rate, factor = 1;
	bool burst = false;

	for (uint32_t i = 0; i < t->n; i++) {
		prefill += prefill_s(t->demands[i].prompt);
		output += t->demands[i].output;
	}
	rate = plan->load * plan->speed / (prefill / t->n);
	t->prefill_load = plan->load;
	t->decode_load =
		rate * (output / t->n) / plan->speed * decode_step_s(DECODE_BATCH) / DECODE_BATCH;
	for (uint32_t i = 0; i < t->n; i++) {
		double left = -log(dice_unit(dice)) / rate; /* at factor 1 */

		while (plan->bursty && now + left / factor > phase_end) {
			left -= (phase_end - now) * factor;
			now = phase_end;
			burst = !burst;
			factor = burst ? BURST_RATE : QUIET_RATE;
			phase_end += -log(dice_unit(dice)) * (burst ? BURST_S : QUIET_S);
		}
		now += left / factor;
		t->demands[i].at_s = now;
	}
}

void
trace_init(struct trace *t, const struct trace_plan *plan)
{
	uint64_t dice = plan->seed;

	t->n = plan->requests;
	t->demands = mem_array(t->n, sizeof(*t->demands));
	draw_demands(t, plan, &dice);
	draw_times(t, plan, &dice);
}

void
trace_fini(struct trace *t)
{
	free(t->demands);
	t->demands = NULL;
}
