#include "worker/net/leg.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/latency.h"
#include "shm/load.h"
#include "worker/base/buffered.h"
#include "worker/base/core.h"
#include "worker/net/connpool.h"

#define LEG_MAX_HEAD (64u << 10) /* of an engine's answer; vLLM's are under 1 KiB */
/* payload pieces of one read handed on together: an event each in a burst */
#define LEG_PIECES 64
#define LOOKS_MAX 64 /* reads of one leg_look(): 4 MiB */

static void feed(struct leg *leg, const char *p, size_t n);
static bool hand_on(struct leg *leg, const struct span *pieces, size_t n, bool done);

static void on_readable(void *user), on_drained(void *user), on_broken(void *user);

static const struct upconn_ops conn_ops = {
	.readable = on_readable, .drained = on_drained, .broken = on_broken};

typedef void leg_handler(struct leg *);
static leg_handler send_request, all_sent, read_answer, connect_failed, lost_sending, lost,
	closed_in_body, ignore, never;

/*
 * CONNECT  a new connection is being made; nothing has been sent.
 * SEND  some bytes of the request still wait for the socket.
 * HEAD  the kernel has the whole request; no complete head of an answer is here.
 * BODY  the head is read; the request may still be unsent in part (an engine refuses before
 * it has read all).
 */
/* clang-format off */
static const struct {
	const char *name;
	leg_handler *drained;  /* connected, or all that was queued has gone out */
	leg_handler *readable;
	leg_handler *closed;   /* the engine's end of file */
	leg_handler *broken;   /* an error of the socket */
} states[LEG_NSTATES] = {
	[LEG_IDLE]    = { "idle",    never,        never,       never,          never },
	[LEG_CONNECT] = { "connect", send_request, never,       never,          connect_failed },
	[LEG_SEND]    = { "send",    all_sent,     read_answer, lost_sending,   lost_sending },
	[LEG_HEAD]    = { "head",    never,        read_answer, lost,           lost },
	[LEG_BODY]    = { "body",    ignore,       read_answer, closed_in_body, lost_sending },
	[LEG_DONE]    = { "done",    ignore,       ignore,      ignore,         ignore },
};
/* clang-format on */

const char *
leg_fail_text(const struct leg *leg)
{
	static const char *const texts[LEG_FAIL_N] = {
		[LEG_FAIL_CONNECT] = "connection refused or unreachable",
		[LEG_FAIL_DOWN] = "the engine is down",
		[LEG_FAIL_SHORTAGE] = "out of file descriptors",
		[LEG_FAIL_OLD_KEYS] = "tls: this worker began before the pool had https",
		[LEG_FAIL_STALE] = "connection closed before the end of the answer",
		[LEG_FAIL_BROKEN] = "connection closed before the end of the answer",
		[LEG_FAIL_GARBAGE] = "answer is not HTTP",
		[LEG_FAIL_TOO_LARGE] = "answer is larger than max_answer"};

	return leg->fail != LEG_FAIL_NONE && leg->why != NULL ? leg->why : texts[leg->fail];
}

bool
leg_handles(enum leg_state s)
{
	return states[s].name != NULL && states[s].drained != NULL && states[s].readable != NULL &&
	       states[s].closed != NULL && states[s].broken != NULL;
}

bool
leg_active(const struct leg *leg)
{
	return leg->state != LEG_IDLE && leg->state != LEG_DONE;
}

bool
leg_sent(const struct leg *leg)
{
	return leg->state > LEG_SEND && leg->uc != NULL && sock_queued(&leg->uc->sock) == 0;
}

bool
leg_connecting(const struct leg *leg)
{
	return leg->state == LEG_CONNECT;
}

static uint64_t
limit_ms(const struct leg *leg)
{
	if (leg->state == LEG_CONNECT)
		return leg->connect_ms;
	return leg->first_ms != 0 && leg->progress != LEG_BEGUN ? leg->first_ms : leg->wait_ms;
}

static void
set_clock(struct leg *leg)
{
	leg_wait_at_most(leg, limit_ms(leg));
}

void
leg_wait_anew(struct leg *leg)
{
	set_clock(leg);
}

void
leg_wait_at_most(struct leg *leg, uint64_t ms)
{
	leg->since_ms = clock_ms();
	leg->deadline_ms = leg->since_ms + ms;
	leg->reprieved = false;
	worker_need_tick(leg->w);
}

