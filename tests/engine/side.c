#include "tests/engine/side.h"

#include <assert.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event_struct.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "tests/engine/buf.h"
#include "tests/engine/shake.h"
#include "tests/engine/sim.h"

#define LINE_MAX_BYTES (1 << 20) /* an X-Request-Id may be long; a head is at most 80 KiB */
#define PEERS_MAX 256

struct side_op {
	TAILQ_ENTRY(side_op) next;
	struct peer *peer;
	struct event timer;
	unsigned long long number;
	side_done *done; /* NULL: nobody waits any more */
	void *arg;
};

TAILQ_HEAD(op_head, side_op);

struct peer {
	TAILQ_ENTRY(peer) next;
	struct side *side;
	struct bufferevent *bev;
	struct op_head ops; /* asked and not answered, oldest first */
	char *host;
	int port;
};

struct side_q {
	TAILQ_ENTRY(side_q) next;
	struct asker *asker;
	unsigned long long number;
	void (*gone)(void *arg);
	void *arg;
};

TAILQ_HEAD(q_head, side_q);

struct asker {
	TAILQ_ENTRY(asker) next;
	struct side *side;
	struct bufferevent *bev;
	struct q_head qs;
	int port;
};

TAILQ_HEAD(peer_head, peer);
TAILQ_HEAD(asker_head, asker);

#define DOORS_MAX 130 /* one, and two for each of 64 ranks */

struct door {
	struct side *side;
	struct evconnlistener *listener;
	int port;
};

struct side {
	struct sim *sim;
	struct door doors[DOORS_MAX];
	unsigned ndoors;
	struct peer_head peers;
	struct asker_head askers;
	const struct timeval *timeout;
	unsigned npeers;
	unsigned long long next_number;
};

static void
nodelay(struct bufferevent *bev)
{
	int one = 1;

	(void)setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- percent-encoding, so that a line splits at its spaces ---- */

void
side_word(struct buf *b, const char *s)
{
	if (*s == '\0')
		BUF_LIT(b, "%");
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c <= ' ' || c == '%' || c >= 127)
			buf_fmt(b, "%%%02x", c);
		else
			buf_add(b, s, 1);
	}
	BUF_LIT(b, " ");
}

static char *
decode(char *word)
{
	char *in = word, *out = word;
	unsigned c;

	while (*in) {
		if (*in == '%' && sscanf(in + 1, "%2x", &c) == 1) {
			*out++ = (char)c;
			in += 3;
		} else if (*in == '%') {
			in++;
		} else {
			*out++ = *in++;
		}
	}
	*out = '\0';
	return word;
}

/* ---- the side that is asked ---- */

static void
q_end(struct side_q *q)
{
	TAILQ_REMOVE(&q->asker->qs, q, next);
	free(q);
}

void
side_answer(struct side_q *q, const char *answer)
{
	struct buf line = {0};

	buf_fmt(&line, "%llu ", q->number);
	buf_str(&line, answer);
	BUF_LIT(&line, "\n");
	(void)bufferevent_write(q->asker->bev, line.p, line.len);
	buf_free(&line);
	q_end(q);
}

void
side_on_gone(struct side_q *q, void (*gone)(void *arg), void *arg)
{
	q->gone = gone;
	q->arg = arg;
}

static void
q_gone(struct side_q *q)
{
	if (q->gone != NULL)
		q->gone(q->arg);
	q_end(q);
}

static void
serve_line(struct asker *a, char *line)
{
	char *rest = line, *word, *end;
	unsigned long long number = strtoull(strsep(&rest, " "), &end, 10);
	struct shake_words words = {.n = 0};
	struct side_q *q;

	while (words.n < 8 && (word = strsep(&rest, " ")) != NULL)
		if (*word)
			words.w[words.n++] = decode(word);
	if (*end || words.n == 0)
		return;
	if (strcmp(words.w[0], "FORGET") == 0) {
		TAILQ_FOREACH(q, &a->qs, next)
		if (q->number == number)
			break;
		if (q != NULL)
			q_gone(q);
		return;
	}
	q = calloc(1, sizeof(*q));
	if (q == NULL)
		abort();
	q->asker = a;
	q->number = number;
	TAILQ_INSERT_TAIL(&a->qs, q, next);
	if (a->side->sim->shake->asked != NULL)
		a->side->sim->shake->asked(a->side->sim, q, &words);
	else
		side_answer(q, "DIFFER hand-shake");
}

