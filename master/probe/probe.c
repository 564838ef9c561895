#include "master/probe/probe.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "master/probe/wire.h"
#include "proto/http/http.h"
#include "proto/json/json_small.h"
#include "proto/json/utf8.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/table.h"

/* One read per wake-up, also of what OpenSSL has read ahead, so an endless answer does not hold up the others. */
#define READ_BYTES (64u << 10)
/*
 * Sockets of freed probes that are closed in one turn of the loop.  A reload that removes hundreds of
 * endpoints closes as many connections, 10 us each: not before the new configuration is in force.
 */
#define CLOSE_MAX 32
#define HEAD_MAX (16u << 10) /* and of one read while it is awaited: at most 32 KiB are kept */

/*
 * IDLE --probe_get--> CONNECT --writable--> SEND --all written--> HEAD --head--> BODY --end--> IDLE
 *    \                     \---- SHAKE -----^
 *     \--- kept connection ----------------/
 *
 * A kept connection is watched while IDLE: what comes on it belongs to no request, so it is closed.
 * One that breaks later, without a byte of an answer, was stale too: the request is sent once more,
 * on a new connection.  One clock runs over all of it.  Any failure ends in IDLE, connection closed.
 */
enum state {
	IDLE,
	FAILED /* could not start: reported from the loop */,
	CONNECT,
	SHAKE, /* of TLS */
	SEND,
	HEAD,
	BODY,
	STATE_N
};

struct bytes {
	char *p;
	size_t n, room;
};

/*
 * Clocks of one duration end in the order in which they began: the loop has a queue for them.  In its heap
 * the clocks of a turn's probes would move all others.
 */
#define USUAL_MAX 8 /* timeouts; few are configured in the life of a master */
struct usual {
	uint64_t ms;
	const struct timeval *tv; /* names the queue */
};

struct probe_env {
	struct event_base *base;
	struct usual usual[USUAL_MAX];
	size_t nusual;
	int *closing; /* sockets whose probes are gone */
	size_t nclosing, closing_room;
	struct event *closer;
	size_t held, max_held; /* room of all bodies */
	char buf[READ_BYTES];
};

struct probe {
	struct probe_env *env;
	probe_fn *fn;
	void *arg;
	enum state state;
	struct wire wire;
	struct tls_client *tls; /* of the GET, a reference; NULL: plain */
	const char *host;
	struct tls_memory *memory;
	struct event *io, *clock;
	struct ep_addr addr; /* of wire */
	bool reused;
	bool keep;
	bool keyed;
	bool want_body;
	probe_piece_fn *piece;
	size_t max_body;
	char *request; /* holds the key, if there is one */
	size_t request_len, sent;
	struct bytes head;
	size_t head_seen; /* http_head_end()'s memory */
	bool answering;   /* a byte of the answer has come */
	struct http_body framing;
	bool keep_alive; /* the answer's head allows it */
	int status;
	struct bytes body;
	size_t body_len; /* payload bytes seen, kept or not */
	int early_errno; /* FAILED: what probe_get() ran into */
};

static void on_clock(evutil_socket_t fd, short what, void *arg);
static void on_io(evutil_socket_t fd, short what, void *arg);

static void
on_closer(evutil_socket_t fd, short what, void *arg)
{
	struct probe_env *env = arg;
	struct timeval now = {0};

	(void)fd;
	(void)what;
	for (size_t n = 0; n < CLOSE_MAX && env->nclosing > 0; n++)
		(void)close(env->closing[--env->nclosing]);
	if (env->nclosing > 0)
		(void)event_add(env->closer, &now);
}

static void
close_soon(struct probe_env *env, int fd)
{
	struct timeval now = {0};

	if (env->nclosing == env->closing_room) {
		env->closing_room = env->closing_room > 0 ? 2 * env->closing_room : CLOSE_MAX;
		env->closing = mem_resize(env->closing, env->closing_room, sizeof(int));
	}
	env->closing[env->nclosing++] = fd;
	(void)event_add(env->closer, &now);
}

struct probe_env *
probe_env_new(struct event_base *base, size_t max_held)
{
	struct probe_env *env = MEM_NEW(struct probe_env);

	env->base = base;
	env->max_held = max_held;
	env->closer = event_new(base, -1, 0, on_closer, env);
	assert(env->closer != NULL);
	return env;
}