void
leg_wait_until(struct leg *leg, uint64_t until_ms)
{
	if (leg->deadline_ms > until_ms && !leg->reprieved)
		leg->deadline_ms = until_ms;
}

static bool
is_late(const struct leg *leg, uint64_t now_ms)
{
	return leg_active(leg) && leg->deadline_ms != 0 && now_ms >= leg->deadline_ms;
}

bool
leg_look(struct leg *leg)
{
	const struct upconn *uc = leg->uc;
	int n = 0;

	while (n < LOOKS_MAX && uc != NULL && leg->uc == uc && sock_look(&leg->uc->sock))
		n++;
	return n > 0;
}

bool
leg_expired(struct leg *leg, uint64_t now_ms)
{
	if (is_late(leg, now_ms) && leg_look(leg) && is_late(leg, now_ms) && !leg->reprieved) {
		leg->reprieved = true;
		leg->deadline_ms = now_ms + WORKER_TICK_MS;
	}
	return is_late(leg, now_ms);
}

/* The endpoint's list of active legs, and the worker's list of endpoints that have any. */
static void
enter_lists(struct leg *leg)
{
	struct endpoint *ep = leg->ep;

	if (TAILQ_EMPTY(&ep->legs)) {
		ep->gone_ms = 0;
		TAILQ_INSERT_TAIL(&leg->w->busy, ep, link);
		leg->w->nbusy++;
	}
	TAILQ_INSERT_TAIL(&ep->legs, leg, link);
}

static void
leave_lists(struct leg *leg)
{
	struct endpoint *ep = leg->ep;

	TAILQ_REMOVE(&ep->legs, leg, link);
	if (TAILQ_EMPTY(&ep->legs)) {
		TAILQ_REMOVE(&leg->w->busy, ep, link);
		leg->w->nbusy--;
	}
}

static void
over(struct leg *leg)
{
	if (leg_active(leg))
		leave_lists(leg);
	leg->state = LEG_DONE;
	leg->deadline_ms = 0;
	free(leg->partial);
	leg->partial = NULL;
	leg->partial_len = 0;
}

void
leg_end(struct leg *leg)
{
	if (leg->state == LEG_DONE)
		return;
	connpool_drop(leg->w->connpool, &leg->uc);
	over(leg);
}

struct upconn *
leg_take_conn(struct leg *leg)
{
	struct upconn *uc = leg->uc;

	leg->uc = NULL;
	if (uc == NULL)
		return NULL;
	uc->ops = NULL;
	sock_read_stop(&uc->sock);
	return uc;
}

void
leg_forget_answer(struct leg *leg)
{
	block_give(&leg->w->blocks, leg->answer, leg->answer_cap);
	leg->answer = NULL;
	buffered_add(leg->w, -(int64_t)leg->answer_cap);
	leg->answer_len = leg->answer_cap = 0;
}

void
leg_forget_head(struct leg *leg)
{
	free(leg->head);
	leg->head = NULL;
	leg->head_len = 0;
}

static void
drop_answer(struct leg *leg)
{
	leg_forget_answer(leg);
	leg_forget_head(leg);
}

void
leg_rewind(struct leg *leg)
{
	leg_end(leg);
	drop_answer(leg);
	leg->state = LEG_IDLE;
	leg->fail = LEG_FAIL_NONE;
	leg->why = NULL;
	leg->progress = LEG_UNREACHED;
	leg->reading = LEG_READING;
	leg->once = false;
	leg->status = 0;
	leg->connect_us = 0;
	if (leg->route == LEG_RESENT)
		leg->route = LEG_ANY_CONN;
}

void
leg_fini(struct leg *leg)
{
	leg_end(leg);
	drop_answer(leg);
}

void
leg_hang_up(struct leg *leg)
{
	leg->reading = LEG_HUNG_UP;
	sock_end_writing(&leg->uc->sock);
}

static void
advance(struct leg *leg, enum leg_progress to)
{
	if (leg->progress < to)
		leg->progress = to;
}

void
leg_fail(struct leg *leg, enum leg_fail why)
{
	leg->fail = why;
	if (leg->uc != NULL)
		leg->why = sock_tls_why(&leg->uc->sock);
	if (leg->why != NULL && leg->progress < LEG_ANSWERING &&
		connpool_keys_are_old(leg->w->connpool, leg->ep))
		leg->fail = LEG_FAIL_OLD_KEYS;
	leg_end(leg);
	leg->ops->event(leg, LEG_EV_FAIL);
}

