/*
 * Usages: {"prompt_tokens":9,"total_tokens":16,"completion_tokens":7,"prompt_tokens_details":
 * {"cached_tokens":8}} (vLLM; null unless --enable-prompt-tokens-details), more members in newer
 * versions and in SGLang.  D counts the KV that it received as cached, and counts the first token,
 * which P made, as part of the prompt.
 */
#include <string.h>

#include "proto/answer/answer_in.h"
#include "proto/json/json_small.h"

static const char details_key[] = "prompt_tokens_details", cached_key[] = "cached_tokens";

/* Limit of a kept usage: real ones have some 300 bytes, and a sum reads each member of each. */
#define USAGE_MAX 4096

int
usage_prefill(struct answer *a, uint32_t part, const struct splice_seg *usage)
{
	struct part *p = &a->part[part];
	struct splice_seg details, cached;
	uint64_t n;

	if (usage->n > USAGE_MAX)
		return ANSWER_BAD;
	if (a->how.first_token && !keep(a, usage, &p->prefill_usage))
		return ANSWER_LARGE;
	if (splice_member_raw(usage->p, usage->n, details_key, &details) != 1 ||
		details.p[0] != '{' ||
		splice_member_raw(details.p, details.n, cached_key, &cached) != 1 ||
		!seg_number(&cached, &n))
		return ANSWER_OK;
	return keep(a, &cached, &p->cached) ? ANSWER_OK : ANSWER_LARGE;
}

/* P's prompt was one token shorter than D's, and that token was the first of the completion. */
static void
put_shifted(struct membuf *out, const struct splice_seg *key, const struct splice_seg *value)
{
	uint64_t n;

	if (json_read_is(key, "prompt_tokens") && seg_number(value, &n) && n > 0)
		put_number(out, n - 1);
	else if (json_read_is(key, "completion_tokens") && seg_number(value, &n))
		put_number(out, n + 1);
	else
		put_seg(out, value);
}

static void
put_cached(struct membuf *out, const struct splice_seg *cached)
{
	PUT(out, "{\"cached_tokens\":");
	put_seg(out, cached);
	PUT(out, "}");
}

/*
 * prompt_tokens_details with P's count.  If P sent none: 0 if the operator wants the count
 * corrected (as llm-d's router does), else null, because D's count has another meaning here.
 */
static void
put_details(const struct answer *a, const struct splice_seg *cached,
	const struct splice_seg *details, struct membuf *out)
{
	struct splice_seg old;
	size_t before;

	if (details->n == 0 || details->p[0] != '{') {
		if (cached->n > 0)
			put_cached(out, cached);
		else
			put_seg(out, details);
		return;
	}
	if (splice_member_raw(details->p, details->n, cached_key, &old) != 1 ||
		(seg_is_null(&old) && cached->n == 0)) {
		put_seg(out, details);
		return;
	}
	if (cached->n == 0 && !a->how.cached_from_prefill) {
		PUT(out, "null");
		return;
	}
	before = (size_t)(old.p - details->p);
	membuf_add(out, details->p, before);
	if (cached->n > 0)
		put_seg(out, cached);
	else
		PUT(out, "0");
	membuf_add(out, old.p + old.n, details->n - before - old.n);
}

int
usage_correct(struct answer *a, uint32_t part, const struct splice_seg *usage, struct membuf *out)
{
	struct splice_seg cached = kept_get(a, &a->part[part].cached), key, value;
	bool detailed = false, any = false;
	struct copy c;

	if (!a->how.first_token && !a->how.cached_from_prefill) {
		put_seg(out, usage);
		return ANSWER_OK;
	}
	copy_start(&c, usage, out);
	(void)json_read_enter(&c.r, '{');
	for (; json_read_member(&c.r, &key); any = true) {
		value = json_read_value(&c.r);
		copy_past(&c, &value);
		if (json_read_is(&key, details_key)) {
			put_details(a, &cached, &value, out);
			detailed = true;
		} else if (a->how.first_token) {
			put_shifted(out, &key, &value);
		} else {
			put_seg(out, &value);
		}
	}
	if (!json_read_done(&c.r))
		return ANSWER_BAD;
	copy_up_to(&c, c.r.p - 1);
	if (cached.n > 0 && !detailed) {
		if (any)
			PUT(out, ",");
		PUT(out, "\"prompt_tokens_details\":");
		put_cached(out, &cached);
	}
	PUT(out, "}");
	return ANSWER_OK;
}

