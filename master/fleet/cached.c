#include "master/fleet/cached.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/facts.h"
#include "master/fleet/siblings.h"
#include "shm/metrics.h"
#include "shm/prefix.h"

struct page {
	struct evbuffer *out;
	int pool, url; /* widths */
	bool counts;   /* the widths are measured, and nothing is written */
};

static bool
is_chosen_by_cache(const struct facts *x)
{
	const struct engine *e = &x->ep->engine;

	return x->has_slot && e->pool != NULL && e->pool->policies[e->role] == POLICY_CACHE_AWARE;
}

static double
percent(uint64_t part, uint64_t of)
{
	return of == 0 ? 0 : (double)part * 100 / (double)of;
}

static void
widen(int *width, const char *text)
{
	const int n = (int)strlen(text);

	*width = n > *width ? n : *width;
}

static void
put_engine(const struct facts *x, void *arg)
{
	const struct engine *e = &x->ep->engine;
	const struct seg *seg = x->ep->fleet->seg;
	struct page *page = arg;
	struct prefix_sums s;

	if (!is_chosen_by_cache(x))
		return;
	if (page->counts) {
		widen(&page->pool, e->pool_name);
		widen(&page->url, e->url);
		return;
	}
	s = prefix_sums(seg, e->slot);
	(void)evbuffer_add_printf(page->out,
		"%-*s  %-7s  %-*s  %10" PRIu64 "  %10" PRIu64 "  %12" PRIu64
		"  %7.1f  %7.1f  %5.2f\n",
		page->pool, e->pool_name, role_name(e->role), page->url, e->url,
		prefix_capacity(seg, e->slot), s.answers, s.prompt, percent(s.expected, s.prompt),
		percent(s.cached, s.prompt), s.kept);
}

static void
put_index(const struct seg *seg, struct evbuffer *out)
{
	const uint64_t words = (uint64_t)seg->hdr->prefix_buckets * PREFIX_WAYS;

	if (words == 0) {
		(void)evbuffer_add_printf(
			out, "prefix index: none (shared_memory.prefix_index is 0B)\n");
		return;
	}
	(void)evbuffer_add_printf(out,
		"prefix index: %" PRIu64 " words, %.1f%% in use, %" PRIu64
		" lost to other prompts\n",
		words, percent(metric_sum(seg, M_PREFIX_USED), words),
		metric_sum(seg, M_PREFIX_LOST));
}

void
fleet_cached(struct fleet *f, struct evbuffer *out)
{
	struct page page = {.out = out, .pool = 4, .url = 3, .counts = true};

	put_index(f->seg, out);
	siblings_print(f, out);
	if (f->conf == NULL)
		return;
	facts_each(f, put_engine, &page);
	page.counts = false;
	(void)evbuffer_add_printf(out, "%-*s  %-7s  %-*s  %10s  %10s  %12s  %7s  %7s  %5s\n",
		page.pool, "pool", "role", page.url, "url", "capacity", "answers", "tokens",
		"expect%", "cached%", "kept");
	facts_each(f, put_engine, &page);
}