static void
connected(struct leg *leg)
{
	struct seg *seg = leg->w->seg;

	leg->connect_us = leg->uc->sent_us - leg->connect_from_us;
	if (ep_tag(seg, leg->ep->slot) == leg->ep->tag)
		latency_add(seg, leg->ep->slot, LATENCY_CONNECT, leg->connect_us);
}

/*
 * Sends head and body in one write: the router's own lines by copy, the client's lines and
 * all pieces of the body by reference.
 */
static void
send_request(struct leg *leg)
{
	struct leg_message m;
	struct iovec iov[SPLICE_MAX_SEGMENTS + 3];
	size_t n = 0;
	int r;

	m.nsegs = m.body_len = 0;
	m.once = false;
	if (!leg->ops->compose(leg, &m))
		return;
	iov[n++] = (struct iovec){m.lines, m.nlines};
	iov[n++] = (struct iovec){(void *)(uintptr_t)m.headers.p, m.headers.n};
	iov[n++] = (struct iovec){(void *)(uintptr_t) "\r\n", 2};
	for (size_t i = 0; i < m.nsegs; i++)
		iov[n++] = (struct iovec){(void *)(uintptr_t)m.segs[i].p, m.segs[i].n};

	leg->state = LEG_SEND;
	set_clock(leg);
	clock_renew(); /* STALE_US counts from the moment of the call */
	r = sock_writev(&leg->uc->sock, iov, (int)n, 1);
	leg->uc->sent += m.nlines + m.headers.n + 2 + m.body_len;
	advance(leg, LEG_REACHED);
	leg->once = m.once;
	leg->uc->sent_us = clock_us();
	if (leg->connect_from_us != 0)
		connected(leg);
	if (r < 0) {
		on_broken(leg);
		return;
	}
	if (sock_queued(&leg->uc->sock) == 0)
		leg->state = LEG_HEAD;
}

static bool
is_shortage(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM ||
	       err == EADDRNOTAVAIL;
}

static enum leg_fail
dial_failed(int err)
{
	if (err == ENOKEY)
		return LEG_FAIL_OLD_KEYS;
	return is_shortage(err) ? LEG_FAIL_SHORTAGE : LEG_FAIL_CONNECT;
}

static void
start(struct leg *leg, bool fresh)
{
	int err = 0;

	leg->state = LEG_CONNECT;
	leg->uc = connpool_get(leg->w->connpool, leg->ep, fresh, &err);
	if (leg->uc == NULL) {
		leg_fail(leg, dial_failed(err));
		return;
	}
	leg->uc->ops = &conn_ops;
	leg->uc->user = leg;
	set_clock(leg);
	leg->connect_from_us = leg->uc->reused ? 0 : clock_us();
	if (!leg->uc->sock.connecting)
		send_request(leg);
}

void
leg_start(struct leg *leg)
{
	assert(leg->state == LEG_IDLE && leg->ep != NULL);
	enter_lists(leg);
	start(leg, leg->route != LEG_ANY_CONN);
}

/* --- what happens to the connection -------------------------------------------------------------- */

static void
on_drained(void *user)
{
	struct leg *leg = user;

	states[leg->state].drained(leg);
}

static void
on_readable(void *user)
{
	struct leg *leg = user;

	states[leg->state].readable(leg);
}

static void
on_broken(void *user)
{
	struct leg *leg = user;

	states[leg->state].broken(leg);
}

static void
ignore(struct leg *leg)
{
	(void)leg;
}

static void
never(struct leg *leg)
{
	char words[SHM_CRASH_NOTE];

	(void)snprintf(words, sizeof(words), "impossible event of a leg in state %s",
		states[leg->state].name);
	proc_crash_note_set(leg->w->seg, leg->w->slot, words);
	abort();
}

static void
all_sent(struct leg *leg)
{
	leg->state = LEG_HEAD;
}

static void
connect_failed(struct leg *leg)
{
	leg_fail(leg, LEG_FAIL_CONNECT);
}

/*
 * Replaces a connection that was stale before the engine saw any byte of the request: nothing
 * was lost.  After a reset that is only likely: the engine's other idle connections are
 * closed too, and a request that must not reach an engine twice fails with LEG_FAIL_STALE.
 */