void
probe_env_free(struct probe_env **penv)
{
	struct probe_env *env = *penv;

	while (env->nclosing > 0)
		(void)close(env->closing[--env->nclosing]);
	event_free(env->closer);
	free(env->closing);
	free(env);
	*penv = NULL;
}

struct probe *
probe_new(struct probe_env *env, probe_fn *fn, void *arg)
{
	struct probe *p = MEM_NEW(struct probe);

	p->env = env;
	p->fn = fn;
	p->arg = arg;
	p->wire.fd = -1;
	p->clock = event_new(env->base, -1, 0, on_clock, p);
	assert(p->clock != NULL);
	return p;
}

static void
hang_up(struct probe *p)
{
	if (p->io != NULL)
		event_free(p->io);
	p->io = NULL;
	if (p->wire.fd != -1)
		(void)close(wire_release(&p->wire));
}

static void
forget(struct probe *p)
{
	(void)event_del(p->clock);
	mem_free_secret(p->request);
	p->request = NULL;
	tls_client_free(&p->tls);
	free(p->head.p);
	p->head = (struct bytes){0};
	p->env->held -= p->body.room;
	free(p->body.p);
	p->body = (struct bytes){0};
	p->state = IDLE;
}

void
probe_cancel(struct probe *p)
{
	forget(p);
	hang_up(p);
}

void
probe_free(struct probe **pp)
{
	struct probe *p = *pp;

	if (p == NULL)
		return;
	forget(p);
	if (p->io != NULL)
		event_free(p->io);
	if (p->wire.fd != -1)
		close_soon(p->env, wire_release(&p->wire));
	event_free(p->clock);
	free(p);
	*pp = NULL;
}

bool
probe_busy(const struct probe *p)
{
	return p->state != IDLE;
}

/* --- how it ends ------------------------------------------------------------------------- */

/* The answer is handed out last of all, from a local copy: fn may start the next GET. */
static void
answer(struct probe *p, struct probe_answer a)
{
	struct bytes body = p->body;

	p->body = (struct bytes){0};
	a.status = p->status;
	a.keyed = p->keyed;
	if (a.error == 0 && p->want_body) {
		a.body = body.n > 0 ? body.p : "";
		a.len = body.n;
	}
	if (a.error != 0 || !p->keep || !p->keep_alive)
		hang_up(p);
	forget(p);
	p->fn(&a, p->arg);
	p->env->held -= body.room;
	free(body.p);
}

static void
finish(struct probe *p, int error, const char *why)
{
	answer(p, (struct probe_answer){.error = error, .why = why});
}

/* Not EADDRNOTAVAIL: it is what ::1 of a "localhost" gives where IPv6 is switched off, and the
 * name's next address must then be tried. */
static bool
is_local(int err)
{
	return err == EMFILE || err == ENFILE || err == ENOBUFS || err == ENOMEM;
}

static void
fail_errno(struct probe *p, int err)
{
	answer(p,
		(struct probe_answer){.error = -err, .local = is_local(err), .why = strerror(err)});
}

/* `err`: errno of a connection that was made. */
static void
fail_wire(struct probe *p, int err)
{
	if (p->wire.ssl != NULL && p->wire.why[0] != '\0')
		finish(p, -err, p->wire.why);
	else
		fail_errno(p, err);
}

static void
on_clock(evutil_socket_t fd, short what, void *arg)
{
	static const char *const late[STATE_N] = {
		[IDLE] = "",
		[FAILED] = "",
		[CONNECT] = "no connection in time",
		[SHAKE] = "tls: no handshake in time",
		[SEND] = "request not taken in time",
		[HEAD] = "no answer in time",
		[BODY] = "answer not complete in time",
	};
	struct probe *p = arg;

	(void)fd;
	(void)what;
	if (p->state == FAILED)
		fail_errno(p, p->early_errno);
	else
		finish(p, -ETIMEDOUT, late[p->state]);
}

/* --- connection -------------------------------------------------------------------------- */

static void
watch(struct probe *p, short what)
{
	what |= EV_PERSIST;
	if (p->io != NULL && event_get_events(p->io) == what)
		return;
	if (p->io != NULL)
		event_free(p->io);
	p->io = event_new(p->env->base, p->wire.fd, what, on_io, p);
	assert(p->io != NULL);
	(void)event_add(p->io, NULL);
}

