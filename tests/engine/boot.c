#include "tests/engine/boot.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/engine/admin.h"
#include "tests/engine/buf.h"
#include "tests/engine/conn.h"
#include "tests/engine/shake.h"
#include "tests/engine/side.h"
#include "tests/engine/sim.h"

#define ANSWER_MAX (1 << 20)

struct boot {
	struct sim *sim;
	struct bufferevent *bev; /* to the server; NULL: it has answered */
	struct side_op *op;      /* to the engine it named */
	struct buf line;
	boot_find *find;
	boot_done *done;
	void *arg;
};

void
boot_forget(struct boot **pb)
{
	struct boot *b = *pb;

	*pb = NULL;
	if (b == NULL)
		return;
	if (b->bev != NULL)
		bufferevent_free(b->bev);
	if (b->op != NULL)
		side_forget(b->op);
	buf_free(&b->line);
	free(b);
}

static void
finish(struct boot *b, const char *answer)
{
	boot_done *done = b->done;
	void *arg = b->arg;

	boot_forget(&b);
	done(arg, answer);
}

static void
on_answer(void *arg, const char *answer)
{
	struct boot *b = arg;

	b->op = NULL;
	finish(b, answer);
}

bool
boot_address(const char *url, struct buf *host, int *ret_port)
{
	const char *from = strstr(url, "://"), *colon, *end;
	size_t n;
	int port;

	from = from == NULL ? url : from + 3;
	end = from + strcspn(from, "/?#");
	colon = memrchr(from, ':', (size_t)(end - from));
	if (colon == NULL)
		return false;
	port = atoi(colon + 1);
	n = (size_t)(colon - from);
	if (n > 2 && from[0] == '[' && colon[-1] == ']') {
		from++;
		n -= 2;
	}
	if (n == 0 || port <= 0 || port > 65535)
		return false;
	buf_add(host, from, n);
	*ret_port = port;
	return true;
}

/* The server's whole answer, up to its close */
static void
on_told(struct boot *b, char *text)
{
	struct buf host = {0}, why = {0};
	char *body = strstr(text, "\r\n\r\n");
	int status = 0, port = 0;

	bufferevent_free(b->bev);
	b->bev = NULL;
	if (body == NULL || sscanf(text, "HTTP/%*d.%*d %d", &status) != 1 || status != 200)
		buf_fmt(&why, "STATUS %d", status);
	else if (!b->find(b->arg, json_doc(body + 4, strlen(body + 4)), &host, &port))
		buf_str(&why, "NOT FOUND");
	if (why.len == 0) {
		b->op = side_ask(b->sim->side, buf_cstr(&host), port, &b->line, on_answer, b);
		if (b->op == NULL)
			buf_str(&why, "UNREACHABLE");
	}
	if (why.len)
		finish(b, buf_cstr(&why));
	buf_free(&host);
	buf_free(&why);
}

static void
on_data(struct bufferevent *bev, void *arg)
{
	if (evbuffer_get_length(bufferevent_get_input(bev)) > ANSWER_MAX)
		finish(arg, "TOO LONG");
}

static void
on_event(struct bufferevent *bev, short what, void *arg)
{
	struct evbuffer *in = bufferevent_get_input(bev);
	size_t n = evbuffer_get_length(in);
	char *text;

	if (what & BEV_EVENT_CONNECTED)
		return;
	if (!(what & BEV_EVENT_EOF) || n == 0) {
		finish(arg, what & BEV_EVENT_TIMEOUT ? "TIMEOUT" : "UNREACHABLE");
		return;
	}
	text = calloc(n + 1, 1);
	if (text == NULL)
		abort();
	(void)evbuffer_remove(in, text, n);
	on_told(arg, text);
	free(text);
}

