#include "proto/wire/kv_events.h"

#include <string.h>

#include "proto/wire/msgpack.h"

/* The members that are used, and where they stand in the array form behind the tag. */
enum member {
	M_NONE,
	M_HASHES,
	M_PARENT,
	M_IDS,
	M_LORA_ID,
	M_LORA_NAME,
	M_EXTRA,
	M_BLOCK_SIZE,
	M_MEDIUM,
	M_GROUP,
	M_TS,
	M_EVENTS,
	M_RANK
};

struct name {
	const char *text;
	enum member member;
};

static const struct name event_names[] = {{"block_hashes", M_HASHES}, {"block_size", M_BLOCK_SIZE},
	{"medium", M_MEDIUM}, {"group_idx", M_GROUP}, {"parent_block_hash", M_PARENT},
	{"token_ids", M_IDS}, {"lora_id", M_LORA_ID}, {"lora_name", M_LORA_NAME},
	{"extra_keys", M_EXTRA}};
static const struct name batch_names[] = {
	{"ts", M_TS}, {"events", M_EVENTS}, {"data_parallel_rank", M_RANK}};

/* hashes, parent, tokens, block_size, lora_id, medium, lora_name, extra_keys, group_idx */
static const enum member stored_order[] = {M_HASHES, M_PARENT, M_IDS, M_BLOCK_SIZE, M_LORA_ID,
	M_MEDIUM, M_LORA_NAME, M_EXTRA, M_GROUP};
static const enum member removed_order[] = {M_HASHES, M_MEDIUM, M_GROUP};
static const enum member batch_order[] = {M_TS, M_EVENTS, M_RANK};

static const struct kind {
	const char *tag;
	enum kv_event_kind kind;
	const enum member *order;
	size_t norder;
} kinds[] = {
	{"BlockStored", KV_EVENT_STORED, stored_order,
		sizeof(stored_order) / sizeof(stored_order[0])},
	{"BlockRemoved", KV_EVENT_REMOVED, removed_order,
		sizeof(removed_order) / sizeof(removed_order[0])},
	{"AllBlocksCleared", KV_EVENT_CLEARED, NULL, 0},
};

static const struct kind *
kind_of(const struct msgpack_value *tag)
{
	const struct msgpack_text text = msgpack_text(tag);

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (msgpack_is(&text, kinds[i].tag))
			return &kinds[i];
	return NULL;
}

static enum member
member_named(const struct name *names, size_t n, const struct msgpack_value *key)
{
	const struct msgpack_text text = msgpack_text(key);

	for (size_t i = 0; i < n; i++)
		if (msgpack_is(&text, names[i].text))
			return names[i].member;
	return M_NONE;
}

/* What an event's members say so far. */
struct draft {
	const struct kind *kind;
	bool has_hashes, absurd, elsewhere;
	uint64_t blocks, block_size;
	struct kv_event e; /* what the message's bytes say */
};

/* An integer, whatever its sign, or bytes: the first 8 of them are as good as any, for a hash has no order. */
static bool
hash_of(const struct msgpack_value *v, uint64_t *ret)
{
	uint8_t bytes[sizeof(*ret)] = {0};

	if (msgpack_uint(v, ret))
		return true;
	if (v->kind == MSGPACK_SCALAR && v->tag >= 0xe0) { /* -32 to -1 */
		*ret = v->tag;
		return true;
	}
	if (v->n == 0 || (v->kind != MSGPACK_BYTES && v->kind != MSGPACK_SCALAR))
		return false;
	memcpy(bytes, v->bytes, v->n < sizeof(bytes) ? v->n : sizeof(bytes));
	memcpy(ret, bytes, sizeof(bytes));
	return true;
}

/* Texts of the first block: [["adapter", "salt"], nil, ...]. */
static void
take_extra(struct kv_event *e, struct msgpack r, const struct msgpack_value *blocks)
{
	struct msgpack_value first, v;

	e->nextra = 0;
	if (blocks->kind != MSGPACK_ARRAY || blocks->n == 0 || !msgpack_next(&r, &first) ||
		msgpack_nil(&first))
		return;
	e->nextra = KV_EVENT_EXTRA_MAX + 1;
	if (first.kind != MSGPACK_ARRAY || first.n > KV_EVENT_EXTRA_MAX)
		return;
	for (uint64_t i = 0; i < first.n; i++) {
		if (!msgpack_next(&r, &v) || v.kind != MSGPACK_BYTES)
			return;
		e->extra[i] = msgpack_text(&v);
	}
	e->nextra = (unsigned)first.n;
}

/* `r` is behind the value, or before what it holds. */
static void
take(struct draft *d, enum member m, const struct msgpack_value *v, const struct msgpack *r)
{
	const struct msgpack_text text = msgpack_text(v);
	uint64_t group;

	switch (m) {
	case M_HASHES:
		d->has_hashes = v->kind == MSGPACK_ARRAY;
		d->blocks = d->has_hashes ? v->n : 0;
		d->e.hashes = (struct kv_list){*r, d->blocks};
		break;
	case M_PARENT:
		d->e.first = !hash_of(v, &d->e.parent);
		break;
	case M_IDS:
		d->e.ids = (struct kv_list){*r, v->kind == MSGPACK_ARRAY ? v->n : 0};
		break;
	case M_LORA_ID:
		d->e.adapter |= !msgpack_nil(v);
		break;
	case M_LORA_NAME:
		d->e.adapter |= !msgpack_nil(v);
		d->e.adapter_name = text;
		break;
	case M_EXTRA:
		take_extra(&d->e, *r, v);
		break;
	case M_BLOCK_SIZE:
		d->absurd = !msgpack_uint(v, &d->block_size);
		break;
	case M_MEDIUM:
		d->elsewhere |= text.p != NULL && !msgpack_is(&text, "GPU");
		break;
	case M_GROUP:
		d->elsewhere |= msgpack_uint(v, &group) && group != 0;
		break;
	case M_NONE:
	case M_TS:
	case M_EVENTS:
	case M_RANK:
		break;
	}
}

