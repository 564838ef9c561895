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
#include "worker/request/client.h"
#include "worker/request/req.h"
#include "worker/request/spent.h"

#define SECOND_NS UINT64_C(1000000000)
#define DECLARED_ALL_MS 30000 /* a body that arrives within this time keeps its declared room */
#define SMALL (256u << 10)    /* size of a small body: all but long documents and media */

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
	return w->buffered > w->conf->live.max_buffered;
}

/* Returns true if there is room for `more` bytes of a body that will have at least `size`
 * bytes. */
static bool
has_room(const struct worker *w, uint64_t size, uint64_t more)
{
	const uint64_t max = w->conf->live.max_buffered;

	if (size <= SMALL)
		return w->buffered + more <= max;
	return w->buffered + w->declared + more <= max - max / 8;
}

bool
limit_declare(struct req *req, uint64_t length)
{
	struct worker *w = req->w;
	/* max_buffered is not less than max_body */
	const bool alone = w->buffered + w->declared == 0;

	if (!alone && !has_room(w, length, length))
		return false;
	if (length > SMALL) {
		req->declared = length;
		w->declared += length;
	}
	return true;
}

static void
declare_less(struct req *req, uint64_t bytes)
{
	req->declared -= bytes;
	req->w->declared -= bytes;
}

bool
limit_grow(struct req *req, uint64_t more)
{
	struct worker *w = req->w;
	const struct text *text = req->job.text;
	const bool alone = w->buffered == text->body_cap + text->headers_len,
		   declared = more <= req->declared;

	if (!alone && !(declared ? w->buffered + more <= w->conf->live.max_buffered
				 : has_room(w, text->body_cap + more, more)))
		return false;
	declare_less(req, declared ? more : req->declared);
	buffered_add(w, (int64_t)more);
	return true;
}

void
limit_tick(struct req *req, uint64_t now_ms)
{
	const uint64_t whole = req->job.text->body_len + req->framing.left,
		       ms = now_ms - req->body_from_ms;

	if (ms > DECLARED_ALL_MS / 15 && req->job.text->body_len * DECLARED_ALL_MS < whole * ms)
		declare_less(req, req->declared);
}

void
limit_drop_declared(struct req *req)
{
	declare_less(req, req->declared);
}
