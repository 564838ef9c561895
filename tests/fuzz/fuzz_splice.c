/*
 * proto/splice: the input is a body; its hash chooses one of the edits.
 *
 * Held against it: what the scan accepts, json-c accepts; the result of every edit is accepted
 * again by both, with the members the edit asked for; what stands outside the owned members stays
 * as it is, in order; splice_member_raw() and splice_find() agree; json_quote() of anything is a
 * JSON string; a scan in steps finds the same.
 */
#include "proto/json/json_string.h"
#include "proto/json/splice.h"

#include <json-c/json.h>

#include "proto/json/utf8.h"
#include "tests/fuzz/check.h"
#include "tests/unit/proto/json/in_steps.h"

static void
check_json(const char *text, size_t len)
{
	struct json_tokener *tok = json_tokener_new_ex(SPLICE_MAX_DEPTH + 2);
	struct json_object *doc;

	json_tokener_set_flags(tok, JSON_TOKENER_STRICT | JSON_TOKENER_ALLOW_TRAILING_CHARS);
	doc = json_tokener_parse_ex(tok, text, (int)len);
	CHECK(doc != NULL);
	CHECK(json_object_is_type(doc, json_type_object));
	(void)json_object_put(doc);
	json_tokener_free(tok);
}

static char *
edited(const struct splice *s, const struct splice_edit *e, size_t *ret_len)
{
	struct splice_seg segs[SPLICE_MAX_SEGMENTS];
	size_t n = splice_layout(s, e, segs, ret_len), at = 0;
	char *out = malloc(*ret_len);

	CHECK(n > 0 && n <= SPLICE_MAX_SEGMENTS && out != NULL);
	for (size_t i = 0; i < n; at += segs[i++].n) {
		CHECK(segs[i].n > 0 && segs[i].n <= *ret_len - at);
		memcpy(out + at, segs[i].p, segs[i].n);
	}
	CHECK(at == *ret_len);
	return out;
}

/* The text without its owned members, blanks and commas. */
static size_t
rest(const struct splice *s, char *out)
{
	size_t n = 0, next = 0;

	for (size_t i = 0; i < s->len; i++) {
		if (next < s->nowned && i == s->owned[next].start)
			i = s->owned[next++].end;
		if (strchr(" \t\r\n,", s->text[i]) == NULL)
			out[n++] = s->text[i];
	}
	return n;
}

static void
check_rest(const struct splice *a, const struct splice *b)
{
	char *ra = malloc(a->len), *rb = malloc(b->len);
	size_t na = rest(a, ra), nb = rest(b, rb);

	CHECK(na == nb && memcmp(ra, rb, na) == 0);
	free(ra);
	free(rb);
}

static size_t
count(const struct splice *s, enum splice_key k)
{
	size_t n = 0;

	for (size_t i = 0; i < s->nowned; i++)
		n += s->owned[i].key == k;
	return n;
}

static void
check_edit(const struct splice *s, const struct splice_edit *e)
{
	static const size_t most[] = {[SE_CUT] = 0, [SE_SET] = 1, [SE_LOWER] = 1};
	size_t len, at;
	char *out = edited(s, e, &len);
	const char *why;
	struct splice after;

	CHECK(splice_scan(&after, out, len, &why, &at) == 0);
	check_json(out, len);
	check_rest(s, &after);
	for (unsigned k = 0; k < SK_N_KEYS; k++) {
		enum splice_op op = splice_op_of(e, (enum splice_key)k);
		size_t before = count(s, (enum splice_key)k),
		       now = count(&after, (enum splice_key)k);
		const struct splice_member *m = splice_find(&after, (enum splice_key)k);

		if (op == SE_KEEP) {
			CHECK(now == before);
			continue;
		}
		CHECK(now == (op == SE_LOWER && before == 0 ? 0 : most[op]));
		CHECK(now == 0 || (m->end - m->val == e->on[k].len &&
					  memcmp(out + m->val, e->on[k].value, e->on[k].len) == 0));
	}
	free(out);
}

static void
check_members(const struct splice *s)
{
	size_t last = 0;

	for (size_t i = 0; i < s->nowned; i++) {
		const struct splice_member *m = &s->owned[i];

		CHECK(m->start >= last && m->start < m->val && m->val < m->end &&
			m->end <= s->close);
		CHECK(m->comma == 0 ? m->index == 0
				    : s->text[m->comma] == ',' && m->comma < m->start);
		CHECK(m->next == 0 ? m->index + 1 == s->nmembers
				   : s->text[m->next] == '"' && m->next > m->end);
		last = m->end;
	}
	for (unsigned k = 0; k < SK_N_KEYS; k++) {
		const struct splice_member *m = splice_find(s, (enum splice_key)k);
		struct splice_seg seg;
		int r = splice_member_raw(
			s->text, s->len, splice_key_name((enum splice_key)k), &seg);

		CHECK(r == (m != NULL));
		CHECK(m == NULL || (seg.p == s->text + m->val && seg.n == m->end - m->val));
	}
}

static void
check_string(const struct splice *s)
{
	const struct splice_member *m = splice_find(s, SK_MODEL);
	char buf[64];
	long n;

	if (m == NULL)
		return;
	n = splice_string(s, m, buf, sizeof(buf));
	CHECK(n < (long)sizeof(buf));
	CHECK(n < 0 || strlen(buf) == (size_t)n);
	for (long i = 0; i < n;) {
		size_t seq = utf8_seq((const uint8_t *)buf + i, (size_t)(n - i));

		CHECK(seq > 0);
		i += (long)seq;
	}
}

static void
check_quote(const char *text, size_t len, size_t max)
{
	size_t size = 10 + 6 * len + 3, at;
	char *out = malloc(size);
	const char *why;
	struct splice s;
	long n;

	CHECK(out != NULL);
	memcpy(out, "{\"model\":", 9);
	n = json_quote(out + 9, size - 10, text, len, max);
	CHECK(n >= 2);
	out[9 + n] = '}';
	CHECK(splice_scan(&s, out, 10 + (size_t)n, &why, &at) == 0);
	free(out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const char *const new_values[] = {"1", "\"\\\"}\"", "{\"n\":[]}", "null"};
	struct splice_edit e;
	uint32_t hash = 2166136261;
	char *text = exact_copy(data, size);
	const char *why = NULL;
	size_t at = SIZE_MAX;
	struct splice s;
	size_t nsteps;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ data[i]) * 16777619;
	check_quote(text, size, hash % (size + 2));
	CHECK(same_in_steps(text, size, 1 + hash % (size + 1), &nsteps));
	if (splice_scan(&s, text, size, &why, &at) != 0) {
		CHECK(why != NULL && at <= size);
		free(text);
		return 0;
	}
	check_json(text, size);
	check_members(&s);
	check_string(&s);
	if (s.nowned >
		SPLICE_MAX_OWNED - SK_N_KEYS) { /* the result could hold too many to be scanned */
		free(text);
		return 0;
	}
	for (unsigned round = 0; round < 6; round++) {
		e.given = 0;
		for (unsigned k = 0; k < SK_N_KEYS; k++) {
			/* rounds 0..3 do the same to all, the others mix */
			const unsigned op = round < 4 ? round : hash >> 30;
			const char *value = new_values[hash >> 28 & 3];

			if (op != SE_KEEP || (hash & 1) != 0)
				splice_edit(&e, (enum splice_key)k, (enum splice_op)op, value,
					strlen(value));
			hash = hash * 1664525 + 1013904223;
		}
		check_edit(&s, &e);
	}
	free(text);
	return 0;
}
