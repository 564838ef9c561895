#include "worker/request/limit.h"

#include <string.h>
#include <sys/socket.h>

#include "proto/http/http.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/quota.h"
#include "worker/base/buffered.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/net/listen.h"
#include "worker/request/client.h"
#include "worker/request/req.h"
#include "worker/request/spent.h"

#define SECOND_NS UINT64_C(1000000000)
#define DECLARED_ALL_MS 30000 /* a body that arrives within this time keeps its declared room */
#define SMALL (256u << 10)    /* size of a small body: all but long documents and media */
/* A body is alone while all other bytes are at most that part of limits.max_buffered. */
#define ALONE_PART 64

/* The source of a hash: a key whose text is an address differs from that address. */
enum kind { KIND_KEY = 1, KIND_IPV4, KIND_IPV6, KIND_NOBODY, KIND_NAMED, KIND_API_KEY };

/* Returns the key without the scheme: a key identifies the same client in either header. */
static struct span
credentials(struct span value)
{
	const char *blank = memchr(value.p, ' ', value.n);

	if (blank == NULL) /* no scheme; or a scheme alone, of a client whose key is empty */
		return span_is(value, "bearer") ? (struct span){NULL, 0} : value;
	value.n -= (size_t)(blank - value.p);
	value.p = blank;
	while (value.n > 0 && *value.p == ' ') {
		value.p++;
		value.n--;
	}
	return value;
}

static struct span
key_of(const struct http_head *h)
{
	const struct http_header *f = http_header(h, "authorization");
	struct span key = {NULL, 0};

	if (f != NULL && f->value.n > 0)
		key = credentials(f->value);
	f = http_header(h, "x-api-key");
	if (key.n == 0 && f != NULL)
		key = f->value;
	return key;
}

uint64_t
limit_hash_address(const struct seg *seg, const struct address *a)
{
	if (a->family == AF_INET)
		return quota_hash(seg, KIND_IPV4, a->ip, 4);
	if (a->family == AF_INET6)
		return quota_hash(seg, KIND_IPV6, a->ip, 8); /* a /64 belongs to one customer */
	return quota_hash(seg, KIND_NOBODY, "", 0);
}

/* Returns the name that the proxy gives the client: of a list, the element that the proxy
 * itself added. */
static struct span
name_of(const struct http_head *h, const char *header)
{
	struct span name = {NULL, 0};
	const char *comma;

	for (size_t i = 0; header != NULL && i < h->nheaders; i++)
		if (h->headers[i].name.n == strlen(header) &&
			strncasecmp(h->headers[i].name.p, header, h->headers[i].name.n) == 0)
			name = h->headers[i].value;
	comma = name.n > 0 ? memrchr(name.p, ',', name.n) : NULL;
	if (comma != NULL) {
		name.n -= (size_t)(comma + 1 - name.p);
		name.p = comma + 1;
	}
	while (name.n > 0 && *name.p == ' ') {
		name.p++;
		name.n--;
	}
	return name;
}

static uint64_t
hash_of_client(const struct seg *seg, const struct http_head *h, const struct req *req)
{
	const struct span name = name_of(h, req->w->conf->client_id_header), key = key_of(h);

	if (req->key != NULL)
		return quota_hash(seg, KIND_API_KEY, req->key->name, strlen(req->key->name));
	if (name.n > 0)
		return quota_hash(seg, KIND_NAMED, name.p, name.n);
	if (key.n > 0)
		return quota_hash(seg, KIND_KEY, key.p, key.n);
	return limit_hash_address(seg, &req->from);
}

static uint32_t
whole_seconds(uint64_t ns)
{
	const uint64_t s = (ns + SECOND_NS - 1) / SECOND_NS;

	return s < 1 ? 1 : (uint32_t)s; /* at most burst hours, below 2^32 */
}

/* Those of its key come before those of all clients. */
static struct quota_terms
terms_of(const struct req *req)
{
	const struct conf_live *live = &req->w->conf->live;
	const struct conf_key_terms *key = req->key != NULL ? &req->key->terms : NULL;
	struct quota_terms terms = {
		.max_inflight = live->client_max_inflight,
		.rate = live->client_rate.n,
		.per_s = live->client_rate.per_s,
		.burst = live->client_burst != 0 ? live->client_burst : live->client_rate.n,
	};

	if (key == NULL)
		return terms;
	terms.tokens_per_minute = key->tokens_per_minute;
	if (key->max_inflight != 0)
		terms.max_inflight = key->max_inflight;
	if (key->rate.n != 0) {
		terms.rate = terms.burst = key->rate.n;
		terms.per_s = key->rate.per_s;
	}
	return terms;
}

static enum req_end
refusal_of(enum quota_outcome v)
{
	switch (v) {
	case QUOTA_RATE:
		return END_CLIENT_RATE;
	case QUOTA_TOKENS:
		return END_CLIENT_TOKENS;
	case QUOTA_INFLIGHT:
		return END_CLIENT_INFLIGHT;
	case QUOTA_ADMITTED:
	case QUOTA_UNCOUNTED:
		break;
	}
	return END_OK;
}

