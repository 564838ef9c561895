#include "tests/bench/sched_replay.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "tests/bench/sched.h"

#define TRACE                                                                                      \
	"tests/data/mooncake/conversation_trace.jsonl.xz" /* from the root of the repository */
#define TRACE_STEP_S                                                                               \
	3. /* its clock advances in such steps: requests are spread evenly over a step */

#define TOKEN_BYTES 4

/* Prefix policy: 4 KiB of a prompt are two blocks. */
#define KEY_BLOCKS (4096 / (REPLAY_BLOCK * TOKEN_BYTES))

/* Agents.  Every prompt begins with the system prompt, then the manual of the agent's tool; each turn adds the tool's answer. */
#define SYSTEM_BLOCKS 16
#define TOOLS 40
#define TOOL_BLOCKS 3
#define TOOL_S 1.0 /* Zipf's law */
#define TASK_MEDIAN 800
#define TASK_MAX 20000
#define TURN_MEDIAN 500
#define TURN_SIGMA 0.9
#define TURN_MAX 8000
#define TURNS_MEAN 8
#define PROMPT_END 32768 /* tokens: an agent ends there */
#define TURN_PAUSE_S 15.0
#define AGENT_S 2.0 /* between two new agents, before times are scaled */

struct words {
	uint32_t *p;
	size_t n, room;
};

static void
words_add(struct words *w, uint32_t v)
{
	if (w->n == w->room) {
		w->room = w->room > 0 ? 2 * w->room : 4096;
		w->p = mem_resize(w->p, w->room, sizeof(*w->p));
	}
	w->p[w->n++] = v;
}

/* A request while the trace is made: its blocks are words [first, first + nblocks). */
struct draft {
	double at_s;
	uint32_t prompt, output, nblocks;
	size_t first;
};

struct drafts {
	struct draft *p;
	uint32_t n, room;
	struct words blocks;
	uint32_t ids; /* are below */
};

static struct draft *
draft_add(struct drafts *ds, double at_s, uint32_t prompt, uint32_t output)
{
	struct draft *d;

	if (ds->n == ds->room) {
		ds->room = ds->room > 0 ? 2 * ds->room : 1024;
		ds->p = mem_resize(ds->p, ds->room, sizeof(*ds->p));
	}
	d = &ds->p[ds->n++];
	/* an engine computes the last token of a prompt in any case, and keeps whole blocks only */
	*d = (struct draft){.at_s = at_s,
		.prompt = prompt,
		.output = output,
		.nblocks = (prompt - 1) / REPLAY_BLOCK,
		.first = ds->blocks.n};
	return d;
}

/* --- conversations ------------------------------------------------------------------------------- */

/* The next number of a line; *p is behind it. */
static uint32_t
number(const char **p)
{
	char *end;
	uint32_t v;

	while (**p != '\0' && !isdigit((unsigned char)**p))
		++*p;
	v = (uint32_t)strtoul(*p, &end, 10);
	*p = end;
	return v;
}

/* {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [block, ...]} */
static void
read_line(struct drafts *ds, const char *line, uint64_t *dice)
{
	const double at_s = number(&line) / 1000. + TRACE_STEP_S * dice_unit(dice);
	const uint32_t prompt = number(&line), output = number(&line);
	const struct draft *d = draft_add(ds, at_s, prompt, output);

	for (uint32_t k = 0; k < d->nblocks; k++) {
		const uint32_t id = number(&line);

		words_add(&ds->blocks, id);
		if (id >= ds->ids)
			ds->ids = id + 1;
	}
}

static void
read_conversations(struct drafts *ds, uint32_t most, uint64_t *dice)
{
	FILE *f = popen("xz -dc " TRACE, "r");
	char *line = NULL;
	size_t room = 0;

	if (f == NULL)
		die("xz");
	while (ds->n < most && getline(&line, &room, f) != -1)
		read_line(ds, line, dice);
	free(line);
	(void)pclose(f); /* it fails if not all was read */
	if (ds->n == 0) {
		(void)fprintf(
			stderr, "sched: cannot read %s: no such file here, or no xz\n", TRACE);
		exit(1);
	}
}

/* More users at the same time: copies that have only the first block of all in common, each begun elsewhere. */
static void
copy_all(struct drafts *ds, uint32_t copies)
{
	const uint32_t n = ds->n, ids = ds->ids;
	const double span_s = n > 0 ? ds->p[n - 1].at_s : 0;

	for (uint32_t c = 1; c < copies; c++)
		for (uint32_t i = 0; i < n; i++) {
			const struct draft from = ds->p[i];

			(void)draft_add(ds, fmod(from.at_s + span_s * c / copies, span_s),
				from.prompt, from.output);
			for (uint32_t k = 0; k < from.nblocks; k++) {
				const uint32_t id = ds->blocks.p[from.first + k];

				words_add(&ds->blocks, id == 0 ? 0 : id + c * ids);
			}
		}
	ds->ids = ids * copies;
}

/* --- agents -------------------------------------------------------------------------------------- */

static uint32_t
draw_tool(uint64_t *dice)
{
	double sum = 0, u = dice_unit(dice);
	uint32_t k;

	for (k = 1; k <= TOOLS; k++)
		sum += pow(k, -TOOL_S);
	u *= sum;
	for (k = 0; k < TOOLS - 1 && u > pow(k + 1, -TOOL_S); k++)
		u -= pow(k + 1, -TOOL_S);
	return k;
}