static enum leg_fail
replace_stale(struct leg *leg)
{
	struct worker *w = leg->w;

	if (!leg->uc->reused || leg->route == LEG_RESENT || leg->progress >= LEG_ANSWERING ||
		leg->reading == LEG_HUNG_UP || !connpool_nothing_acked(leg->uc))
		return LEG_FAIL_BROKEN;
	if (leg->uc->sock.reset)
		connpool_drop_idle(w->connpool, leg->ep);
	if (leg->uc->sock.reset && leg->once)
		return LEG_FAIL_STALE;
	leg->route = LEG_RESENT;
	connpool_drop(w->connpool, &leg->uc);
	metric_add(w->slab, M_UP_STALE, 1);
	start(leg, true);
	return LEG_FAIL_NONE;
}

static void
lost(struct leg *leg)
{
	const enum leg_fail why = replace_stale(leg);

	if (why != LEG_FAIL_NONE)
		leg_fail(leg, why);
}

/* The answer is complete: the connection is given back before the event is raised, so that a
 * request that starts at once can use it. */
static void
answered(struct leg *leg, bool reusable)
{
	struct worker *w = leg->w;

	if (reusable && leg->keep_alive && leg->reading != LEG_HUNG_UP &&
		sock_queued(&leg->uc->sock) == 0)
		connpool_put(w->connpool, &leg->uc);
	else
		connpool_drop(w->connpool, &leg->uc);
	over(leg);
	leg->ops->event(leg, LEG_EV_ANSWER);
}

/*
 * An engine may refuse (413, 400) and close before it has read the whole request.  The
 * router's write then fails, but the answer, or the rest of it, is in the receive queue.
 */
static void
read_rest(struct leg *leg)
{
	char buf[16 << 10]; /* not the worker's buffer: the caller may be reading from that */
	struct upconn *uc = leg->uc; /* the handlers may end the leg, or send it again */
	ssize_t n;

	assert(uc != NULL);
	while (leg->uc == uc && (n = sock_read(&uc->sock, buf, sizeof(buf))) > 0) {
		advance(leg, LEG_ANSWERING);
		feed(leg, buf, (size_t)n);
	}
}

/* An error without declared length, to a request that is not all sent: its end would have been the end of the
 * connection, and the unread request has made that a reset. */
static bool
is_whole_refusal(const struct leg *leg)
{
	return leg->state == LEG_BODY && leg->body.framing == HTTP_BODY_UNTIL_CLOSE &&
	       leg->status >= 400 && sock_queued(&leg->uc->sock) > 0 &&
	       sock_tls_why(&leg->uc->sock) == NULL;
}

static void
lost_sending(struct leg *leg)
{
	const struct upconn *uc = leg->uc;

	read_rest(leg);
	if (leg->uc != uc)
		return;
	if (!is_whole_refusal(leg))
		lost(leg);
	else if (hand_on(leg, NULL, 0, true))
		answered(leg, false);
}

static void
read_answer(struct leg *leg)
{
	struct worker *w = leg->w;
	ssize_t n = sock_read(&leg->uc->sock, w->buf, WORKER_BUF);

	if (n == -EAGAIN)
		return;
	if (n == 0) {
		states[leg->state].closed(leg);
		return;
	}
	if (n < 0) {
		on_broken(leg);
		return;
	}
	advance(leg, LEG_ANSWERING);
	if (leg->wait_each && (leg->first_ms == 0 || leg->progress == LEG_BEGUN))
		set_clock(leg);
	feed(leg, w->buf, (size_t)n);
}

/* The close ends a body without declared length; but a stream is complete only if its events
 * have shown its end. */
static void
closed_in_body(struct leg *leg)
{
	bool stream = leg->sse && leg->status == 200 && !leg->keep;

	if (leg->body.framing != HTTP_BODY_UNTIL_CLOSE || (stream && !leg->ops->complete(leg)))
		lost(leg);
	else if (hand_on(leg, NULL, 0, true))
		answered(leg, false);
}

/* The router writes these lines itself where it is configured to. */
static bool
is_cors(struct span name)
{
	static const char prefix[] = "access-control-";
	const size_t n = sizeof(prefix) - 1;

	return name.n > n && span_letters(name.p, prefix, n);
}

/* Stores the part of the engine's head that the client gets: end-to-end lines, without framing
 * and without the id, which the router writes itself. */
