#include "tests/engine/fault.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/engine/buf.h"
#include "tests/engine/conn.h"
#include "tests/engine/sim.h"

#define NOBODYS_PORT 1 /* nobody listens there */

struct kind;

struct pace {
	double after_ms;
	struct buf data;
};

struct fault {
	TAILQ_ENTRY(fault) next;
	unsigned refs;
	const struct kind *kind;
	struct buf path, contains, headers, body, host;
	bool has_body, has_type, listed;
	int status;
	int64_t after_events, count; /* count -1: for ever */
	double delay_ms, factor;     /* factor 0: none */
	int port;
	struct pace *pace;
	unsigned npace;
	enum { END_FINISH, END_RESET, END_CLOSE, END_STALL } end;
};

/* ---- what each kind does ---- */

static void
gone(struct conn *c, bool reset)
{
	conn_status(c, 0);
	conn_kill(c, reset);
}

static void
act_status(struct conn *c)
{
	struct fault *f = c->fault;

	if (!f->has_body)
		conn_error_json(c, &f->body, f->status,
			f->status < 500 ? "BadRequestError" : "InternalServerError",
			"simulated failure");
	f->has_body = true;
	conn_reply(c, f->status, f->has_type ? NULL : "application/json",
		f->headers.len ? buf_cstr(&f->headers) : NULL, f->body.p, f->body.len);
}

static void
act_no_answer(struct conn *c)
{
	conn_park(c);
}

/* The request has been read, and the peer's kernel knows it: an acknowledgement that is still delayed would go under with
 * the RST, and who sees none takes the request for unread. */