/* 0 or the errno of a connect that failed at once. */
static int
dial(struct probe *p)
{
	struct sockaddr_storage sa;
	socklen_t len = ep_addr_sockaddr(&p->addr, &sa);

	p->reused = false;
	if (len == 0)
		return EADDRNOTAVAIL;
	p->wire.fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (p->wire.fd == -1)
		return errno;
	p->state = CONNECT;
	if (connect(p->wire.fd, (struct sockaddr *)&sa, len) == -1 && errno != EINPROGRESS) {
		int err = errno;

		hang_up(p);
		return err;
	}
	watch(p, EV_WRITE);
	return 0;
}

static bool
may_reuse(struct probe *p, const struct probe_request *rq)
{
	return rq->keep && !rq->fresh && ep_addr_equal(&p->addr, rq->addr) &&
	       wire_is_of(&p->wire, rq->tls) && wire_is_quiet(&p->wire);
}

/* Sends what the socket takes.  0 or an errno. */
static int
send_request(struct probe *p)
{
	ssize_t n = wire_send(&p->wire, p->request + p->sent, p->request_len - p->sent);

	if (n < 0 && n != -EAGAIN && n != -EINTR)
		return (int)-n;
	p->sent += n > 0 ? (size_t)n : 0;
	p->state = p->sent < p->request_len ? SEND : HEAD;
	watch(p, p->state == SEND && p->wire.wants == WIRE_WANTS_ROOM ? EV_WRITE : EV_READ);
	return 0;
}

/* NULL: there is no queue for this timeout. */
static const struct timeval *
usual_clock(struct probe_env *env, uint64_t ms)
{
	const struct timeval tv = clock_tv(ms);

	for (size_t i = 0; i < env->nusual; i++)
		if (env->usual[i].ms == ms)
			return env->usual[i].tv;
	if (env->nusual == USUAL_MAX)
		return NULL;
	env->usual[env->nusual] =
		(struct usual){ms, event_base_init_common_timeout(env->base, &tv)};
	return env->usual[env->nusual++].tv;
}

static void
start_clock(struct probe *p, const struct probe_request *rq)
{
	const struct timeval left = clock_tv(rq->timeout_ms - rq->spent_ms);
	const struct timeval *usual =
		rq->spent_ms == 0 ? usual_clock(p->env, rq->timeout_ms) : NULL;

	(void)event_add(p->clock, usual != NULL ? usual : &left);
}

/* By hand: printf() took 2% of the master's time.  No copy of the key is left behind. */
static void
write_request(struct probe *p, const struct probe_request *rq)
{
	static const char agent[] = "\r\nUser-Agent: pdrouter/" PDROUTER_VERSION "\r\n";
	const bool keyed = rq->api_key != NULL;
	const char *const parts[] = {"GET ", rq->prefix, rq->path,
		" HTTP/1.1\r\nHost: ", rq->authority, agent, keyed ? "Authorization: Bearer " : "",
		keyed ? rq->api_key : "", keyed ? "\r\n" : "",
		"Connection: ", rq->keep ? "keep-alive" : "close", "\r\n\r\n"};
	enum { NPARTS = sizeof(parts) / sizeof(parts[0]) };
	size_t lens[NPARTS], len = 0;

	for (size_t i = 0; i < NPARTS; i++)
		len += lens[i] = strlen(parts[i]);
	p->request = mem_resize(NULL, len + 1, 1);
	p->request_len = 0;
	for (size_t i = 0; i < NPARTS; i++) {
		memcpy(p->request + p->request_len, parts[i], lens[i]);
		p->request_len += lens[i];
	}
	p->request[len] = '\0'; /* mem_free_secret() looks for the end */
}

void
probe_get(struct probe *p, const struct probe_request *rq)
{
	static const struct timeval now = {0};

	assert(p->state == IDLE);
	write_request(p, rq);
	p->keep = rq->keep;
	p->keyed = rq->api_key != NULL;
	p->tls = rq->tls != NULL ? tls_client_ref(rq->tls) : NULL;
	p->host = rq->host;
	p->memory = rq->memory;
	p->want_body = rq->want_body;
	p->piece = rq->piece;
	p->max_body = rq->max_body;
	p->sent = p->head_seen = p->body_len = 0;
	p->status = 0;
	p->keep_alive = p->answering = false;
	if (p->wire.fd != -1 && (!may_reuse(p, rq) || (rq->https && rq->tls == NULL)))
		hang_up(p);
	p->addr = *rq->addr;
	p->reused = p->wire.fd != -1;
	if (p->reused && send_request(p) != 0)
		hang_up(p);
	if (p->wire.fd == -1) {
		p->early_errno = rq->https && rq->tls == NULL ? ENOKEY : dial(p);
		if (p->early_errno != 0) { /* fn is never called from in here */
			p->state = FAILED;
			(void)event_add(p->clock, &now);
			return;
		}
	}
	start_clock(p, rq);
}

