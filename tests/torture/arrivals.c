/*
 * Limits per client: more clients than entries, all of one set, so that entries are given away all the time.
 *
 * Calm: arrivers are stopped but never killed, so books are kept beside the entries: what a client surely has in
 * flight is never above its limit, whichever entry it has.  The master keeps two clients busy: they keep
 * their entries, so of them exactly what burst and rate say is admitted, over the whole part.  Their time is a
 * count of those who ask, so that it stands still while nobody does.
 *
 * Storm: they are killed at any instruction and reaped.  When all are, nothing is in flight.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/quota_word.h"
#include "shm/quota.h"
#include "shm/load.h"
#include "tests/torture/torture.h"

#define CLIENTS 20u
#define CLIENTS_CALM 11u /* enough to be in each other's way, few enough to be limited */
#define KEPT 2u          /* clients 0 .. 1: by the master, calm */
#define LIMIT 3u
#define HOLD 4u /* an arriver's own most: together far above the limits */
#define RATE 1000000u
#define BURST 10u
#define ASK_NS 100u
#define MASTER_SLOT 0u /* of a worker; arrivers are others */

static struct arrivals {
	_Alignas(SHM_LINE) uint64_t calm; /* W: master, between rounds */
	uint64_t held[CLIENTS];           /* surely in flight */
	uint64_t admitted[KEPT];
	uint64_t now_ns;
	struct came {
		_Alignas(SHM_LINE) uint64_t admitted, many, early, uncounted, forgotten;
	} came[CHILDREN];
} * all;

static struct quota_pass kept[KEPT];
static uint64_t kept_since_ns[KEPT], killed_inside;

struct guest {
	uint32_t client, entry;
};

void
arrivals_init(void)
{
	all = shared(sizeof(*all));
}

static enum quota_outcome
arrive(uint32_t me, uint32_t client, struct quota_pass *pass)
{
	static const struct quota_terms rate = {.rate = RATE, .burst = BURST},
					few = {.max_inflight = LIMIT};

	return quota_enter(seg, me, (uint64_t)(client + 1) << 40, client < KEPT ? &rate : &few,
		client < KEPT ? seen_add(&all->now_ns, ASK_NS) : clock_us() * 1000, pass);
}

/* The master's two are in flight from here on. */
static void
keep(void)
{
	for (uint32_t i = 0; i < KEPT; i++) {
		if (arrive(MASTER_SLOT, i, &kept[i]) != QUOTA_ADMITTED)
			bad(BAD_LEAK);
		kept_since_ns[i] = all->now_ns;
		all->admitted[i]++;
	}
}

/* Nobody else asks: what is left is taken, and then it is all that there was. */
static void
audit(uint32_t client)
{
	struct quota_pass pass;
	uint64_t ns;

	while (arrive(MASTER_SLOT, client, &pass) == QUOTA_ADMITTED) {
		quota_leave(seg, MASTER_SLOT, pass.entry);
		all->admitted[client]++;
	}
	ns = seen_get(&all->now_ns) - kept_since_ns[client];
	if (all->admitted[client] != BURST + ns * RATE / 1000000000)
		bad(BAD_RATE);
}

void
arrivals_calm(void)
{
	all->calm = 1;
	proc_slot_set(seg, MASTER_SLOT, (uint64_t)getpid(), PROC_READY, 1);
	keep();
}

void
arrivals_storm(void)
{
	for (uint32_t i = 0; i < KEPT && all->calm != 0; i++)
		quota_leave(seg, MASTER_SLOT, kept[i].entry);
	proc_slot_set(seg, MASTER_SLOT, 0, PROC_EMPTY, 0);
	all->calm = 0;
}

static bool
come(uint32_t me, struct guest *g, uint64_t r)
{
	const bool calm = seen_get(&all->calm) != 0;
	struct came *came = &all->came[me];
	struct quota_pass pass;
	enum quota_outcome v;

	g->client = (uint32_t)(r >> 40) % (calm ? CLIENTS_CALM : CLIENTS);
	v = arrive(me, g->client, &pass);
	came->forgotten += pass.evicted;
	came->admitted += v == QUOTA_ADMITTED;
	came->many += v == QUOTA_INFLIGHT;
	came->early += v == QUOTA_RATE;
	came->uncounted += v == QUOTA_UNCOUNTED;
	if (v != QUOTA_ADMITTED)
		return false;
	g->entry = pass.entry;
	if (calm && g->client < KEPT)
		seen_add(&all->admitted[g->client], 1);
	if (g->client < KEPT)
		return true;
	if (quota_held_count(seen_get(&seg->quotas[0].held[g->entry])) > LIMIT)
		bad(BAD_LIMIT);
	if (calm && seen_add(&all->held[g->client], 1) > LIMIT)
		bad(BAD_LIMIT);
	return true;
}

static void
go(uint32_t me, const struct guest *g)
{
	if (seen_get(&all->calm) != 0 && g->client >= KEPT)
		seen_add(&all->held[g->client], -(uint64_t)1);
	quota_leave(seg, me, g->entry);
}

void
arriver(struct life *l)
{
	const bool greedy = l->rnd % 8 < 3; /* never yields: preempted, and killed, anywhere */
	struct guest mine[HOLD];
	uint32_t n = 0;

	while (life_end(l) == END_NOT) {
		const uint64_t r = next_random(&l->rnd);

		if (n < HOLD && r % 2 == 0)
			n += come(l->child, &mine[n], next_random(&l->rnd));
		else if (n > 0)
			go(l->child, &mine[--n]);
		if (greedy || (r >> 16 & 255) != 0)
			continue;
		spin(r >> 24 & 255);
		(void)sched_yield();
	}
	while (n > 0 && life_end(l) == END_LEAVE)
		go(l->child, &mine[--n]);
}

void
arriver_bury(uint32_t child)
{
	killed_inside += seg->procs[child].journal != 0;
	(void)load_reap(seg, child);
}

static struct came
sum(void)
{
	struct came s = {0};

	for (uint32_t i = 0; i < CHILDREN; i++) {
		s.admitted += all->came[i].admitted;
		s.many += all->came[i].many;
		s.early += all->came[i].early;
		s.uncounted += all->came[i].uncounted;
		s.forgotten += all->came[i].forgotten;
	}
	return s;
}

void
arrivals_settle(void)
{
	static struct came before;
	const struct came now = sum();
	uint32_t held = 0;

	for (uint32_t i = 0; i < seg->hdr->max_quotas; i++)
		held += quota_held_count(seg->quotas[i / QUOTA_WAYS].held[i % QUOTA_WAYS]);
	if (held != (all->calm != 0 ? KEPT : 0))
		bad(BAD_LEAK);
	for (uint32_t i = 0; i < KEPT && all->calm != 0; i++)
		audit(i);
	if (now.admitted == before.admitted || now.forgotten == before.forgotten)
		bad(BAD_IDLE);
	before = now;
}

void
arrivals_report(void)
{
	const struct came s = sum();

	printf("clients: admitted=%" PRIu64 " too_many=%" PRIu64 " too_early=%" PRIu64
	       " uncounted=%" PRIu64 " forgotten=%" PRIu64 " killed_in_operation=%" PRIu64 "\n",
		s.admitted, s.many, s.early, s.uncounted, s.forgotten, killed_inside);
}