static void
act_reset(struct conn *c)
{
	int on = 1;

	(void)setsockopt(c->fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
	gone(c, true);
}

static void
act_reset_unacked(struct conn *c)
{
	gone(c, true);
}

static void
act_half_head(struct conn *c)
{
	static const char half[] =
		"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\nconten";

	conn_write(c, half, sizeof(half) - 1);
	gone(c, false);
}

static void
act_garbage(struct conn *c)
{
	static const char noise[] = "\x16\x03\x01\x02 this is no HTTP\r\n\r\n";

	if (c->fault->has_body)
		conn_write(c, c->fault->body.p, c->fault->body.len);
	else
		conn_write(c, noise, sizeof(noise) - 1);
	gone(c, false);
}

static void
act_empty200(struct conn *c)
{
	conn_reply(c, 200, NULL, NULL, "", 0);
}

/* Events of the script, each at its time, until one lies in the future. */
static void
act_pace(struct conn *c)
{
	struct fault *f = c->fault;
	struct buf *b = &c->sim->scratch;

	while (c->fault_step < f->npace) {
		struct pace *p = &f->pace[c->fault_step];

		if (p->after_ms > 0 && !c->fault_waited) {
			c->fault_waited = true;
			conn_after(c, p->after_ms, act_pace);
			return;
		}
		c->fault_waited = false;
		c->fault_step++;
		if (p->data.len == 0)
			continue; /* an empty chunk would end the stream */
		b->len = 0;
		buf_fill(b, 0, CHUNK_ROOM);
		buf_add(b, p->data.p, p->data.len);
		buf_fill(b, 0, 2);
		(void)conn_chunk(c, b->p + CHUNK_ROOM, p->data.len);
	}
	if (f->end == END_STALL)
		return;
	if (f->end != END_FINISH) {
		conn_kill(c, f->end == END_RESET);
		return;
	}
	if (c->chunked)
		conn_write(c, "0\r\n\r\n", 5);
	conn_finish(c);
}

static void
begin_pace(struct conn *c)
{
	c->fault_step = 0;
	c->fault_waited = false;
	conn_stream_head(c);
	act_pace(c);
}

static void
cut_reset(struct conn *c)
{
	conn_kill(c, true);
}

static void
cut_truncate(struct conn *c)
{
	conn_kill(c, false);
}

static void
cut_bad_chunk(struct conn *c)
{
	conn_write(c, "zz\r\ndata: broken\r\n", 18);
	conn_kill(c, false);
}

static void
cut_error_event(struct conn *c)
{
	static const char ev[] = "data: {\"error\":{\"message\":\"simulated failure\",\"type\":"
				 "\"InternalServerError\",\"param\":null,\"code\":500}}\n\n",
			  done[] = "data: [DONE]\n\n";
	struct buf b = {0};
	size_t at;

	buf_fill(&b, 0, CHUNK_ROOM);
	BUF_LIT(&b, ev);
	buf_fill(&b, 0, CHUNK_ROOM + 2);
	at = b.len;
	BUF_LIT(&b, done);
	buf_fill(&b, 0, 2);
	(void)conn_chunk(c, b.p + CHUNK_ROOM, sizeof(ev) - 1);
	(void)conn_chunk(c, b.p + at, sizeof(done) - 1);
	buf_free(&b);
	if (c->chunked)
		conn_write(c, "0\r\n\r\n", 5);
	conn_finish(c);
}

/* begin: acts on the request; cut: acts on a stream after some events, and on a whole answer in the
 * middle of its body; neither: other modules ask for it. */
static const struct kind {
	const char *name;
	void (*begin)(struct conn *c);
	void (*cut)(struct conn *c);
	int status;
} kinds[] = {
	{"fail", act_status, NULL, 500},
	{"status", act_status, NULL, 503},
	{"no_answer", act_no_answer, NULL, 0},
	{"reset", act_reset, NULL, 0},
	{"reset_unacked", act_reset_unacked, NULL, 0},
	{"half_head", act_half_head, NULL, 0},
	{"garbage", act_garbage, NULL, 0},
	{"empty200", act_empty200, NULL, 0},
	{"pace", begin_pace, NULL, 0},
	{"stall", NULL, conn_park, 0},
	{"reset_mid_stream", NULL, cut_reset, 0},
	{"truncate", NULL, cut_truncate, 0},
	{"bad_chunk", NULL, cut_bad_chunk, 0},
	{"error_event", NULL, cut_error_event, 0},
	{"slow", NULL, NULL, 0},
	{"null_kv", NULL, NULL, 0},
	{"kv_unreachable", NULL, NULL, 0},
	{"no_push", NULL, NULL, 0},
	{"notice_none", NULL, NULL, 0},
	{"notice_twice", NULL, NULL, 0},
	{"notice_unknown", NULL, NULL, 0},
	{"notice_garbage", NULL, NULL, 0},
	{"refuse", NULL, NULL, 500},
	{"close_keepalive", NULL, NULL, 0},
};

static bool
is(const struct fault *f, const char *kind)
{
	return f != NULL && strcmp(f->kind->name, kind) == 0;
}

/* ---- where they meet a request ---- */

/* Without a path of its own a fault means generation. */
static bool
means_path(const struct fault *f, const char *path, size_t n, bool is_gen)
{
	if (f->path.len == 0)
		return is_gen;
	return (f->path.len == n && memcmp(f->path.p, path, n) == 0) ||
	       (f->path.len == 1 && *f->path.p == '*');
}

/* The first fault that means this path, and this body if the fault names a part of bodies.  body is NULL: the request has not
 * been read, and only a fault of kept connections may meet it. */
static struct fault *
find(struct sim *sim, const char *path, size_t n, bool is_gen, const struct buf *body)
{
	struct fault *f;

	TAILQ_FOREACH(f, &sim->faults, next)
	{
		bool in_body =
			f->contains.len == 0 ||
			(body != NULL && body->len > 0 &&
				memmem(body->p, body->len, f->contains.p, f->contains.len) != NULL);

		if (means_path(f, path, n, is_gen) && in_body &&
			is(f, "close_keepalive") == (body == NULL))
			break;
	}
	return f;
}

static void
spend(struct sim *sim, struct fault *f)
{
	count(sim, CTR_faults);
	if (f->count > 0 && --f->count == 0) {
		TAILQ_REMOVE(&sim->faults, f, next);
		fault_put(&f);
	}
}

bool
fault_match(struct conn *c, bool is_gen)
{
	const char *q = memchr(c->url.p, '?', c->url.len);
	size_t n = q ? (size_t)(q - c->url.p) : c->url.len;
	struct fault *f = find(c->sim, c->url.p, n, is_gen, &c->body);

	if (f == NULL)
		return false;
	f->refs++;
	c->fault = f;
	spend(c->sim, f);
	return true;
}

void
fault_begin(struct conn *c, void (*go_on)(struct conn *))
{
	void (*act)(struct conn *) = c->fault->kind->begin ? c->fault->kind->begin : go_on;

	if (c->fault->delay_ms > 0)
		conn_after(c, c->fault->delay_ms, act);
	else
		act(c);
}

bool
fault_on_reply(struct conn *c, const char *p, size_t head, size_t len)
{
	static const char chunked[] = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
				      "transfer-encoding: chunked\r\n\r\n";

	if (c->fault->kind->cut == NULL || is(c->fault, "error_event"))
		return false;
	if (is(c->fault, "bad_chunk"))
		conn_write(c, chunked, sizeof(chunked) - 1);
	else
		conn_write(c, p, is(c->fault, "stall") ? head : head + (len - head) / 2);
	c->fault->kind->cut(c);
	return true;
}

bool
fault_due(const struct conn *c, uint64_t events)
{
	return c->fault != NULL && c->fault->kind->cut != NULL &&
	       events >= (uint64_t)c->fault->after_events;
}

bool
fault_is_stall(const struct conn *c)
{
	return is(c->fault, "stall");
}

void
fault_cut(struct conn *c)
{
	c->fault->kind->cut(c);
}

bool
fault_null_kv(const struct conn *c)
{
	return is(c->fault, "null_kv");
}

int
fault_refusal(const struct conn *c)
{
	return is(c->fault, "refuse") ? c->fault->status : 0;
}

bool
fault_is(const struct conn *c, const char *kind)
{
	return is(c->fault, kind);
}

double
fault_gap_ms(const struct conn *c, double dflt)
{
	if (!is(c->fault, "slow"))
		return dflt;
	return c->fault->factor > 0 ? dflt * c->fault->factor : c->fault->delay_ms;
}

double
fault_prefill_ms(const struct conn *c, double dflt)
{
	return is(c->fault, "slow") && c->fault->factor > 0 ? dflt * c->fault->factor : dflt;
}

bool
fault_side(const struct conn *c, const char **host, int *port)
{
	if (!is(c->fault, "kv_unreachable"))
		return false;
	if (c->fault->host.len > 0)
		*host = buf_cstr(&c->fault->host);
	*port = c->fault->port;
	return true;
}

bool
fault_take_keepalive(struct sim *sim, int fd)
{
	struct fault *f;
	char line[256];
	const char *path, *end;
	ssize_t n;

	if (TAILQ_EMPTY(&sim->faults))
		return false;
	n = recv(fd, line, sizeof(line), MSG_PEEK);
	path = n > 0 ? memchr(line, ' ', (size_t)n) : NULL;
	if (path == NULL)
		return false;
	path++;
	end = path;
	while (end < line + n && *end != ' ' && *end != '?')
		end++;
	f = find(sim, path, (size_t)(end - path),
		memmem(path, (size_t)(end - path), "completions", 11) != NULL, NULL);
	if (f == NULL)
		return false;
	spend(sim, f);
	return true;
}

/* ---- the list ---- */

void
fault_put(struct fault **pf)
{
	struct fault *f = *pf;
	unsigned i;

	*pf = NULL;
	if (f == NULL || --f->refs)
		return;
	for (i = 0; i < f->npace; i++)
		buf_free(&f->pace[i].data);
	free(f->pace);
	buf_free(&f->path);
	buf_free(&f->contains);
	buf_free(&f->host);
	buf_free(&f->headers);
	buf_free(&f->body);
	free(f);
}

void
fault_clear(struct sim *sim)
{
	struct fault *f;

	while ((f = TAILQ_FIRST(&sim->faults)) != NULL) {
		TAILQ_REMOVE(&sim->faults, f, next);
		fault_put(&f);
	}
}

unsigned
fault_armed(struct sim *sim)
{
	struct fault *f;
	unsigned n = 0;

	TAILQ_FOREACH(f, &sim->faults, next)
	n++;
	return n;
}

/* Closes idle connections without a word to the peer: its next request meets a closed port and is
 * reset by the kernel, not one byte acknowledged.  Needs CAP_NET_ADMIN. */
static const char *
vanish(struct sim *sim)
{
	struct conn *c, *next;
	int on = 1;

	for (c = TAILQ_FIRST(&sim->conns); c != NULL; c = next) {
		next = TAILQ_NEXT(c, all);
		if (c->state != CONN_READ || c->begun || !c->served)
			continue;
		if (setsockopt(c->fd, IPPROTO_TCP, TCP_REPAIR, &on, sizeof(on)) == -1)
			return "vanish needs CAP_NET_ADMIN";
		count(sim, CTR_faults);
		conn_kill(c, false);
	}
	return NULL;
}

/* From now on no kept connection acknowledges at once what it gets: a reset comes before. */
static void
delay_acks(struct sim *sim)
{
	struct conn *c;
	int off = 0;

	TAILQ_FOREACH(c, &sim->conns, all)
	(void)setsockopt(c->fd, IPPROTO_TCP, TCP_QUICKACK, &off, sizeof(off));
}

static void
read_headers(struct fault *f, struct jv headers)
{
	struct jv key, val;
	struct jiter it;

	if (json_kind(headers) != '{' || !json_iter(&it, headers))
		return;
	while (json_next(&it, &key, &val)) {
		if (json_is(key, "content-type") || json_is(key, "Content-Type"))
			f->has_type = true;
		json_text_buf(key, &f->headers);
		BUF_LIT(&f->headers, ": ");
		json_text_buf(val, &f->headers);
		BUF_LIT(&f->headers, "\r\n");
	}
}

static void
read_body(struct fault *f, struct jv spec)
{
	struct jv coded = json_get(spec, "body_b64");

	f->has_body = json_kind(json_get(spec, "body")) == '"' || json_kind(coded) == '"';
	json_text_buf(json_get(spec, "body"), &f->body);
	if (json_kind(coded) == '"')
		buf_unbase64(&f->body, coded.p + 1, coded.len - 2);
}

static const char *
read_pace(struct fault *f, struct jv events)
{
	struct jv key, ev;
	struct jiter it;

	if (json_kind(events) != '[')
		return "pace needs events";
	(void)json_iter(&it, events);
	while (json_next(&it, &key, &ev)) {
		struct pace *p = realloc(f->pace, (f->npace + 1) * sizeof(*p));

		if (p == NULL)
			abort();
		f->pace = p;
		p = &f->pace[f->npace++];
		memset(p, 0, sizeof(*p));
		p->after_ms = json_num(json_get(ev, "after_ms"), 0);
		json_text_buf(json_get(ev, "data"), &p->data);
	}
	return NULL;
}

static const char *
read_end(struct fault *f, struct jv end)
{
	static const char *const names[] = {[END_FINISH] = "finish",
		[END_RESET] = "reset",
		[END_CLOSE] = "close",
		[END_STALL] = "stall"};
	unsigned i;

	if (json_null(end))
		return NULL;
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (json_is(end, names[i])) {
			f->end = i;
			return NULL;
		}
	}
	return "unknown end";
}