/* A prompt of that length: what all have, what all of the tool have, and blocks of the agent's own from `own` on. */
static void
agent_turn(struct drafts *ds, double at_s, uint32_t prompt, uint32_t output, uint32_t tool,
	uint32_t own)
{
	const uint32_t shared = SYSTEM_BLOCKS + TOOL_BLOCKS;
	const struct draft *d = draft_add(ds, at_s, prompt, output);

	for (uint32_t k = 0; k < d->nblocks; k++)
		if (k < SYSTEM_BLOCKS)
			words_add(&ds->blocks, k);
		else if (k < shared)
			words_add(&ds->blocks, k + tool * TOOL_BLOCKS);
		else
			words_add(&ds->blocks, own + k - shared);
}

static void
draw_agents(struct drafts *ds, uint32_t requests, uint64_t *dice)
{
	uint32_t own = SYSTEM_BLOCKS + TOOLS * TOOL_BLOCKS;
	double begin_s = 0;

	while (ds->n < requests) {
		const uint32_t tool = draw_tool(dice);
		uint32_t prompt = (SYSTEM_BLOCKS + TOOL_BLOCKS) * REPLAY_BLOCK +
				  dice_tokens(dice, TASK_MEDIAN, TURN_SIGMA, TASK_MAX);
		double at_s = begin_s += -log(dice_unit(dice)) * AGENT_S;

		do {
			const uint32_t output = dice_tokens(dice, 150, TURN_SIGMA, 2000);

			agent_turn(ds, at_s, prompt, output, tool, own);
			prompt += output + dice_tokens(dice, TURN_MEDIAN, TURN_SIGMA, TURN_MAX);
			at_s += -log(dice_unit(dice)) * TURN_PAUSE_S;
		} while (prompt < PROMPT_END && dice_unit(dice) > 1. / TURNS_MEAN);
		own += PROMPT_END / REPLAY_BLOCK; /* at most so many of its own */
	}
	ds->ids = own;
}

/* --- a replay ------------------------------------------------------------------------------------ */

static int
by_time(const void *a, const void *b)
{
	const double x = ((const struct draft *)a)->at_s, y = ((const struct draft *)b)->at_s;

	return (x > y) - (x < y);
}

/* Ids of agents have gaps. */
static uint32_t
count_distinct(const struct drafts *ds)
{
	bool *seen = mem_array(ds->ids, sizeof(*seen));
	uint32_t n = 0;

	for (size_t k = 0; k < ds->blocks.n; k++) {
		n += !seen[ds->blocks.p[k]];
		seen[ds->blocks.p[k]] = true;
	}
	free(seen);
	return n;
}

static uint64_t
key_of(const uint32_t *blocks, uint32_t n)
{
	uint64_t key = 0;

	for (uint32_t k = 0; k < n && k < KEY_BLOCKS; k++)
		key = dice_mix(key + blocks[k] + 1);
	return key;
}

/* Demands at the rate that asks for plan->load of the engines' time. */
static void
finish(struct replay *r, const struct replay_plan *plan, const struct drafts *ds, uint64_t *dice)
{
	uint64_t whose = plan->draw + 1; /* dice of its own: this changes nothing else */
	double prefill = 0, scale;

	for (uint32_t i = 0; i < ds->n; i++)
		prefill += prefill_s(ds->p[i].prompt);
	scale = prefill / (plan->load * plan->n) / (ds->p[ds->n - 1].at_s - ds->p[0].at_s);
	r->trace = (struct trace){.n = ds->n, .prefill_load = plan->load};
	r->trace.demands = mem_array(ds->n, sizeof(*r->trace.demands));
	for (uint32_t i = 0; i < ds->n; i++) {
		const struct draft *from = &ds->p[i];
		struct demand *d = &r->trace.demands[i];

		*d = (struct demand){.at_s = (from->at_s - ds->p[0].at_s) * scale,
			.prompt = from->prompt,
			.guess = dice_tokens(dice, from->prompt, GUESS_SIGMA, 2 * from->prompt),
			.output = from->output,
			.router = (uint32_t)(dice_next(&whose) % plan->routers),
			.worker = (uint32_t)(dice_next(&whose) % plan->workers),
			.blocks = &r->blocks[from->first],
			.nblocks = from->nblocks};
		d->prefix = d->session = key_of(d->blocks, d->nblocks);
	}
}

void
replay_init(struct replay *r, const struct replay_plan *plan)
{
	struct drafts ds = {0};
	uint64_t dice = 1;

	if (plan->kind == REPLAY_CONVERSATION) {
		read_conversations(&ds, plan->requests, &dice);
		copy_all(&ds, plan->copies);
	} else {
		draw_agents(&ds, plan->requests, &dice);
	}
	assert(ds.p != NULL && ds.blocks.p != NULL);
	qsort(ds.p, ds.n, sizeof(*ds.p), by_time);
	r->blocks = ds.blocks.p;
	r->ids = ds.ids;
	r->distinct = count_distinct(&ds);
	finish(r, plan, &ds, &dice);
	free(ds.p);
}

void
replay_fini(struct replay *r)
{
	trace_fini(&r->trace);
	free(r->blocks);
	r->blocks = NULL;
}

void
replay_text(const struct demand *d, struct membuf *buf)
{
	enum { WORDS = REPLAY_BLOCK * TOKEN_BYTES / sizeof(uint64_t) };
	uint64_t block[WORDS];

	buf->n = 0;
	for (uint32_t k = 0; k < d->nblocks; k++) {
		const uint64_t seed = dice_mix(d->blocks[k] + 1);

		for (uint64_t i = 0; i < WORDS; i++)
			block[i] = seed + i * i;
		membuf_add(buf, block, sizeof(block));
	}
	/* what is behind the last whole block is no other prompt's */
	for (uint32_t left = d->prompt - d->nblocks * REPLAY_BLOCK; left > 0; left--)
		membuf_add(buf, (const char[TOKEN_BYTES]){(char)left, (char)d->at_s, 'a', 'b'},
			TOKEN_BYTES);
}