static void
asker_end(struct asker *a)
{
	TAILQ_REMOVE(&a->side->askers, a, next);
	while (!TAILQ_EMPTY(&a->qs))
		q_gone(TAILQ_FIRST(&a->qs));
	bufferevent_free(a->bev);
	free(a);
}

static void
on_asked(struct bufferevent *bev, void *arg)
{
	struct asker *a = arg;
	char *line;

	while ((line = evbuffer_readln(bufferevent_get_input(bev), NULL, EVBUFFER_EOL_LF)) !=
		NULL) {
		serve_line(a, line);
		free(line);
	}
	if (evbuffer_get_length(bufferevent_get_input(bev)) > LINE_MAX_BYTES)
		asker_end(a);
}

static void
on_asker_gone(struct bufferevent *bev, short what, void *arg)
{
	(void)bev;
	(void)what;
	asker_end(arg);
}

static void
on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int len, void *arg)
{
	struct door *door = arg;
	struct asker *a = calloc(1, sizeof(*a));

	(void)l;
	(void)sa;
	(void)len;
	if (a == NULL)
		abort();
	a->side = door->side;
	a->port = door->port;
	TAILQ_INIT(&a->qs);
	a->bev = bufferevent_socket_new(a->side->sim->base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (a->bev == NULL)
		abort();
	nodelay(a->bev);
	bufferevent_setcb(a->bev, on_asked, NULL, on_asker_gone, a);
	(void)bufferevent_enable(a->bev, EV_READ | EV_WRITE);
	TAILQ_INSERT_TAIL(&a->side->askers, a, next);
}

/* ---- the side that asks ---- */

static void
op_end(struct side_op *op, const char *line)
{
	side_done *done = op->done;
	void *arg = op->arg;

	TAILQ_REMOVE(&op->peer->ops, op, next);
	assert(TAILQ_FIRST(&op->peer->ops) != op); /* which the analyzer does not see */
	(void)event_del(&op->timer);
	free(op);
	if (done != NULL)
		done(arg, line);
}

static void
peer_end(struct peer *p)
{
	/* first: what follows may ask the same peer again */
	TAILQ_REMOVE(&p->side->peers, p, next);
	p->side->npeers--;
	while (!TAILQ_EMPTY(&p->ops))
		op_end(TAILQ_FIRST(&p->ops), "UNREACHABLE");
	bufferevent_free(p->bev);
	free(p->host);
	free(p);
}

static void
answered(struct peer *p, char *line)
{
	char *rest = line, *word = strsep(&rest, " ");
	unsigned long long number = strtoull(word, NULL, 10);
	struct side_op *op;
	struct buf b = {0};

	while ((word = strsep(&rest, " ")) != NULL) {
		if (*word == '\0')
			continue;
		if (b.len)
			BUF_LIT(&b, " ");
		buf_str(&b, decode(word));
	}
	TAILQ_FOREACH(op, &p->ops, next)
	if (op->number == number)
		break;
	if (op != NULL) /* else it came too late */
		op_end(op, buf_cstr(&b));
	buf_free(&b);
}

static void
on_answers(struct bufferevent *bev, void *arg)
{
	char *line;

	while ((line = evbuffer_readln(bufferevent_get_input(bev), NULL, EVBUFFER_EOL_LF)) !=
		NULL) {
		answered(arg, line);
		free(line);
	}
}

static void
on_peer_event(struct bufferevent *bev, short what, void *arg)
{
	(void)bev;
	if (!(what & BEV_EVENT_CONNECTED))
		peer_end(arg);
}

/*
 * Numbers first: a name costs a blocking look-up, which a simulator may do.  localhost is 127.0.0.1, where
 * engines listen, whatever /etc/hosts says of it or whether there is one (RFC 6761, 6.3).
 */
struct addrinfo *
side_resolve(const char *host, int port)
{
	struct addrinfo hint = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *ai = NULL;
	char service[16];

	if (strcmp(host, "localhost") == 0)
		host = "127.0.0.1";
	(void)snprintf(service, sizeof(service), "%d", port);
	if (getaddrinfo(host, service, &hint, &ai) == 0)
		return ai;
	hint.ai_flags = 0;
	return getaddrinfo(host, service, &hint, &ai) == 0 ? ai : NULL;
}

static struct peer *
peer_get(struct side *s, const char *host, int port)
{
	struct addrinfo *ai;
	struct peer *p;
	int r;

	TAILQ_FOREACH(p, &s->peers, next)
	if (p->port == port && strcmp(p->host, host) == 0)
		return p;
	ai = s->npeers < PEERS_MAX ? side_resolve(host, port) : NULL;
	if (ai == NULL)
		return NULL;
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		abort();
	p->side = s;
	p->host = strdup(host);
	p->port = port;
	TAILQ_INIT(&p->ops);
	p->bev = bufferevent_socket_new(
		s->sim->base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
	if (p->host == NULL || p->bev == NULL)
		abort();
	bufferevent_setcb(p->bev, on_answers, NULL, on_peer_event, p);
	TAILQ_INSERT_TAIL(&s->peers, p, next);
	s->npeers++;
	(void)bufferevent_enable(p->bev, EV_READ | EV_WRITE);
	r = bufferevent_socket_connect(p->bev, ai->ai_addr, (int)ai->ai_addrlen);
	freeaddrinfo(ai);
	if (r == -1) {
		peer_end(p);
		return NULL;
	}
	nodelay(p->bev);
	return p;
}

static void
send_forget(struct side_op *op)
{
	char line[48];
	int n = snprintf(line, sizeof(line), "%llu FORGET\n", op->number);

	(void)bufferevent_write(op->peer->bev, line, (size_t)n);
}

static void
on_timeout(evutil_socket_t fd, short what, void *arg)
{
	struct side_op *op = arg;

	(void)fd;
	(void)what;
	send_forget(op);
	op_end(op, "TIMEOUT");
}

struct side_op *
side_ask(struct side *s, const char *host, int port, const struct buf *line, side_done *done,
	void *arg)
{
	struct peer *p = peer_get(s, host, port);
	struct buf b = {0};
	struct side_op *op;

	if (p == NULL)
		return NULL;
	op = calloc(1, sizeof(*op));
	if (op == NULL)
		abort();
	op->peer = p;
	op->number = s->next_number++;
	op->done = done;
	op->arg = arg;
	(void)evtimer_assign(&op->timer, s->sim->base, on_timeout, op);
	(void)evtimer_add(&op->timer, s->timeout);
	TAILQ_INSERT_TAIL(&p->ops, op, next);
	buf_fmt(&b, "%llu ", op->number);
	buf_add(&b, line->p, line->len);
	BUF_LIT(&b, "\n");
	(void)bufferevent_write(p->bev, b.p, b.len);
	buf_free(&b);
	return op;
}

void
side_forget(struct side_op *op)
{
	op->done = NULL;
	send_forget(op);
}

void
side_listen(struct side *s, int fd, int port)
{
	struct door *d = &s->doors[s->ndoors++];

	if (s->ndoors > DOORS_MAX)
		abort();
	d->side = s;
	d->port = port;
	d->listener = evconnlistener_new(s->sim->base, on_accept, d, LEV_OPT_CLOSE_ON_FREE, 0, fd);
	if (d->listener == NULL)
		abort();
}

int
side_port(const struct side_q *q)
{
	return q->asker->port;
}

struct side *
side_new(struct sim *sim, int fd)
{
	struct side *s = calloc(1, sizeof(*s));
	double sec = sim->o.fetch_timeout_s;
	struct timeval tv = {(time_t)sec, (suseconds_t)((sec - (double)(time_t)sec) * 1e6)};

	if (s == NULL)
		abort();
	s->sim = sim;
	s->timeout = event_base_init_common_timeout(sim->base, &tv);
	TAILQ_INIT(&s->peers);
	TAILQ_INIT(&s->askers);
	if (s->timeout == NULL)
		abort();
	side_listen(s, fd, sim->side_port);
	return s;
}

void
side_free(struct side **ps)
{
	struct side *s = *ps;

	*ps = NULL;
	if (s == NULL)
		return;
	while (!TAILQ_EMPTY(&s->peers))
		peer_end(TAILQ_FIRST(&s->peers));
	while (!TAILQ_EMPTY(&s->askers))
		asker_end(TAILQ_FIRST(&s->askers));
	while (s->ndoors > 0)
		evconnlistener_free(s->doors[--s->ndoors].listener);
	free(s);
}