int
usage_keep(struct answer *a, uint32_t part, const struct splice_seg *usage)
{
	struct splice_seg right;
	int r;

	a->scratch.n = 0;
	r = usage_correct(a, part, usage, &a->scratch);
	if (r != ANSWER_OK || a->scratch.n > USAGE_MAX)
		return r != ANSWER_OK ? r : ANSWER_BAD;
	right = (struct splice_seg){a->scratch.p, a->scratch.n};
	return keep(a, &right, &a->part[part].usage) ? ANSWER_OK : ANSWER_LARGE;
}

/* --- sums -------------------------------------------------------------------------------- */

/* A part's member, in `outer` if that is not none. */
static uint64_t
part_number(const struct answer *a, uint32_t part, const char *outer, const char *name)
{
	struct splice_seg in = kept_get(a, &a->part[part].usage);
	uint64_t n = 0;

	if (in.n == 0 || (outer[0] != '\0' && splice_member_raw(in.p, in.n, outer, &in) != 1))
		return 0;
	(void)json_member_number(in.p, in.n, name, COUNT_MAX, &n);
	return n;
}

/* The samples of one prompt share it: it counts once. */
static uint64_t
sum(const struct answer *a, const char *outer, const char *name)
{
	const char *top = outer[0] != '\0' ? outer : name;
	uint32_t step = strncmp(top, "prompt_", 7) == 0 ? a->how.samples : 1;
	uint64_t n = 0;

	for (uint32_t i = 0; i < a->how.parts; i += step)
		n += part_number(a, i, outer, name);
	return n;
}

#define NAME_MAX_LEN                                                                               \
	64 /* no member of a usage has a longer name; a longer one would pass unchanged */

static bool
name_of(const struct splice_seg *key, char name[NAME_MAX_LEN])
{
	if (key->n >= NAME_MAX_LEN || memchr(key->p, '\\', key->n) != NULL)
		return false;
	memcpy(name, key->p, key->n);
	name[key->n] = '\0';
	return true;
}

/* The object with its numbers replaced by sums; objects inside it too, one deep. */
static void
put_sums(const struct answer *a, const struct splice_seg *object, const char *outer,
	struct membuf *out)
{
	struct splice_seg key, value;
	char name[NAME_MAX_LEN];
	struct copy c;
	uint64_t n;

	copy_start(&c, object, out);
	(void)json_read_enter(&c.r, '{');
	while (json_read_member(&c.r, &key)) {
		value = json_read_value(&c.r);
		copy_past(&c, &value);
		if (!name_of(&key, name))
			put_seg(out, &value);
		else if (outer[0] == '\0' && value.p[0] == '{')
			put_sums(a, &value, name, out);
		else if (!seg_number(&value, &n))
			put_seg(out, &value);
		else if (outer[0] == '\0' && strcmp(name, "total_tokens") == 0)
			put_number(
				out, sum(a, "", "prompt_tokens") + sum(a, "", "completion_tokens"));
		else
			put_number(out, sum(a, outer, name));
	}
	copy_up_to(&c, object->p + object->n);
}

bool
usage_sum(const struct answer *a, struct membuf *out)
{
	for (uint32_t i = 0; i < a->how.parts; i++) {
		struct splice_seg usage = kept_get(a, &a->part[i].usage);

		if (usage.n == 0)
			continue;
		if (a->how.parts == 1)
			put_seg(out, &usage);
		else
			put_sums(a, &usage, "", out);
		return true;
	}
	return false;
}