/* Broken before an answer: a stale kept connection is replaced once; else it is the peer's fault. */
static void
broken(struct probe *p, int err)
{
	int r;

	if (!p->reused || p->answering) {
		fail_wire(p, err);
		return;
	}
	hang_up(p);
	p->sent = 0;
	r = dial(p);
	if (r != 0)
		fail_errno(p, r);
}

static void
on_writable(struct probe *p)
{
	int err = send_request(p);

	if (err != 0)
		broken(p, err);
}

/* The handshake of TLS; then the request is sent. */
static void
on_shake(struct probe *p)
{
	const int r = wire_shake(&p->wire);

	if (r == 0)
		on_writable(p);
	else if (r == -EAGAIN)
		watch(p, p->wire.wants == WIRE_WANTS_ROOM ? EV_WRITE : EV_READ);
	else
		fail_wire(p, -r);
}

static void
begin_tls(struct probe *p)
{
	p->state = SHAKE;
	if (wire_begin_tls(&p->wire, p->tls, p->host, p->memory))
		on_shake(p);
	else
		fail_errno(p, ENOMEM);
}

static void
on_connected(struct probe *p)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(p->wire.fd, SOL_SOCKET, SO_ERROR, &err, &len) == -1)
		err = errno;
	if (err != 0)
		fail_errno(p, err);
	else if (p->tls != NULL)
		begin_tls(p);
	else
		on_writable(p);
}

/* --- the answer -------------------------------------------------------------------------- */

static size_t
room_for(const struct bytes *b, size_t n)
{
	size_t room = b->room == 0 ? 4096 : b->room;

	while (room < b->n + n)
		room *= 2;
	return room;
}

static void
append(struct bytes *b, const char *data, size_t n)
{
	size_t room = room_for(b, n);

	if (room != b->room)
		b->p = mem_resize(b->p, room, 1);
	b->room = room;
	if (n > 0)
		memcpy(b->p + b->n, data, n);
	b->n += n;
}

/* NULL, or why not: for that no single engine is to blame. */
static const char *
keep_body(struct probe *p, const struct span *piece)
{
	const size_t room = room_for(&p->body, piece->n), more = room - p->body.room;

	if (p->env->held + more > p->env->max_held)
		return "answers of all engines together too large";
	if (more > 0 && !mem_has_room(room))
		return "out of memory";
	p->env->held += more;
	append(&p->body, piece->p, piece->n);
	return NULL;
}

static void
take_body(struct probe *p, const char *data, size_t n)
{
	while (n > 0 && !p->framing.done) {
		struct span piece = {0};
		const char *why;
		ssize_t used = http_body_next(&p->framing, data, n, &piece);

		if (used < 0) {
			finish(p, -EPROTO, http_error_text((int)used));
			return;
		}
		data += used;
		n -= (size_t)used;
		p->body_len += piece.n;
		if (p->body_len > p->max_body) {
			finish(p, -EMSGSIZE, "answer too large");
			return;
		}
		why = p->want_body ? keep_body(p, &piece) : NULL;
		if (why != NULL) {
			answer(p, (struct probe_answer){
					  .error = -ENOBUFS, .local = true, .why = why});
			return;
		}
		if (p->piece != NULL && p->status == 200 && piece.n > 0)
			p->piece(piece.p, piece.n, p->arg);
	}
	if (!p->framing.done)
		return;
	if (n > 0) /* bytes after the answer belong to no request of the router */
		p->keep_alive = false;
	finish(p, 0, "");
}

