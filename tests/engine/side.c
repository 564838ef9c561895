#include "tests/engine/side.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>

#include "tests/engine/gen.h"
#include "tests/engine/kv.h"
#include "tests/engine/sim.h"

#define LINE_MAX_BYTES (1 << 20) /* an X-Request-Id may be long; a head is at most 80 KiB */
#define PEERS_MAX 256

struct side_op {
	TAILQ_ENTRY(side_op) next;
	struct gen *gen; /* NULL: nobody waits any more */
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

struct asker {
	TAILQ_ENTRY(asker) next;
	struct side *side;
	struct bufferevent *bev;
};

TAILQ_HEAD(peer_head, peer);
TAILQ_HEAD(asker_head, asker);

struct side {
	struct sim *sim;
	struct evconnlistener *listener;
	struct peer_head peers;
	struct asker_head askers;
	unsigned npeers;
};

static void
nodelay(struct bufferevent *bev)
{
	int one = 1;

	(void)setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- percent-encoding, so that a line splits at its spaces ---- */

static void
put_word(struct buf *b, const char *s)
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
}

static char *
get_word(char **rest)
{
	char *word = strsep(rest, " "), *in = word, *out = word;
	unsigned c;

	if (word == NULL)
		return NULL;
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

/* ---- the side that holds ---- */

static void
serve_fetch(struct side *s, char *rest, struct buf *out)
{
	static const char *const what[] = {[KV_DIFFER_ENGINE] = "engine_id",
		[KV_DIFFER_META] = "kv_transfer_params",
		[KV_DIFFER_PROMPT] = "prompt"};
	char *engine = get_word(&rest), *id = get_word(&rest), *prompt = get_word(&rest),
	     *meta = get_word(&rest);
	struct buf xrid = {0};
	enum kv_verdict v;
	uint32_t n = 0;

	if (meta == NULL) {
		BUF_LIT(out, "DIFFER request\n");
		return;
	}
	v = kv_fetch(s->sim->kv, engine, id, strtoull(prompt, NULL, 16), strtoull(meta, NULL, 16),
		&n, &xrid);
	if (v == KV_OK) {
		buf_fmt(out, "OK %u ", n);
		put_word(out, buf_cstr(&xrid));
		BUF_LIT(out, "\n");
	} else if (v == KV_MISSING) {
		BUF_LIT(out, "MISSING\n");
	} else {
		buf_fmt(out, "DIFFER %s\n", what[v]);
	}
	buf_free(&xrid);
}

static void
serve_line(struct side *s, char *line, struct buf *out)
{
	char *rest = line, *verb = get_word(&rest);

	if (strcmp(verb, "FETCH") == 0) {
		serve_fetch(s, rest, out);
	} else if (strcmp(verb, "RELEASE") == 0) {
		char *engine = get_word(&rest), *id = get_word(&rest);

		if (id != NULL && kv_release(s->sim->kv, engine, id))
			BUF_LIT(out, "OK 0 %\n");
		else
			BUF_LIT(out, "MISSING\n");
	} else {
		BUF_LIT(out, "DIFFER request\n");
	}
}

static void
asker_end(struct asker *a)
{
	TAILQ_REMOVE(&a->side->askers, a, next);
	bufferevent_free(a->bev);
	free(a);
}

static void
on_asked(struct bufferevent *bev, void *arg)
{
	struct asker *a = arg;
	struct buf out = {0};
	char *line;

	while ((line = evbuffer_readln(bufferevent_get_input(bev), NULL, EVBUFFER_EOL_LF)) !=
		NULL) {
		serve_line(a->side, line, &out);
		free(line);
	}
	(void)bufferevent_write(bev, out.p, out.len);
	buf_free(&out);
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
	struct asker *a = calloc(1, sizeof(*a));

	(void)l;
	(void)sa;
	(void)len;
	if (a == NULL)
		abort();
	a->side = arg;
	a->bev = bufferevent_socket_new(a->side->sim->base, fd, BEV_OPT_CLOSE_ON_FREE);
	if (a->bev == NULL)
		abort();
	nodelay(a->bev);
	bufferevent_setcb(a->bev, on_asked, NULL, on_asker_gone, a);
	(void)bufferevent_enable(a->bev, EV_READ | EV_WRITE);
	TAILQ_INSERT_TAIL(&a->side->askers, a, next);
}

/* ---- the side that fetches ---- */

static void
answer(struct peer *p, const char *line)
{
	struct side_op *op = TAILQ_FIRST(&p->ops);
	struct gen *g = op->gen;

	TAILQ_REMOVE(&p->ops, op, next);
	free(op);
	if (g != NULL)
		gen_fetched(g, line);
}

static void
peer_end(struct peer *p, const char *why)
{
	TAILQ_REMOVE(
		&p->side->peers, p, next); /* first: what follows may ask the same peer again */
	p->side->npeers--;
	while (!TAILQ_EMPTY(&p->ops))
		answer(p, why);
	bufferevent_free(p->bev);
	free(p->host);
	free(p);
}

static void
on_answers(struct bufferevent *bev, void *arg)
{
	struct peer *p = arg;
	char *line, *rest, *verb, *n, *xrid;

	while (!TAILQ_EMPTY(&p->ops) && (line = evbuffer_readln(bufferevent_get_input(bev), NULL,
						 EVBUFFER_EOL_LF)) != NULL) {
		struct buf b = {0};

		rest = line;
		verb = get_word(&rest);
		n = get_word(&rest);
		xrid = get_word(&rest);
		buf_str(&b, verb);
		if (n != NULL)
			buf_fmt(&b, " %s", n);
		if (xrid != NULL)
			buf_fmt(&b, " %s", xrid);
		answer(p, buf_cstr(&b));
		buf_free(&b);
		free(line);
	}
}

static void
on_peer_event(struct bufferevent *bev, short what, void *arg)
{
	(void)bev;
	if (what & BEV_EVENT_CONNECTED)
		return;
	peer_end(arg, what & BEV_EVENT_TIMEOUT ? "TIMEOUT" : "UNREACHABLE");
}

/*
 * Numbers first: a name costs a blocking look-up, which a simulator may do.  localhost is 127.0.0.1, where
 * engines listen, whatever /etc/hosts says of it or whether there is one (RFC 6761, 6.3).
 */
static struct addrinfo *
resolve(const char *host, int port)
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
peer_get(struct side *s, const struct side_ref *ref)
{
	struct addrinfo *ai;
	struct peer *p;
	int r;

	TAILQ_FOREACH(p, &s->peers, next)
	if (p->port == ref->port && strcmp(p->host, ref->host) == 0)
		return p;
	ai = s->npeers < PEERS_MAX ? resolve(ref->host, ref->port) : NULL;
	if (ai == NULL)
		return NULL;
	p = calloc(1, sizeof(*p));
	if (p == NULL)
		abort();
	p->side = s;
	p->host = strdup(ref->host);
	p->port = ref->port;
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
		peer_end(p, "UNREACHABLE");
		return NULL;
	}
	nodelay(p->bev);
	return p;
}

static struct side_op *
ask(struct peer *p, struct gen *g, const struct buf *line)
{
	struct side_op *op = calloc(1, sizeof(*op));
	double s = p->side->sim->o.fetch_timeout_s;
	struct timeval tv = {(time_t)s, (suseconds_t)((s - (double)(time_t)s) * 1e6)};

	if (op == NULL)
		abort();
	op->gen = g;
	if (TAILQ_EMPTY(&p->ops)) /* starts the clock anew; an idle peer is closed by it */
		(void)bufferevent_set_timeouts(p->bev, &tv, NULL);
	TAILQ_INSERT_TAIL(&p->ops, op, next);
	(void)bufferevent_write(p->bev, line->p, line->len);
	return op;
}

struct side_op *
side_fetch(
	struct side *s, const struct side_ref *ref, uint64_t prompt, uint64_t meta, struct gen *g)
{
	struct peer *p = peer_get(s, ref);
	struct buf line = {0};
	struct side_op *op;