enum req_end
limit_enter(struct req *req, const struct http_head *h)
{
	struct worker *w = req->w;
	const struct quota_terms terms = terms_of(req);
	struct quota_pass pass = {.wait_ns = 0};
	enum quota_outcome v;

	if (terms.max_inflight == 0 && terms.rate == 0 && terms.tokens_per_minute == 0)
		return END_OK;
	v = quota_enter(
		w->seg, w->slot, hash_of_client(w->seg, h, req), &terms, clock_us() * 1000, &pass);
	metric_add(w->slab, M_CLIENTS_FORGOTTEN, pass.evicted);
	if (v == QUOTA_ADMITTED)
		req->quota = pass.entry + 1;
	else if (v == QUOTA_UNCOUNTED)
		metric_add(w->slab, M_CLIENTS_UNCOUNTED, 1);
	if (v == QUOTA_RATE || v == QUOTA_TOKENS)
		req->retry_after_s = whole_seconds(pass.wait_ns);
	return refusal_of(v);
}

/* What its engines report is known now. */
static void
charge(const struct req *req)
{
	struct spent spent;

	if (req->key == NULL || req->key->terms.tokens_per_minute == 0)
		return;
	spent = spent_of(req);
	if (spent.prompt + spent.completion > 0)
		quota_charge(req->w->seg, req->quota - 1, spent.prompt + spent.completion,
			req->key->terms.tokens_per_minute, clock_us() * 1000);
}

void
limit_leave(struct req *req)
{
	if (req->quota == 0)
		return;
	charge(req);
	quota_leave(req->w->seg, req->w->slot, req->quota - 1);
	req->quota = 0;
}

bool
limit_full(const struct worker *w)
{
	return buffered_by_all(w) > w->conf->live.max_buffered;
}

/* Returns true if the `bytes` of all other workers count as nothing. */
static bool
others_hold_little(const struct worker *w, uint64_t bytes)
{
	return bytes <= w->conf->live.max_buffered / ALONE_PART;
}

/* Returns true if a body that will have at least `size` bytes has room, with the bytes that this
 * worker has counted by now. */
static bool
has_room(const struct worker *w, const struct stored *others, uint64_t size)
{
	const uint64_t max = w->conf->live.max_buffered,
		       here = w->stored.bytes[STORED_BUFFERED] + others->bytes[STORED_BUFFERED];

	if (size <= SMALL)
		return here <= max;
	return here + w->stored.bytes[STORED_DECLARED] + others->bytes[STORED_DECLARED] <=
	       max - max / 8;
}

static void
declare(struct req *req, int64_t bytes)
{
	req->declared += (uint64_t)bytes;
	buffered_declare(req->w, bytes);
}

/* The bytes are counted before they are compared: shm/stored.h says why. */
static bool
declare_large(struct req *req, uint64_t length)
{
	struct worker *w = req->w;
	struct stored others;
	uint64_t own, of_others;

	declare(req, (int64_t)length);
	others = stored_others(w->seg, w->slot);
	own = w->stored.bytes[STORED_BUFFERED] + w->stored.bytes[STORED_DECLARED];
	of_others = others.bytes[STORED_BUFFERED] + others.bytes[STORED_DECLARED];
	/* alone: max_buffered is not less than max_body */
	if ((own == length && others_hold_little(w, of_others)) || has_room(w, &others, length))
		return true;
	declare(req, -(int64_t)length);
	return false;
}

bool
limit_declare(struct req *req, uint64_t length)
{
	bool ok = true;

	if (length > SMALL) {
		ok = declare_large(req, length);
		listen_update(req->w); /* other workers take the next connections */
	}
	return ok;
}

bool
limit_grow(struct req *req, uint64_t more)
{
	struct worker *w = req->w;
	const struct text *text = req->job.text;
	const bool declared = more <= req->declared;
	struct stored others;
	bool alone, room;

	buffered_add(w, (int64_t)more);
	others = stored_others(w->seg, w->slot);
	alone = w->stored.bytes[STORED_BUFFERED] == text->body_cap + text->headers_len + more &&
		others_hold_little(w, others.bytes[STORED_BUFFERED]);
	room = has_room(w, &others, declared ? 0 : text->body_cap + more);
	if (!alone && !room) {
		buffered_add(w, -(int64_t)more);
		return false;
	}
	declare(req, -(int64_t)(declared ? more : req->declared));
	return true;
}

void
limit_tick(struct req *req, uint64_t now_ms)
{
	const uint64_t whole = req->job.text->body_len + req->framing.left,
		       ms = now_ms - req->body_from_ms;

	if (ms > DECLARED_ALL_MS / 15 && req->job.text->body_len * DECLARED_ALL_MS < whole * ms)
		limit_drop_declared(req);
}

void
limit_drop_declared(struct req *req)
{
	declare(req, -(int64_t)req->declared);
}
