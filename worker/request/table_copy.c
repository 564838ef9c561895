#include "worker/request/table_copy.h"

#include <stdlib.h>
#include <string.h>

#include "shm/core/rcu.h"
#include "shm/core/seg.h"
#include "shm/table.h"

#define TRIES 32 /* publications are rare: a second try is hardly ever needed */

/* What one read section copies; stored on the stack. */
struct step {
	uint32_t npools, nendpoints;
	struct pool_copy pools[TABLE_COPY_STEP];
	struct endpoint_copy endpoints[TABLE_COPY_STEP];
	size_t used;
	char text[TABLE_COPY_STEP * 3 * TABLE_COPY_TEXT];
};

/* The text's offset in the step. */
static size_t
keep(struct step *s, const char *text)
{
	const size_t n = strnlen(text, TABLE_COPY_TEXT - 1), at = s->used;

	memcpy(s->text + at, text, n);
	s->text[at + n] = '\0';
	s->used += n + 1;
	return at;
}

static void
keep_pool(struct step *s, const struct table_pool *tp)
{
	struct pool_copy *p = &s->pools[s->npools++];

	p->id = tp->id;
	memcpy(p->policy, tp->policy, sizeof(p->policy));
	memcpy(p->load, tp->load, sizeof(p->load));
	p->pairing = tp->pairing;
	p->fallback = tp->rescue.fallback;
	p->first = p->end = 0;
}

static void
keep_endpoint(struct step *s, const struct table *t, const struct table_endpoint *te)
{
	const char *group = te->group != 0 ? t->pools[te->pool].groups[te->group - 1] : "";

	s->endpoints[s->nendpoints++] = (struct endpoint_copy){.slot = te->slot,
		.weight = te->weight,
		.max_context = te->max_context,
		.group_number = te->group,
		.pool = te->pool,
		.role = te->role,
		.url = keep(s, te->url),
		.version = keep(s, te->version),
		.group = keep(s, group)};
}

/* Copies the next rows after those that `c` has.  Returns true while the table has that
 * version. */
static bool
take_step(struct seg *seg, uint32_t slot, uint64_t version, const struct table_copy *c,
	struct step *s)
{
	const struct table *t = rcu_enter(seg, slot);
	const bool same = t != NULL && t->version == version;

	s->npools = s->nendpoints = 0;
	s->used = 0;
	for (uint32_t i = c->npools; same && i < t->npools && s->npools < TABLE_COPY_STEP; i++)
		keep_pool(s, &t->pools[i]);
	for (uint32_t i = c->nendpoints;
		same && i < t->nendpoints && s->nendpoints < TABLE_COPY_STEP; i++)
		keep_endpoint(s, t, &t->endpoints[i]);
	rcu_leave(seg, slot);
	return same;
}

static void
add_step(struct table_copy *c, const struct step *s)
{
	memcpy(c->pools + c->npools, s->pools, s->npools * sizeof(*s->pools));
	c->npools += s->npools;
	for (uint32_t i = 0; i < s->nendpoints; i++) {
		struct endpoint_copy *ep = &c->endpoints[c->nendpoints++];

		*ep = s->endpoints[i];
		ep->url += c->text.n;
		ep->version += c->text.n;
		ep->group += c->text.n;
	}
	membuf_add(&c->text, s->text, s->used);
}

static void
find_ranges(struct table_copy *c)
{
	for (uint32_t i = 0; i < c->nendpoints; i++) {
		struct pool_copy *p = &c->pools[c->endpoints[i].pool];

		if (p->end == 0)
			p->first = i;
		p->end = i + 1;
	}
}

/* Returns the table's version; 0: no table has been published. */
static uint64_t
look_at_sizes(struct seg *seg, uint32_t slot, struct table_copy *c, uint32_t *ret_npools,
	uint32_t *ret_nendpoints)
{
	const struct table *t = rcu_enter(seg, slot);
	const uint64_t version = t != NULL ? t->version : 0;

	*ret_npools = t != NULL ? t->npools : 0;
	*ret_nendpoints = t != NULL ? t->nendpoints : 0;
	c->foreign_max_age_ms = t != NULL ? t->foreign_max_age_ms : 0;
	rcu_leave(seg, slot);
	return version;
}

