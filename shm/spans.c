#include "shm/spans.h"

#include <assert.h>
#include <string.h>

#include "shm/core/suspect.h"
#include "shm/metrics.h"
#include "shm/ring.h"

/* Before each attribute.  The value follows: the bytes of a text, or a uint64_t. */
struct attr_head {
	uint8_t key;
	uint8_t zero;
	uint16_t bytes;
};

enum attr_type { TEXT, NUMBER };
#define ATTR_TYPE(id, name, type) [SA_##id] = (type),
static const enum attr_type types[SA_N] = {SPAN_ATTRS(ATTR_TYPE)};
#undef ATTR_TYPE

static_assert(SPAN_TEXT_MAX <= UINT16_MAX, "attr_head.bytes");
static_assert(SA_N <= UINT8_MAX && SPAN_NNAMES <= UINT8_MAX, "one byte each");
static_assert(SA_N <= 32, "has_good_attrs() has a bit for each key");
static_assert(sizeof(struct span_record) == SPAN_MAX, "no padding");

/* --- the writer ---------------------------------------------------------------------------------- */

void
span_init(struct span_record *s, enum span_name name, const char *trace)
{
	s->head = (struct span_head){.bytes = sizeof(s->head), .name = (uint8_t)name};
	memcpy(s->head.trace, trace, SPAN_TRACE);
}

static void
add(struct span_record *s, enum span_attr key, const void *value, size_t n)
{
	const struct attr_head head = {.key = (uint8_t)key, .bytes = (uint16_t)n};
	unsigned char *to = (unsigned char *)s + s->head.bytes;

	if (s->head.bytes + sizeof(head) + n > SPAN_MAX)
		return;
	memcpy(to, &head, sizeof(head));
	memcpy(to + sizeof(head), value, n);
	s->head.bytes += (uint32_t)(sizeof(head) + n);
}

void
span_text(struct span_record *s, enum span_attr key, const char *text)
{
	assert(types[key] == TEXT);
	if (text != NULL && text[0] != '\0')
		add(s, key, text, strnlen(text, SPAN_TEXT_MAX));
}

void
span_number(struct span_record *s, enum span_attr key, uint64_t n)
{
	assert(types[key] == NUMBER);
	add(s, key, &n, sizeof(n));
}

void
span_put(struct seg *seg, uint32_t worker, const struct span_record *s)
{
	if (!ring_put(seg_span_ring(seg, worker), seg->hdr->span_bytes, s, s->head.bytes))
		metric_add(seg_slab(seg, worker), M_SPANS_DROPPED, 1);
}

/* --- the reader ---------------------------------------------------------------------------------- */

uint64_t
spans_begin(const struct seg *seg, uint32_t worker)
{
	return ring_begin(seg_span_ring(seg, worker));
}

void
spans_done(struct seg *seg, uint32_t worker, uint64_t at)
{
	ring_done(seg_span_ring(seg, worker), at);
}

void
spans_mend(struct seg *seg, uint32_t worker, uint64_t at)
{
	if (suspect(SUSPECT_SPANS, worker, spans_begin(seg, worker) != at))
		spans_done(seg, worker, at);
}

/* Returns true if an attribute is at this offset, and returns the offset behind it. */
static bool
is_attr(const struct span_record *s, size_t at, struct attr_head *ret_head, size_t *ret_behind)
{
	const size_t left = s->head.bytes - at;

	if (left < sizeof(*ret_head))
		return false;
	memcpy(ret_head, (const unsigned char *)s + at, sizeof(*ret_head));
	*ret_behind = at + sizeof(*ret_head) + ret_head->bytes;
	if (ret_head->key >= SA_N || ret_head->bytes > left - sizeof(*ret_head))
		return false;
	return types[ret_head->key] == TEXT
		       ? ret_head->bytes > 0 && ret_head->bytes <= SPAN_TEXT_MAX
		       : ret_head->bytes == sizeof(uint64_t);
}

/* Returns true if the attributes fill the record, and no key is there twice: a record has SA_N attributes at most. */
static bool
has_good_attrs(const struct span_record *s)
{
	uint32_t seen = 0;
	struct attr_head head;

	for (size_t at = sizeof(s->head); at < s->head.bytes;) {
		if (!is_attr(s, at, &head, &at) || (seen >> head.key & 1) != 0)
			return false;
		seen |= UINT32_C(1) << head.key;
	}
	return true;
}

static bool
is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
}

/* Returns true if the copy is a record of `bytes` bytes. */
static bool
is_record(const struct span_record *s, size_t bytes)
{
	const struct span_head *h = &s->head;

	if (h->bytes != bytes || h->name >= SPAN_NNAMES || h->outcome >= SPAN_NOUTCOMES ||
		h->id == 0 || h->until_us < h->from_us)
		return false;
	for (size_t i = 0; i < SPAN_TRACE; i++)
		if (!is_hex(h->trace[i]))
			return false;
	return has_good_attrs(s);
}

/* Copies the record at a position.  Returns its bytes; 0: what is there is none. */
static size_t
take(const struct seg *seg, uint32_t worker, uint64_t at, uint64_t left, struct span_record *ret)
{
	const struct byte_ring *ring = seg_span_ring(seg, worker);
	const uint32_t size = seg->hdr->span_bytes;
	uint32_t bytes;

	if (left < sizeof(ret->head))
		return 0;
	ring_copy(ring, size, at, &bytes, sizeof(bytes));
	if (bytes < sizeof(ret->head) || bytes > SPAN_MAX || bytes > left)
		return 0;
	ring_copy(ring, size, at, ret, bytes);
	return is_record(ret, bytes) ? bytes : 0;
}

bool
spans_next(struct seg *seg, uint32_t worker, uint64_t *at, struct span_record *ret)
{
	const uint64_t written = ring_end(seg_span_ring(seg, worker));
	const uint64_t left = written - *at;
	size_t bytes;

	if (left == 0)
		return false;
	bytes = left > seg->hdr->span_bytes ? 0 : take(seg, worker, *at, left, ret);
	if (suspect(SUSPECT_SPANS, worker, bytes == 0)) {
		*at = written;
		spans_done(seg, worker, written);
		return false;
	}
	*at += bytes;
	return true;
}

bool
span_next_value(const struct span_record *s, size_t *at, struct span_value *ret)
{
	const size_t from = *at == 0 ? sizeof(s->head) : *at;
	const unsigned char *value = (const unsigned char *)s + from + sizeof(struct attr_head);
	struct attr_head head;

	if (from >= s->head.bytes || !is_attr(s, from, &head, at))
		return false;
	*ret = (struct span_value){.key = head.key, .n = head.bytes};
	if (types[head.key] == TEXT)
		ret->text = (const char *)value;
	else
		memcpy(&ret->number, value, sizeof(ret->number));
	return true;
}