static struct kv_event
event_of(const struct draft *d)
{
	struct kv_event e = d->e;

	e.kind = KV_EVENT_OTHER;
	if (d->kind == NULL)
		return e;
	e.kind = d->kind->kind;
	e.counts = !d->elsewhere;
	if (e.kind == KV_EVENT_CLEARED)
		return e;
	e.blocks = d->blocks;
	e.block_tokens = (uint32_t)d->block_size;
	if (!d->has_hashes || d->absurd || d->block_size > KV_EVENTS_BLOCK_MAX ||
		(e.kind == KV_EVENT_STORED && d->block_size == 0))
		e.kind = KV_EVENT_BAD;
	return e;
}

/* The i-th value of an array whose first is the tag. */
static enum member
member_at(const struct draft *d, uint64_t i)
{
	return d->kind != NULL && i - 1 < d->kind->norder ? d->kind->order[i - 1] : M_NONE;
}

/* False: the message ends in it. */
static bool
read_event(struct msgpack *r, struct draft *d)
{
	struct msgpack_value event, v;

	*d = (struct draft){.kind = NULL, .e = {.first = true}};
	if (!msgpack_next(r, &event))
		return false;
	if (event.kind != MSGPACK_ARRAY && event.kind != MSGPACK_MAP)
		return true;
	for (uint64_t i = 0; i < event.n; i++) {
		enum member m = M_NONE;
		bool tag = event.kind == MSGPACK_ARRAY && i == 0;

		if (event.kind == MSGPACK_ARRAY) {
			m = member_at(d, i);
		} else {
			struct msgpack_text text;

			if (!msgpack_next(r, &v) || !msgpack_skip(r, &v))
				return false;
			text = msgpack_text(&v);
			tag = msgpack_is(&text, "type");
			m = member_named(
				event_names, sizeof(event_names) / sizeof(event_names[0]), &v);
		}
		if (!msgpack_next(r, &v))
			return false;
		if (tag)
			d->kind = kind_of(&v);
		else
			take(d, m, &v, r);
		if (!msgpack_skip(r, &v))
			return false;
	}
	return true;
}

static bool
read_events(struct msgpack *r, const struct msgpack_value *list, kv_event_fn *fn, void *arg)
{
	if (list->kind != MSGPACK_ARRAY)
		return false;
	for (uint64_t i = 0; i < list->n; i++) {
		struct kv_event e;
		struct draft d;

		if (!read_event(r, &d))
			return false;
		e = event_of(&d);
		fn(&e, arg);
	}
	return true;
}

bool
kv_events_read(const void *msg, size_t len, struct kv_batch *ret, kv_event_fn *fn, void *arg)
{
	struct msgpack r = {.p = msg, .end = (const uint8_t *)msg + len};
	struct msgpack_value batch, v;
	bool has_events = false;
	uint64_t rank;

	*ret = (struct kv_batch){.rank = 0};
	if (!msgpack_next(&r, &batch) || (batch.kind != MSGPACK_ARRAY && batch.kind != MSGPACK_MAP))
		return false;
	for (uint64_t i = 0; i < batch.n; i++) {
		enum member m =
			i < sizeof(batch_order) / sizeof(batch_order[0]) ? batch_order[i] : M_NONE;

		if (batch.kind == MSGPACK_MAP) {
			if (!msgpack_next(&r, &v) || !msgpack_skip(&r, &v))
				return false;
			m = member_named(
				batch_names, sizeof(batch_names) / sizeof(batch_names[0]), &v);
		}
		if (!msgpack_next(&r, &v))
			return false;
		if (m == M_EVENTS && !has_events) {
			if (!read_events(&r, &v, fn, arg))
				return false;
			has_events = true;
			continue;
		}
		if (m == M_TS)
			(void)msgpack_double(&v, &ret->at_s);
		if (m == M_RANK && msgpack_uint(&v, &rank) && rank <= UINT32_MAX)
			ret->rank = (uint32_t)rank;
		if (!msgpack_skip(&r, &v))
			return false;
	}
	return has_events && r.p == r.end;
}

/* Most ids have two or four bytes. */
bool
kv_events_id(struct kv_list *ids, uint32_t *ret)
{
	const uint8_t *p = ids->at.p;
	struct msgpack_value v;
	uint64_t id;

	if (ids->n == 0)
		return false;
	ids->n--;
	if (ids->at.end - p >= 5 && (p[0] == 0xcd || p[0] == 0xce)) {
		*ret = (uint32_t)p[1] << 8 | p[2];
		ids->at.p += 3;
		if (p[0] == 0xce) {
			*ret = *ret << 16 | (uint32_t)p[3] << 8 | p[4];
			ids->at.p += 2;
		}
		return true;
	}
	if (!msgpack_next(&ids->at, &v) || !msgpack_uint(&v, &id) || id > UINT32_MAX)
		return false;
	*ret = (uint32_t)id;
	return true;
}

bool
kv_events_hash(struct kv_list *hashes, uint64_t *ret)
{
	struct msgpack_value v;

	if (hashes->n == 0)
		return false;
	hashes->n--;
	return msgpack_next(&hashes->at, &v) && hash_of(&v, ret);
}

bool
kv_events_number(const void *frame, size_t len, uint64_t *ret)
{
	const uint8_t *p = frame;

	if (len != 8)
		return false;
	*ret = 0;
	for (size_t i = 0; i < 8; i++)
		*ret = *ret << 8 | p[i];
	return true;
}