static bool
copy_once(struct seg *seg, uint32_t slot, struct table_copy *c)
{
	uint32_t npools, nendpoints;
	const uint64_t version = look_at_sizes(seg, slot, c, &npools, &nendpoints);
	struct step s;

	c->pools = mem_array(npools, sizeof(*c->pools));
	c->endpoints = mem_array(nendpoints, sizeof(*c->endpoints));
	while (c->npools < npools || c->nendpoints < nendpoints) {
		if (!take_step(seg, slot, version, c, &s))
			return false;
		add_step(c, &s);
	}
	find_ranges(c);
	c->version = version;
	return version != 0;
}

bool
table_copy_make(struct seg *seg, uint32_t slot, struct table_copy *ret)
{
	for (int i = 0; i < TRIES; i++) {
		*ret = (struct table_copy){0};
		if (copy_once(seg, slot, ret))
			return true;
		table_copy_free(ret);
	}
	return false;
}

void
table_copy_free(struct table_copy *c)
{
	free(c->pools);
	free(c->endpoints);
	membuf_free(&c->text);
	*c = (struct table_copy){0};
}

uint64_t
table_copy_version(struct seg *seg, uint32_t slot)
{
	const struct table *t = rcu_enter(seg, slot);
	const uint64_t version = t != NULL ? t->version : 0;

	rcu_leave(seg, slot);
	return version;
}

/* The position in the lists of models of all pools, and what one read section copies from there. */
struct models_step {
	uint32_t pool, model;
	size_t used;
	char text[TABLE_COPY_STEP * (TABLE_COPY_TEXT + TABLE_CARD_MAX)];
};

static void
keep_text(struct models_step *s, const char *text, size_t max)
{
	const size_t n = strnlen(text, max - 1);

	memcpy(s->text + s->used, text, n);
	s->text[s->used + n] = '\0';
	s->used += n + 1;
}

/* Two pools may have learned the same name: then the first pool alone serves the model. */
static void
keep_model(struct models_step *s, const struct table *t, uint32_t model)
{
	const struct table_pool *tp = &t->pools[s->pool];
	uint32_t number;

	if (table_pool_by_model(t, tp->models[model], &number) != tp)
		return;
	keep_text(s, tp->models[model], TABLE_COPY_TEXT);
	keep_text(s, tp->cards == NULL ? "" : tp->cards[model], TABLE_CARD_MAX);
}

/* The next names, at most TABLE_COPY_STEP steps from name to name or pool to pool. */
static void
take_models(const struct table *t, struct models_step *s)
{
	s->used = 0;
	for (int i = 0; i < TABLE_COPY_STEP && s->pool < t->npools; i++)
		if (s->model < t->pools[s->pool].nmodels) {
			keep_model(s, t, s->model++);
		} else {
			s->pool++;
			s->model = 0;
		}
}

static bool
copy_models_once(struct seg *seg, uint32_t slot, struct table_models *ret)
{
	struct models_step s = {0};
	uint64_t version = 0;
	bool same, more;

	do {
		const struct table *t = rcu_enter(seg, slot);

		if (t != NULL && version == 0) {
			version = t->version;
			ret->created_s = t->created_s;
		}
		same = t != NULL && t->version == version;
		if (same)
			take_models(t, &s);
		more = same && s.pool < t->npools;
		rcu_leave(seg, slot);
		if (same)
			membuf_add(&ret->text, s.text, s.used);
	} while (more);
	return same;
}

bool
table_copy_models(struct seg *seg, uint32_t slot, struct table_models *ret)
{
	for (int i = 0; i < TRIES; i++) {
		*ret = (struct table_models){0};
		if (copy_models_once(seg, slot, ret))
			return true;
		membuf_free(&ret->text);
	}
	return false;
}
