#include "tests/engine/last.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/engine/buf.h"
#include "tests/engine/conn.h"

struct rec {
	uint64_t seq, conn;
	struct timespec at;
	unsigned method, nhdr;
	int status;
	bool aborted;
	size_t body_len;                 /* before the cap */
	struct buf url, head, body, why; /* why: its KV could not be had */
	struct {
		struct span name, value;
	} hdr[MAX_HDRS];
};

struct last {
	size_t keep;
	uint64_t next, first; /* numbers given; the oldest one still shown */
	struct rec rec[LAST_N];
};

struct last *
last_new(size_t keep)
{
	struct last *l = calloc(1, sizeof(*l));

	if (l == NULL)
		abort();
	l->keep = keep;
	l->next = l->first = 1;
	return l;
}

static struct rec *
find(struct last *l, uint64_t seq)
{
	struct rec *r = &l->rec[seq % LAST_N];

	return seq && r->seq == seq ? r : NULL;
}

uint64_t
last_add(struct last *l, struct conn *c)
{
	struct rec *r = &l->rec[l->next % LAST_N];

	r->seq = l->next++;
	r->conn = c->id;
	(void)clock_gettime(CLOCK_REALTIME, &r->at);
	r->method = c->parser.method;
	r->status = 0;
	r->aborted = false;
	r->url.len = r->head.len = r->why.len = 0;
	buf_add(&r->url, c->url.p, c->url.len);
	buf_add(&r->head, c->head.p, c->head.len);
	r->nhdr = c->nhdr;
	memcpy(r->hdr, c->hdr, c->nhdr * sizeof(c->hdr[0]));
	r->body_len = c->body.len;
	buf_trim(&r->body, l->keep);
	buf_add(&r->body, c->body.p, c->body.len < l->keep ? c->body.len : l->keep);
	return r->seq;
}

void
last_status(struct last *l, uint64_t seq, int status)
{
	struct rec *r = find(l, seq);

	if (r != NULL)
		r->status = status;
}

void
last_aborted(struct last *l, uint64_t seq)
{
	struct rec *r = find(l, seq);

	if (r != NULL)
		r->aborted = true;
}

void
last_failed(struct last *l, uint64_t seq, const char *why)
{
	struct rec *r = find(l, seq);

	if (r != NULL)
		buf_str(&r->why, why);
}

static void
dump(const struct rec *r, struct buf *b)
{
	unsigned i;

	buf_fmt(b, "{\"seq\":%llu,\"conn\":%llu,\"time\":%lld.%06ld,\"method\":\"%s\",\"path\":",
		(unsigned long long)r->seq, (unsigned long long)r->conn, (long long)r->at.tv_sec,
		r->at.tv_nsec / 1000, http_method_str((enum http_method)r->method));
	buf_json(b, r->url.p, r->url.len);
	buf_fmt(b, ",\"status\":%d,\"aborted\":%s,\"headers\":[", r->status,
		r->aborted ? "true" : "false");
	for (i = 0; i < r->nhdr; i++) {
		buf_str(b, i ? ",[" : "[");
		buf_json(b, r->head.p + r->hdr[i].name.at, r->hdr[i].name.len);
		BUF_LIT(b, ",");
		buf_json(b, r->head.p + r->hdr[i].value.at, r->hdr[i].value.len);
		BUF_LIT(b, "]");
	}
	BUF_LIT(b, "],\"failed\":");
	buf_json(b, r->why.p, r->why.len);
	buf_fmt(b, ",\"body_len\":%zu,\"body\":\"", r->body_len);
	buf_base64(b, r->body.p, r->body.len);
	BUF_LIT(b, "\"}");
}

void
last_dump(const struct last *l, unsigned n, struct buf *b)
{
	uint64_t have = l->next - l->first, seq;

	if (n > LAST_N)
		n = LAST_N;
	if (have > n)
		have = n;
	BUF_LIT(b, "[");
	for (seq = l->next - have; seq < l->next; seq++) {
		if (seq != l->next - have)
			BUF_LIT(b, ",");
		dump(&l->rec[seq % LAST_N], b);
	}
	BUF_LIT(b, "]");
}

void
last_clear(struct last *l)
{
	l->first = l->next;
}

void
last_free(struct last **pl)
{
	struct last *l = *pl;
	int i;

	*pl = NULL;
	for (i = 0; l != NULL && i < LAST_N; i++) {
		buf_free(&l->rec[i].url);
		buf_free(&l->rec[i].head);
		buf_free(&l->rec[i].body);
		buf_free(&l->rec[i].why);
	}
	free(l);
}
