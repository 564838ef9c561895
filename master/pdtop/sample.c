#include "master/pdtop/sample.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

/* Memory that cannot be had ends the program: it holds nothing that another one needs. */
static void *
must(void *p)
{
	if (p == NULL)
		abort();
	return p;
}

static struct json_object *
member(struct json_object *o, const char *key)
{
	struct json_object *value = NULL;

	(void)json_object_object_get_ex(o, key, &value);
	return value;
}

/* For one row of the screen: clients choose models and ids, and a line feed would begin another row. */
static char *
text_of(struct json_object *o, const char *key)
{
	struct json_object *value = member(o, key);
	char *text = must(strdup(value != NULL ? json_object_get_string(value) : ""));

	for (char *p = text; *p != '\0'; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			*p = '?';
	return text;
}

static uint64_t
number_of(struct json_object *o, const char *key)
{
	return json_object_get_uint64(member(o, key)); /* 0 of none */
}

static size_t
length_of(struct json_object *list)
{
	return json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
}

/* --- times -------------------------------------------------------------- */

static void
times_add(struct times *f, uint32_t ms)
{
	if (f->n == f->room) {
		f->room = f->room == 0 ? 64 : 2 * f->room;
		f->ms = must(realloc(f->ms, f->room * sizeof(*f->ms)));
	}
	f->ms[f->n++] = ms;
}

static int
compare_ms(const void *pa, const void *pb)
{
	const uint32_t a = *(const uint32_t *)pa, b = *(const uint32_t *)pb;

	return (a > b) - (a < b);
}

static void
times_rank(struct times *f)
{
	if (f->n == 0)
		return;
	qsort(f->ms, f->n, sizeof(*f->ms), compare_ms);
	f->p50 = f->ms[(f->n - 1) / 2];
	f->p99 = f->ms[(f->n - 1) * 99 / 100];
}

/* --- engines ------------------------------------------------------------------------------ */

static uint64_t
failures_of(struct json_object *o)
{
	struct json_object *all = member(o, "failures");
	uint64_t n = 0;

	if (all == NULL || !json_object_is_type(all, json_type_object))
		return 0;
	json_object_object_foreach(all, key, value)
	{
		(void)key;
		n += json_object_get_uint64(value);
	}
	return n;
}

/* One word, as `pdctl status` has it. */
static char *
state_of(struct json_object *o)
{
	struct json_object *ejected = member(o, "ejected");
	const char *eject = ejected != NULL ? json_object_get_string(ejected) : "in";
	char *state = text_of(o, "state");

	if (strcmp(state, "up") != 0)
		return state;
	free(state);
	if (json_object_get_int64(member(o, "ejected_left_ms")) > 0 || strcmp(eject, "in") != 0)
		return must(strdup("ejected"));
	if (json_object_get_boolean(member(o, "busy")))
		return must(strdup("busy"));
	return must(strdup(json_object_get_boolean(member(o, "slow")) ? "slow" : "up"));
}

static void
take_engines(struct json_object *list, struct sample *s)
{
	const size_t n = length_of(list);

	s->engines = must(calloc(n + 1, sizeof(*s->engines)));
	for (size_t i = 0; i < n; i++) {
		struct json_object *o = json_object_array_get_idx(list, i);

		s->engines[s->nengines++] = (struct engine_row){
			.pool = text_of(o, "pool"),
			.role = text_of(o, "role"),
			.url = text_of(o, "url"),
			.state = state_of(o),
			.in_flight = number_of(o, "in_flight"),
			.max_inflight = number_of(o, "max_inflight"),
			.failures = failures_of(o),
			.ejections = number_of(o, "ejections"),
			.counts_tokens = member(o, "tokens_s") != NULL,
			.tokens_s = json_object_get_double(member(o, "tokens_s")),
		};
	}
}

static void
take_pools(struct json_object *list, struct sample *s)
{
	for (size_t i = 0; i < length_of(list); i++) {
		struct json_object *queue = member(json_object_array_get_idx(list, i), "queue");

		s->waiting += number_of(queue, "waiting");
		s->queue_size += number_of(queue, "size");
	}
}

/* --- requests ----------------------------------------------------------------------------- */

static int
compare_url(const void *pa, const void *pb)
{
	return strcmp(
		(*(struct engine_row *const *)pa)->url, (*(struct engine_row *const *)pb)->url);
}

struct index {
	struct engine_row **rows; /* by their URLs */
	size_t n;
};

static struct index
index_of(struct sample *s)
{
	struct index x = {must(calloc(s->nengines + 1, sizeof(struct engine_row *))), s->nengines};

	for (size_t i = 0; i < s->nengines; i++)
		x.rows[i] = &s->engines[i];
	qsort(x.rows, x.n, sizeof(struct engine_row *), compare_url);
	return x;
}

/* The engine of this URL, role and pool; NULL: it has none. */
static struct engine_row *
engine_at(const struct index *x, struct json_object *request, const char *role)
{
	struct json_object *url = member(request, role), *pool = member(request, "pool");
	size_t low = 0, high = x->n;

	if (url == NULL || pool == NULL)
		return NULL;
	while (low < high) {
		const size_t mid = (low + high) / 2;

		if (strcmp(x->rows[mid]->url, json_object_get_string(url)) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	for (; low < x->n && strcmp(x->rows[low]->url, json_object_get_string(url)) == 0; low++)
		if (strcmp(x->rows[low]->role, role) == 0 &&
			strcmp(x->rows[low]->pool, json_object_get_string(pool)) == 0)
			return x->rows[low];
	return NULL;
}

/* Between two tokens, on the mean; 0: the answer came as a whole, or its tokens are not known. */
static uint32_t
gap_of(struct json_object *o)
{
	const uint64_t tokens = number_of(o, "completion_tokens"),
		       first_ms = number_of(o, "first_ms"), total_ms = number_of(o, "total_ms");

	return tokens > 1 && total_ms > first_ms ? (uint32_t)((total_ms - first_ms) / (tokens - 1))
						 : 0;
}

static void
take_ended(struct json_object *o, const struct index *x, struct sample *s)
{
	struct engine_row *p = engine_at(x, o, "prefill"), *d = engine_at(x, o, "decode");
	const uint64_t status = number_of(o, "status");
	const uint32_t first_ms = (uint32_t)number_of(o, "first_ms");
	const double tokens_s = (double)number_of(o, "completion_tokens") * 1e3 / SAMPLE_MS;

	s->requests_s += 1e3 / SAMPLE_MS;
	s->failed += status == 0 || status >= 400;
	if (d != NULL && !d->counts_tokens)
		d->tokens_s += tokens_s;
	if (status != 200)
		return;
	times_add(&s->firsts, first_ms);
	if (p != NULL)
		times_add(&p->firsts, first_ms);
	if (d != NULL)
		times_add(&d->firsts, first_ms);
	if (gap_of(o) == 0)
		return;
	times_add(&s->gaps, gap_of(o));
	if (d != NULL)
		times_add(&d->gaps, gap_of(o));
}

static void
take_requests(struct json_object *list, struct sample *s)
{
	const size_t n = length_of(list);
	struct index x = index_of(s);

	s->requests = must(calloc(n + 1, sizeof(*s->requests)));
	for (size_t i = 0; i < n; i++) {
		struct json_object *o = json_object_array_get_idx(list, i);
		char *state = text_of(o, "state");

		if (strcmp(state, "ended") == 0) {
			take_ended(o, &x, s);
			free(state);
			continue;
		}
		s->requests[s->nrequests++] = (struct request_row){.id = text_of(o, "id"),
			.state = state,
			.model = text_of(o, "model"),
			.prefill = text_of(o, "prefill"),
			.decode = text_of(o, "decode"),
			.total_ms = number_of(o, "total_ms")};
	}
	free(x.rows);
}

/* --- the whole ---------------------------------------------------------------------------- */

int
sample_parse(const char *status, const char *requests, struct sample *ret)
{
	struct json_object *st = json_tokener_parse(status), *rq = json_tokener_parse(requests);
	struct json_object *fleet = member(st, "fleet");
	const bool good = fleet != NULL && member(rq, "requests") != NULL;

	*ret = (struct sample){0};
	if (good) {
		ret->version = text_of(st, "version");
		ret->state = text_of(st, "state");
		ret->uptime_s = number_of(st, "uptime_s");
		take_engines(member(fleet, "endpoints"), ret);
		take_pools(member(fleet, "pools"), ret);
		take_requests(member(rq, "requests"), ret);
		ret->in_flight = ret->nrequests;
		times_rank(&ret->firsts);
		times_rank(&ret->gaps);
		for (size_t i = 0; i < ret->nengines; i++) {
			if (strcmp(ret->engines[i].role, "decode") == 0)
				ret->tokens_s += ret->engines[i].tokens_s;
			times_rank(&ret->engines[i].firsts);
			times_rank(&ret->engines[i].gaps);
		}
	}
	(void)json_object_put(st);
	(void)json_object_put(rq);
	return good ? 0 : -1;
}

void
sample_free(struct sample *s)
{
	for (size_t i = 0; i < s->nengines; i++) {
		struct engine_row *r = &s->engines[i];

		free(r->pool);
		free(r->role);
		free(r->url);
		free(r->state);
		free(r->firsts.ms);
		free(r->gaps.ms);
	}
	for (size_t i = 0; i < s->nrequests; i++) {
		struct request_row *r = &s->requests[i];

		free(r->id);
		free(r->state);
		free(r->model);
		free(r->prefill);
		free(r->decode);
	}
	free(s->engines);
	free(s->requests);
	free(s->version);
	free(s->state);
	free(s->firsts.ms);
	free(s->gaps.ms);
	*s = (struct sample){0};
}

/* --- order and choice --------------------------------------------------------------------- */

const char *
sample_sort_word(enum sample_sort by)
{
	static const char *const words[SORT_N] = {[SORT_POOL] = "pool",
		[SORT_IN_FLIGHT] = "in-flight",
		[SORT_TOKENS] = "tokens/s",
		[SORT_FIRST] = "p99",
		[SORT_GAP] = "gap99",
		[SORT_EJECTIONS] = "ejections",
		[SORT_FAILURES] = "failures"};

	return words[by];
}

static int
compare_name(const struct engine_row *a, const struct engine_row *b)
{
	int r = strcmp(a->pool, b->pool);

	if (r == 0)
		r = strcmp(b->role, a->role); /* prefill before decode */
	return r != 0 ? r : strcmp(a->url, b->url);
}

static double
figure(const struct engine_row *r, enum sample_sort by)
{
	switch (by) {
	case SORT_IN_FLIGHT:
		return (double)r->in_flight;
	case SORT_TOKENS:
		return r->tokens_s;
	case SORT_FIRST:
		return r->firsts.p99;
	case SORT_GAP:
		return r->gaps.p99;
	case SORT_EJECTIONS:
		return (double)r->ejections;
	case SORT_FAILURES:
		return (double)r->failures;
	case SORT_POOL:
	case SORT_N:
		break;
	}
	return 0;
}

/* The largest first; equal ones by their names. */
static int
compare_rows(const void *pa, const void *pb, void *by)
{
	const double a = figure(pa, *(enum sample_sort *)by),
		     b = figure(pb, *(enum sample_sort *)by);

	return a != b ? (a < b) - (a > b) : compare_name(pa, pb);
}

void
sample_sort(struct sample *s, enum sample_sort by)
{
	if (s->nengines > 0)
		qsort_r(s->engines, s->nengines, sizeof(*s->engines), compare_rows, &by);
}

bool
sample_matches(const struct engine_row *r, const char *text)
{
	return strstr(r->pool, text) != NULL || strstr(r->role, text) != NULL ||
	       strstr(r->url, text) != NULL || strstr(r->state, text) != NULL;
}
