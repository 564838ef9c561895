/* What all files of this module use: the store of kept texts, numbers, what is known of an answer. */
#include <inttypes.h>
#include <stdio.h>

#include "proto/answer/answer_in.h"

void
put_number(struct membuf *out, uint64_t n)
{
	char buf[24];
	int len = snprintf(buf, sizeof(buf), "%" PRIu64, n);

	membuf_add(out, buf, (size_t)len);
}

bool
keep_room(struct answer *a, size_t n)
{
	size_t used = a->store.n + a->extra;

	return used <= a->max_bytes && n <= a->max_bytes - used;
}

bool
keep(struct answer *a, const struct splice_seg *text, struct kept *ret)
{
	if (!keep_room(a, text->n))
		return false;
	*ret = (struct kept){a->store.n, text->n};
	put_seg(&a->store, text);
	return true;
}

bool
find_once(const struct splice_seg *key, const char *const *names, size_t n, unsigned *seen,
	size_t *ret)
{
	size_t i = 0;
	bool again;

	while (i < n && !json_read_is(key, names[i]))
		i++;
	*ret = i;
	again = i < n && (*seen >> i & 1) != 0;
	*seen |= i < n ? 1u << i : 0;
	return !again;
}

bool
says_error(const struct splice_seg *key, const struct splice_seg *value)
{
	return (json_read_is(key, "error") && !seg_is_null(value)) ||
	       (json_read_is(key, "object") && json_read_is(value, "\"error\""));
}

#define KNOWN_MAX 1024 /* bytes of an id or a model's name; real ones have some 50 */

int
know(struct answer *a, const char *json, size_t n)
{
	struct splice_seg key, value;
	bool fits = true, shorts = true;
	struct json_read r;

	if (a->known)
		return ANSWER_OK;
	json_read_init(&r, json, n);
	(void)json_read_enter(&r, '{');
	while (json_read_member(&r, &key)) {
		struct kept *to = json_read_is(&key, "id") && a->how.id == NULL ? &a->id
				  : json_read_is(&key, "created")               ? &a->created
				  : json_read_is(&key, "model")                 ? &a->model
										: NULL;

		value = json_read_value(&r);
		shorts &= to == NULL || value.n <= KNOWN_MAX;
		fits &= to == NULL || !shorts || keep(a, &value, to);
	}
	if (!json_read_done(&r) || !shorts)
		return ANSWER_BAD;
	a->known = true;
	return fits ? ANSWER_OK : ANSWER_LARGE;
}

bool
choice_number(const struct answer *a, uint32_t part, uint64_t k, uint64_t *ret)
{
	if (k >= a->how.choices)
		return false;
	*ret = (uint64_t)part * a->how.choices + k;
	return true;
}