static void
keep_head(struct leg *leg, const struct http_head *h)
{
	size_t need = 0, n = 0;

	for (size_t i = 0; i < h->nheaders; i++)
		need += h->headers[i].name.n + h->headers[i].value.n + 4;
	free(leg->head);
	leg->head = mem_zero(need + 1);
	for (size_t i = 0; i < h->nheaders; i++) {
		const struct http_header *f = &h->headers[i];

		if (f->hop || span_is(f->name, "content-length") ||
			span_is(f->name, "x-request-id") ||
			(leg->w->conf->ncors_origins > 0 && is_cors(f->name)))
			continue;
		n += http_line(leg->head + n, f);
	}
	leg->head_len = (uint32_t)n;
}

static void
take_head(struct leg *leg, const struct http_head *h)
{
	const struct http_header *type = http_header(h, "content-type");

	leg->status = h->status;
	leg->keep_alive = h->keep_alive;
	leg->sse = type != NULL && type->value.n >= 17 &&
		   strncasecmp(type->value.p, "text/event-stream", 17) == 0;
	leg->length = h->content_length;
	http_body_init(&leg->body, h->framing, h->content_length);
	if (!leg->body_alone || h->status >= 300)
		keep_head(leg, h);
	leg->state = LEG_BODY;
}

/* Reads heads (interim ones are skipped).  Returns bytes consumed, 0 if more are needed, or < 0. */
static ssize_t
read_heads(struct leg *leg, const char *p, size_t n)
{
	struct http_head h;
	size_t used = 0;

	while (leg->state != LEG_BODY) {
		size_t from = 0;
		ssize_t len = http_head_end(p + used, n - used, &from);

		if (len == 0)
			return n - used > LEG_MAX_HEAD ? HTTP_E_TOO_LARGE : (ssize_t)used;
		if (len < 0 ||
			http_head_parse(&h, HTTP_KIND_RESPONSE, p + used, (size_t)len, false) != 0)
			return HTTP_E_SYNTAX;
		used += (size_t)len;
		if (h.status == 101)
			return HTTP_E_SYNTAX; /* the router never requests an upgrade */
		if (h.status >= 200)
			take_head(leg, &h);
	}
	return (ssize_t)used;
}

static bool
keep_piece(struct leg *leg, struct span piece)
{
	const size_t max = leg->w->conf->live.max_answer; /* a reload may have lowered it */

	if (leg->answer_len + piece.n > max || (leg_length_known(leg) && leg->length > max))
		return false;
	if (leg->answer_len + piece.n > leg->answer_cap) {
		size_t want = leg->answer_cap == 0 && leg_length_known(leg) ? leg->length
									    : 2 * leg->answer_cap;

		if (want < leg->answer_len + piece.n)
			want = leg->answer_len + piece.n;
		want = want < 512 ? 512 : want;
		leg->answer = block_grow(&leg->w->blocks, leg->answer, leg->answer_cap, want);
		buffered_add(leg->w, (int64_t)(want - leg->answer_cap));
		leg->answer_cap = want;
	}
	memcpy(leg->answer + leg->answer_len, piece.p, piece.n);
	leg->answer_len += piece.n;
	return true;
}

/* Raises LEG_EV_FIRST once: the owner may then change the leg's mode (an engine's error is
 * kept). */
static void
tell_first(struct leg *leg)
{
	if (leg->progress == LEG_BEGUN)
		return;
	leg->progress = LEG_BEGUN;
	if (leg->wait_each && leg->first_ms != 0)
		set_clock(leg);
	leg->ops->event(leg, LEG_EV_FIRST);
}

static bool
hand_pieces(struct leg *leg, const struct span *pieces, size_t n, bool done)
{
	tell_first(leg);
	if (leg->state != LEG_BODY)
		return false;
	if (!leg->keep) {
		leg->ops->payload(leg, pieces, n, done);
		return leg->state == LEG_BODY;
	}
	for (size_t i = 0; i < n; i++)
		if (!keep_piece(leg, pieces[i])) {
			leg_fail(leg, LEG_FAIL_TOO_LARGE);
			return false;
		}
	if (n > 0 && !done)
		leg->ops->event(leg, LEG_EV_KEPT);
	return leg->state == LEG_BODY;
}

/* Hands the collected pieces to the owner.  Returns false if the leg is over. */
static bool
hand_on(struct leg *leg, const struct span *pieces, size_t n, bool done)
{
	bool on;

	if (n == 0 && !done)
		return true;
	leg->piece = n > 0 ? pieces : NULL;
	on = hand_pieces(leg, pieces, n, done);
	leg->piece = NULL;
	return on;
}