/* Interim answers (1xx) are skipped: each is bounded like the head, their number by the clock. */
static void
take_head(struct probe *p, const char *data, size_t n)
{
	struct http_head h;
	ssize_t len;
	size_t at = 0;

	p->answering = true;
	append(&p->head, data, n);
	do {
		int r;

		len = http_head_end(p->head.p + at, p->head.n - at, &p->head_seen);
		if (len == 0 && p->head.n - at > HEAD_MAX)
			len = HTTP_E_TOO_MANY;
		if (len == 0) {
			memmove(p->head.p, p->head.p + at, p->head.n - at);
			p->head.n -= at;
			return;
		}
		r = len < 0 ? (int)len
			    : http_head_parse(
				      &h, HTTP_KIND_RESPONSE, p->head.p + at, (size_t)len, false);
		if (r < 0) {
			finish(p, -EPROTO, http_error_text(r));
			return;
		}
		at += (size_t)len;
		p->head_seen = 0;
	} while (h.status < 200);
	p->status = h.status;
	p->keep_alive = h.keep_alive;
	p->state = BODY;
	http_body_init(&p->framing, h.framing, h.content_length);
	take_body(p, p->head.p + at, p->head.n - at);
}

static void
on_end(struct probe *p)
{
	if (p->state == BODY && p->framing.framing == HTTP_BODY_UNTIL_CLOSE) {
		p->keep_alive = false;
		finish(p, 0, "");
	} else if (p->state == BODY) {
		finish(p, -ECONNRESET, "answer broke off");
	} else if (p->reused && !p->answering) {
		broken(p, ECONNRESET);
	} else {
		finish(p, -ECONNRESET, "closed without an answer");
	}
}

static void
on_readable(struct probe *p)
{
	/* not event_active(): the loop would call the event again in this turn */
	static const struct timeval next_turn = {0};
	size_t size = p->state == HEAD ? HEAD_MAX : sizeof(p->env->buf);
	const ssize_t n = wire_read(&p->wire, p->env->buf, size);
	const bool none = n == -EAGAIN || n == -EINTR;

	if (n < 0 && !none && p->state == HEAD)
		broken(p, (int)-n);
	else if (n < 0 && !none)
		fail_wire(p, (int)-n);
	else if (n == 0)
		on_end(p);
	else if (n > 0 && p->state == HEAD)
		take_head(p, p->env->buf, (size_t)n);
	else if (n > 0)
		take_body(p, p->env->buf, (size_t)n);
	if ((n > 0 || none) && (p->state == HEAD || p->state == BODY) && wire_is_ahead(&p->wire))
		(void)event_add(p->io, &next_turn);
}

/* The engine closes the connection, or sends bytes that belong to no request; or a ticket of TLS. */
static void
on_idle(struct probe *p)
{
	if (p->wire.ssl == NULL || !wire_is_quiet(&p->wire))
		hang_up(p);
}

static void
on_io(evutil_socket_t fd, short what, void *arg)
{
	static void (*const step[STATE_N])(struct probe *) = {
		[IDLE] = on_idle,
		[CONNECT] = on_connected,
		[SHAKE] = on_shake,
		[SEND] = on_writable,
		[HEAD] = on_readable,
		[BODY] = on_readable,
	};
	struct probe *p = arg;

	(void)fd;
	assert(step[p->state] != NULL);
	if ((what & EV_TIMEOUT) != 0) /* libevent has ended the watch of the descriptor */
		(void)event_add(p->io, NULL);
	step[p->state](p);
}

/* --- good answers ------------------------------------------------------------------- */

/* What the engine says of its refusal, harmless on a terminal; "" if it says nothing. */
static void
error_text(const struct probe_answer *a, char *buf, size_t size)
{
	size_t n;

	buf[0] = '\0';
	if (a->body == NULL || !json_error_message(a->body, a->len, buf, size))
		return;
	for (uint8_t *p = (uint8_t *)buf; *p != '\0'; p += n) {
		n = utf8_seq(p, strlen((char *)p));
		if (utf8_is_control(p))
			memset(p, ' ', n);
	}
}

bool
probe_key_refused(const struct probe_answer *a)
{
	return a->error == 0 && (a->status == 401 || a->status == 403);
}

bool
probe_good(const struct probe_answer *a, const char *path, char *why, size_t size)
{
	char said[100] = "";

	if (a->error == 0 && a->status / 100 == 2)
		return true;
	if (!a->keyed)
		error_text(a, said, sizeof(said));
	if (a->error != 0)
		(void)snprintf(why, size, "GET %.64s: %s", path, a->why);
	else
		(void)snprintf(why, size, "GET %.64s: status %d%s%s%s", path, a->status,
			probe_key_refused(a) ? ", engine refuses our key" : "",
			said[0] != '\0' ? ": " : "", said);
	return false;
}