const char *
fault_add(struct sim *sim, struct jv spec)
{
	struct jv name = json_get(spec, "kind");
	const char *wrong = NULL;
	struct fault *f;
	int64_t status, port = NOBODYS_PORT;
	size_t i = 0;

	if (json_is(name, "none")) {
		fault_clear(sim);
		return NULL;
	}
	if (json_is(name, "vanish"))
		return vanish(sim);
	while (i < sizeof(kinds) / sizeof(kinds[0]) && !json_is(name, kinds[i].name))
		i++;
	if (i == sizeof(kinds) / sizeof(kinds[0]))
		return "unknown kind";
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		abort();
	f->refs = 1;
	f->kind = &kinds[i];
	f->count = f->after_events = 1;
	status = kinds[i].status;
	json_text_buf(json_get(spec, "path"), &f->path);
	json_text_buf(json_get(spec, "contains"), &f->contains);
	json_text_buf(json_get(spec, "host"), &f->host);
	(void)json_int(json_get(spec, "status"), &status);
	(void)json_int(json_get(spec, "count"), &f->count);
	(void)json_int(json_get(spec, "after_events"), &f->after_events);
	f->status = (int)status;
	(void)json_int(json_get(spec, "port"), &port);
	f->port = (int)port;
	f->delay_ms = json_num(json_get(spec, "delay_ms"), 0);
	f->factor = json_num(json_get(spec, "factor"), 0);
	read_headers(f, json_get(spec, "headers"));
	read_body(f, spec);
	if (f->kind->begin == act_reset_unacked)
		delay_acks(sim);
	if (f->kind->begin == begin_pace)
		wrong = read_pace(f, json_get(spec, "events"));
	if (wrong == NULL)
		wrong = read_end(f, json_get(spec, "end"));
	if (f->count == 0 || f->status < 0 || f->status > 999 || f->after_events < 0)
		wrong = "count, status or after_events out of range";
	if (wrong != NULL)
		fault_put(&f);
	else
		TAILQ_INSERT_TAIL(&sim->faults, f, next);
	return wrong;
}