struct boot *
boot_ask(struct sim *sim, const char *host, int port, const char *path, const struct buf *line,
	boot_find *find, boot_done *done, void *arg)
{
	double s = sim->o.fetch_timeout_s;
	struct timeval tv = {(time_t)s, (suseconds_t)((s - (double)(time_t)s) * 1e6)};
	struct addrinfo *ai = side_resolve(host, port);
	struct boot *b;

	if (ai == NULL)
		return NULL;
	b = calloc(1, sizeof(*b));
	if (b == NULL)
		abort();
	b->sim = sim;
	b->find = find;
	b->done = done;
	b->arg = arg;
	buf_add(&b->line, line->p, line->len);
	b->bev = bufferevent_socket_new(
		sim->base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
	if (b->bev == NULL)
		abort();
	bufferevent_setcb(b->bev, on_data, NULL, on_event, b);
	(void)bufferevent_set_timeouts(b->bev, &tv, NULL);
	(void)bufferevent_enable(b->bev, EV_READ | EV_WRITE);
	(void)evbuffer_add_printf(bufferevent_get_output(b->bev),
		"GET %s HTTP/1.1\r\nHost: pdsim\r\nConnection: close\r\n\r\n", path);
	if (bufferevent_socket_connect(b->bev, ai->ai_addr, (int)ai->ai_addrlen) == -1)
		boot_forget(&b);
	freeaddrinfo(ai);
	return b;
}

/* ---- the server ---- */

void
boot_listen(struct sim *sim)
{
	int port = sim->o.bootstrap_port < 0 ? 0 : sim->o.bootstrap_port;

	if (sim->o.role == ROLE_PREFILL)
		sim_serve(sim, sim_listen(sim->o.host, port, &sim->bootstrap_port));
}

void
boot_engine_id(struct sim *sim, unsigned rank, struct buf *out)
{
	buf_str(out, sim->engine_id);
	if (sim->o.dp_size > 1)
		buf_fmt(out, "_dp%u", rank);
}

static bool
is_boot(struct conn *c, const struct shake *shake)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof(ss);
	char port[16];

	return c->sim->shake == shake && getsockname(c->fd, (struct sockaddr *)&ss, &len) == 0 &&
	       getnameinfo((struct sockaddr *)&ss, len, NULL, 0, port, sizeof(port),
		       NI_NUMERICSERV) == 0 &&
	       atoi(port) == c->sim->bootstrap_port;
}

static void
reply(struct conn *c, struct buf *b)
{
	conn_reply(c, 200, "application/json", NULL, b->p, b->len);
	buf_free(b);
}

/* Of rank -1, what the engine is; of another, where it is.  Newer and older names. */
void
boot_route(struct conn *c)
{
	const struct opts *o = &c->sim->o;
	const char *rank = strstr(buf_cstr(&c->url), "prefill_dp_rank=");
	struct buf b = {0};
	long n;

	if (!is_boot(c, &shake_sglang)) {
		admin_absent(c);
		return;
	}
	if (rank == NULL)
		rank = strstr(buf_cstr(&c->url), "engine_rank=");
	n = rank == NULL ? -2 : strtol(strchr(rank, '=') + 1, NULL, 10);
	if (n < -1) {
		conn_reply(c, 400, "text/plain", NULL, "Missing inputs", 14);
	} else if (n >= o->dp_size) {
		conn_reply(c, 404, "text/plain", NULL, "Bootstrap info not found", 24);
	} else if (n == -1) {
		buf_fmt(&b,
			"{\"attn_tp_size\":1,\"attn_cp_size\":1,\"dp_size\":%d,\"pp_size\":1,"
			"\"page_size\":%d,\"kv_cache_dtype\":\"auto\",\"follow_bootstrap_room\":%s,"
			"\"prefill_http_port\":%d}",
			o->dp_size, o->block_size, o->follow_room ? "true" : "false", c->sim->port);
		reply(c, &b);
	} else {
		BUF_LIT(&b, "{\"rank_ip\":");
		buf_json(&b, o->advertise, strlen(o->advertise));
		buf_fmt(&b, ",\"rank_port\":%d}", c->sim->side_port);
		reply(c, &b);
	}
}

/* Where each rank's engine is: of tp rank 0, pp rank 0. */
void
boot_query(struct conn *c)
{
	const struct opts *o = &c->sim->o;
	bool v6 = strchr(o->advertise, ':') != NULL;
	struct buf b = {0}, addr = {0};
	int r;

	if (!is_boot(c, &shake_mooncake)) {
		admin_absent(c);
		return;
	}
	buf_fmt(&addr, "tcp://%s%s%s:%d", v6 ? "[" : "", o->advertise, v6 ? "]" : "",
		c->sim->side_port);
	for (r = 0; r < o->dp_size; r++) {
		buf_fmt(&b, "%s\"%d\":{\"engine_id\":\"", r ? "," : "{", r);
		boot_engine_id(c->sim, (unsigned)r, &b);
		BUF_LIT(&b, "\",\"worker_addr\":{\"0\":{\"0\":");
		buf_json(&b, addr.p, addr.len);
		BUF_LIT(&b, "}}}");
	}
	BUF_LIT(&b, "}");
	buf_free(&addr);
	reply(c, &b);
}
