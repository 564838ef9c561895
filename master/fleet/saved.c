#include "master/fleet/saved.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/http.h"
#include "proto/json/json_read.h"
#include "proto/json/json_small.h"
#include "proto/json/json_string.h"
#include "proto/json/splice.h"
#include "shm/base/mem.h"

#define URL_MAX 512 /* with its NUL, as the configuration and the sources take it */
#define POOL_MAX 64

/* --- reading ------------------------------------------------------------------------------ */

static int
refuse(struct saved *s, const char **ret_why, const char *why)
{
	saved_free(s);
	*ret_why = why;
	return -1;
}

static bool
parse_role(const char *text, enum role *ret)
{
	for (enum role role = 0; role < ROLE_N; role++)
		if (strcmp(text, role_name(role)) == 0) {
			*ret = role;
			return true;
		}
	return false;
}

static bool
read_weight(const struct splice_seg *entry, const char *name, uint32_t *ret)
{
	struct splice_seg value;
	uint64_t n;

	if (splice_member_raw(entry->p, entry->n, name, &value) != 1 ||
		!json_read_number(&value, CONF_WEIGHT_MAX, &n) || n == 0)
		return false;
	*ret = (uint32_t)n;
	return true;
}

static bool
add_entry(struct saved *s, const struct splice_seg *entry, bool weighs)
{
	char url[URL_MAX], pool[POOL_MAX], role[16];
	struct saved_one one = {0};
	struct http_url at;
	const char *why;

	if (!json_member_text(entry->p, entry->n, "url", url, sizeof(url)) ||
		!json_member_text(entry->p, entry->n, "pool", pool, sizeof(pool)) ||
		!json_member_text(entry->p, entry->n, "role", role, sizeof(role)) ||
		!parse_role(role, &one.role) || pool[0] == '\0' ||
		http_url_parse(url, &at, &why) != 0)
		return false;
	if (weighs && (!read_weight(entry, "weight", &one.weight) ||
			      !read_weight(entry, "configured", &one.configured)))
		return false;
	one.url = mem_strdup(url);
	one.pool = mem_strdup(pool);
	if ((s->n & (s->n + 1)) == 0) /* it is full: the room is a power of two, less one */
		s->all = mem_resize(s->all, 2 * s->n + 1, sizeof(*s->all));
	s->all[s->n++] = one;
	return true;
}

static bool
add_list(struct saved *s, const struct splice_seg *list, bool weighs)
{
	struct splice_seg entry;
	size_t at = 0;

	while (splice_element(list, &at, &entry))
		if (!add_entry(s, &entry, weighs))
			return false;
	return true;
}

int
saved_parse(const char *text, size_t len, struct saved *ret, const char **ret_why)
{
	struct splice_seg version, list;
	uint64_t number = 0;

	*ret = (struct saved){0};
	if (len > SAVED_BYTES_MAX)
		return refuse(ret, ret_why, "the file is too large");
	if (splice_member_raw(text, len, "pdrouter_state", &version) != 1 ||
		!json_read_number(&version, UINT64_MAX, &number) || number == 0)
		return refuse(ret, ret_why, "the file is no JSON object with a version");
	if (number > SAVED_VERSION)
		return refuse(ret, ret_why, "a newer version of pdrouter has written the file");
	if (splice_member_raw(text, len, "drained", &list) != 1 || list.p[0] != '[')
		return refuse(ret, ret_why, "the file has no list of drained endpoints");
	if (!add_list(ret, &list, false))
		return refuse(ret, ret_why, "a drained endpoint lacks a url, role or pool");
	if (splice_member_raw(text, len, "weights", &list) != 1)
		return 0;
	if (list.p[0] != '[' || !add_list(ret, &list, true))
		return refuse(ret, ret_why, "a weight is wrong, or lacks a url, role or pool");
	return 0;
}

void
saved_free(struct saved *s)
{
	for (size_t i = 0; i < s->n; i++) {
		free(s->all[i].url);
		free(s->all[i].pool);
	}
	free(s->all);
	*s = (struct saved){0};
}

/* --- writing ------------------------------------------------------------------------------ */

static int
compare(const void *pa, const void *pb)
{
	const struct saved_one *a = pa, *b = pb;
	int r = (a->weight > 0) - (b->weight > 0);

	if (r == 0)
		r = strcmp(a->pool, b->pool);
	if (r == 0)
		r = (a->role > b->role) - (a->role < b->role);
	return r != 0 ? r : strcmp(a->url, b->url);
}

static void
add_text(struct membuf *out, const char *text)
{
	membuf_add(out, text, strlen(text));
}

static void
add_member(struct membuf *out, const char *before, const char *text)
{
	const size_t n = strlen(text), size = 6 * n + 3; /* each byte as \u00xx, quotes, NUL */
	char *quoted = mem_array(size, 1);
	const long written = json_quote(quoted, size, text, n, n);

	add_text(out, before);
	membuf_add(out, quoted, written > 0 ? (size_t)written : 0);
	free(quoted);
}

static void
add_one(struct membuf *out, const struct saved_one *one, bool first)
{
	char weights[64];

	add_member(out, first ? "\n{\"pool\":" : ",\n{\"pool\":", one->pool);
	add_member(out, ",\"role\":", role_name(one->role));
	add_member(out, ",\"url\":", one->url);
	if (one->weight > 0) {
		(void)snprintf(weights, sizeof(weights),
			",\"weight\":%" PRIu32 ",\"configured\":%" PRIu32, one->weight,
			one->configured);
		add_text(out, weights);
	}
	add_text(out, "}");
}

void
saved_write(struct saved_one *all, size_t n, struct membuf *out)
{
	bool weights = false, first = true;
	char head[64];

	if (n > 0)
		qsort(all, n, sizeof(*all), compare);
	(void)snprintf(
		head, sizeof(head), "{\"pdrouter_state\": %d, \"drained\": [", SAVED_VERSION);
	add_text(out, head);
	for (size_t i = 0; i < n; i++) {
		if (i > 0 && compare(&all[i - 1], &all[i]) == 0)
			continue;
		if (all[i].weight > 0 && !weights) {
			add_text(out, "\n], \"weights\": [");
			weights = first = true;
		}
		add_one(out, &all[i], first);
		first = false;
	}
	add_text(out, "\n]}\n");
}