	if (p == NULL)
		return NULL;
	BUF_LIT(&line, "FETCH ");
	put_word(&line, ref->engine);
	BUF_LIT(&line, " ");
	put_word(&line, ref->id);
	buf_fmt(&line, " %016llx %016llx\n", (unsigned long long)prompt, (unsigned long long)meta);
	op = ask(p, g, &line);
	buf_free(&line);
	return op;
}

void
side_forget(struct side_op *op)
{
	op->gen = NULL;
}

void
side_release(struct side *s, const struct side_ref *ref)
{
	struct peer *p = peer_get(s, ref);
	struct buf line = {0};

	if (p == NULL)
		return;
	BUF_LIT(&line, "RELEASE ");
	put_word(&line, ref->engine);
	BUF_LIT(&line, " ");
	put_word(&line, ref->id);
	BUF_LIT(&line, "\n");
	(void)ask(p, NULL, &line);
	buf_free(&line);
}

struct side *
side_new(struct sim *sim, int fd)
{
	struct side *s = calloc(1, sizeof(*s));

	if (s == NULL)
		abort();
	s->sim = sim;
	TAILQ_INIT(&s->peers);
	TAILQ_INIT(&s->askers);
	s->listener = evconnlistener_new(sim->base, on_accept, s, LEV_OPT_CLOSE_ON_FREE, 0, fd);
	if (s->listener == NULL)
		abort();
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
		peer_end(TAILQ_FIRST(&s->peers), "UNREACHABLE");
	while (!TAILQ_EMPTY(&s->askers))
		asker_end(TAILQ_FIRST(&s->askers));
	evconnlistener_free(s->listener);
	free(s);
}