static void
feed_body(struct leg *leg, const char *p, size_t n)
{
	struct span pieces[LEG_PIECES];
	size_t npieces = 0;

	while (n > 0 && !leg->body.done) {
		ssize_t used = http_body_next(&leg->body, p, n, &pieces[npieces]);

		if (used < 0) {
			/* the bytes before the error still belong to the answer */
			if (hand_on(leg, pieces, npieces, false))
				leg_fail(leg, LEG_FAIL_GARBAGE);
			return;
		}
		p += used;
		n -= (size_t)used;
		if (pieces[npieces].n > 0 && ++npieces == LEG_PIECES) {
			if (!hand_on(leg, pieces, npieces, leg->body.done))
				return;
			if (leg->body.done)
				break;
			npieces = 0;
		}
	}
	if (npieces < LEG_PIECES && !hand_on(leg, pieces, npieces, leg->body.done))
		return;
	if (leg->body.done)
		answered(leg, n == 0);
}

static void
feed(struct leg *leg, const char *p, size_t n)
{
	char *joined = NULL;
	ssize_t used;

	if (leg->state == LEG_BODY) {
		feed_body(leg, p, n);
		return;
	}
	if (leg->partial != NULL) { /* rare: a head in several reads */
		joined = mem_resize(leg->partial, leg->partial_len + n, 1);
		leg->partial = NULL;
		memcpy(joined + leg->partial_len, p, n);
		p = joined;
		n += leg->partial_len;
	}
	used = read_heads(leg, p, n);
	if (used < 0) {
		leg_fail(leg, LEG_FAIL_GARBAGE);
	} else if (leg->state != LEG_BODY) {
		leg->partial_len = (uint32_t)(n - (size_t)used);
		leg->partial = mem_resize(NULL, leg->partial_len + 1, 1);
		memcpy(leg->partial, p + used, leg->partial_len);
	} else if (leg->keep && leg_length_known(leg) &&
		   leg->length > leg->w->conf->live.max_answer) {
		leg_fail(leg, LEG_FAIL_TOO_LARGE);
	} else {
		feed_body(leg, p + used, n - (size_t)used);
	}
	free(joined);
}

void
leg_hold(struct leg *leg, bool hold)
{
	const enum leg_reading to = hold ? LEG_READ_HELD : LEG_READING;

	if (leg->state != LEG_BODY || leg->reading == to || leg->reading == LEG_HUNG_UP)
		return;
	leg->reading = to;
	if (hold) {
		sock_read_stop(&leg->uc->sock);
		leg->deadline_ms = 0; /* no time limit while the router does not read */
	} else {
		sock_read_start(&leg->uc->sock);
		set_clock(leg);
	}
}

/* --- engines that are down ------------------------------------------------------------------------ */

/* An event may end any leg of the list, so each leg moves to its end before its event. */
static void
tell(struct endpoint *ep, enum leg_event ev)
{
	struct leg *leg;
	size_t n = 0;

	TAILQ_FOREACH(leg, &ep->legs, link)
	n++;
	for (; n > 0 && (leg = TAILQ_FIRST(&ep->legs)) != NULL; n--) {
		TAILQ_REMOVE(&ep->legs, leg, link);
		TAILQ_INSERT_TAIL(&ep->legs, leg, link);
		leg->ops->event(leg, ev);
	}
}

/* DOWN goes to the legs at each tick, since a leg may start after the endpoint was found down.  GONE goes to them each
 * time that down_grace is over. */
static void
watch(struct worker *w, struct endpoint *ep, uint64_t now_ms)
{
	if (!connpool_is_down(w->connpool, ep)) {
		ep->gone_ms = 0;
		return;
	}
	if (ep->gone_ms == 0)
		ep->gone_ms = now_ms + ep->down_grace_ms;
	tell(ep, LEG_EV_DOWN);
	if (now_ms < ep->gone_ms)
		return;
	ep->gone_ms = now_ms + ep->down_grace_ms;
	tell(ep, LEG_EV_GONE);
}

void
leg_tell_down(struct worker *w, uint64_t now_ms)
{
	struct endpoint *ep;

	for (uint32_t n = w->nbusy; n > 0 && (ep = TAILQ_FIRST(&w->busy)) != NULL; n--) {
		TAILQ_REMOVE(&w->busy, ep, link);
		TAILQ_INSERT_TAIL(&w->busy, ep, link);
		(void)connpool_ref(ep); /* its last leg may end */
		watch(w, ep, now_ms);
		connpool_unref(w->connpool, &ep);
	}
}
