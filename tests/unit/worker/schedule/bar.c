/* What explains a selection agrees with the selection: an endpoint is barred exactly if a policy passes it by. */
#include "shm/bar.h"

#include <criterion/criterion.h>

#include "shm/eject.h"
#include "shm/load.h"
#include "worker/schedule/policy.h"

#define NOW UINT64_C(100000)

static struct seg *seg;
static const uint64_t models = 2; /* number 1 alone */

static void
setup(void)
{
	struct seg_sizes sizes = {
		.max_workers = 2, .max_endpoints = 2, .max_pools = 1, .flags_per_worker = 64};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	ep_slot_begin(seg, 0);
}

static void
teardown(void)
{
	seg_free(&seg);
}

TestSuite(bar, .init = setup, .fini = teardown);

/* All combinations of what a selection looks at. */
struct sample {
	enum ep_state state;
	bool stale, resolved, of_all, away, full, group;
	uint32_t model;
};

static void
try(const struct sample *s)
{
	const struct table_pick pick = {.slot = 0,
		.tag = (uint32_t)ep_tag(seg, 0) + s->stale,
		.weight = 1,
		.group = 3,
		.resolved = s->resolved,
		.max_inflight = s->full ? 1 : 2,
		.models = s->of_all ? NULL : &models};
	const uint64_t groups = s->group ? UINT64_C(1) << 3 : 1;
	const struct policy_view v = {.seg = seg,
		.picks = &pick,
		.n = 1,
		.groups = groups,
		.model = s->model,
		.own = 1,
		.foreign_unit = 1,
		.now_ms = NOW};
	const struct ep_view e = ep_view(seg, 0, NOW, 0);
	const enum bar bar = bar_of(&pick, &e, s->model, groups);
	struct candidate c;

	cr_expect_eq(bar == BAR_NONE, policy_look(&v, 0, &c),
		"%s: state %d stale %d resolved %d models %d full %d group %d model %u",
		bar_word(bar), (int)s->state, s->stale, s->resolved, s->of_all, s->full, s->group,
		s->model);
	if (bar == BAR_STATE)
		cr_expect_neq(s->state, EP_UP);
}

static void
try_all(void)
{
	for (enum ep_state state = EP_STARTING; state < EP_STATE_N; state++)
		for (unsigned bits = 0; bits < 64; bits++) {
			const struct sample s = {.state = state,
				.stale = bits & 1,
				.resolved = (bits & 2) != 0,
				.of_all = (bits & 4) != 0,
				.full = (bits & 8) != 0,
				.group = (bits & 16) != 0,
				.model = bits >> 5};

			ep_state_set(seg, 0, state);
			try(&s);
		}
}

Test(bar, is_what_a_policy_looks_at)
{
	seg->eps[0].count = UINT64_C(1) << 32; /* one request */
	try_all();
}

Test(bar, is_what_a_policy_looks_at_of_an_ejected_one)
{
	seg->eps[0].count = UINT64_C(1) << 32;
	seg->eps[0].eject = HALF_OPEN_OUT | (NOW + 1);
	cr_assert_eq(ep_view(seg, 0, NOW, 0).away, EP_AWAY_EJECTED);
	try_all();
}

Test(bar, is_what_a_policy_looks_at_of_a_busy_one)
{
	seg->eps[0].count = UINT64_C(1) << 32;
	seg->eps[0].busy = HALF_OPEN_OUT | (NOW + 1);
	cr_assert_eq(ep_view(seg, 0, NOW, 0).away, EP_AWAY_BUSY);
	try_all();
}
