#include "master/supervise/control.h"

#include <assert.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "master/fleet/requests.h"
#include "master/supervise/inherit.h"
#include "master/supervise/unix_socket.h"
#include "shm/base/clock.h"
#include "shm/base/decimal.h"
#include "shm/base/lockfile.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"

#define MAX_CLIENTS 16
#define LINE_BYTES 1024
#define PROMPT_BYTES (4u << 20)
#define SILENCE_S 5
#define BACKLOG 16
#define AGAIN_MS 1000 /* delay of accept() after the process had no free descriptor */

#define WAITS_FOR_UPGRADE UINT64_MAX
#define WAITS_FOR_REQUESTS (UINT64_MAX - 1)
#define PARTS_BYTES (64u << 10) /* of a long answer: no further part while so much is not written */
/* Tickets of drains count up from this and the time of the start: above all attempts of reloads, and another instance has
 * others. */
#define FIRST_TICKET (UINT64_MAX / 2)

struct client {
	TAILQ_ENTRY(client) link;
	struct control *ctl;
	struct bufferevent *bev;
	char *line;                /* whose prompt is not all here; NULL: none */
	size_t prompt;             /* so many bytes of it */
	uint64_t waits_for;        /* a reload's attempt, a ticket or WAITS_FOR_*; 0: nothing */
	struct requests *requests; /* of WAITS_FOR_REQUESTS, else NULL */
	struct event
		*ev_part; /* pending: the next part of its answer is due; NULL until it is needed */
	uint64_t since_ms; /* that it came, or that `line` did */
	bool served;       /* fact: a command of it was run */
	bool ended;        /* the client has closed its side: no command follows */
	bool closing;      /* the connection is closed when the output is written */
};
TAILQ_HEAD(client_list, client);

struct control {
	struct event_base *base;
	struct control_hooks hooks;
	struct client_list clients;
	unsigned nclients;
	uint64_t ticket; /* the last one */
	struct event *ev_accept;
	struct event *ev_again; /* pending: no descriptor was left, ev_accept is not watched */
	bool paused;            /* control_pause() */
	bool shared;            /* another instance needs the socket: its file is not removed */
	bool starved;           /* ev_again was logged, and no client was accepted since */
	int fd;                 /* -1: after control_leave() */
	int lock;               /* the lock file of the path: lockfile_take() */
	char path[UNIX_SOCKET_PATH];
	uint32_t mode; /* permissions of the socket */
	char *group;   /* of the socket; NULL: the process's */
};

/* `words`: the arguments after the command; "" if the command takes none. */
typedef void command_fn(struct client *, const char *words, struct evbuffer *out);
static command_fn cmd_reload, cmd_upgrade, cmd_dry_run, cmd_config_diff, cmd_status,
	cmd_status_json, cmd_workers, cmd_prefix, cmd_check, cmd_ping, cmd_drain, cmd_undrain,
	cmd_in_flight, cmd_weight, cmd_log_level, cmd_explain, cmd_requests, cmd_request;

static const struct {
	const char *line;
	command_fn *run;
	bool words;
} commands[] = {
	{"reload", cmd_reload, false},
	{"reload dry-run", cmd_dry_run, false},
	{"config diff", cmd_config_diff, false},
	{"upgrade", cmd_upgrade, false},
	{"status", cmd_status, false},
	{"status json", cmd_status_json, false},
	{"workers", cmd_workers, false},
	{"prefix", cmd_prefix, false},
	{"check", cmd_check, false},
	{"drain", cmd_drain, true},
	{"undrain", cmd_undrain, true},
	{"in-flight", cmd_in_flight, true},
	{"weight", cmd_weight, true},
	{"log-level", cmd_log_level, true},
	{"explain", cmd_explain, true},
	{"requests", cmd_requests, true},
	{"request", cmd_request, true},
	{"ping", cmd_ping, false},
};

static void
cmd_reload(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)words;
	cl->waits_for = cl->ctl->hooks.reload(cl->ctl->hooks.arg);
	if (cl->waits_for == 0)
		(void)evbuffer_add_printf(out, "ERR pdrouter is stopping\n");
}

static void
cmd_upgrade(struct client *cl, const char *words, struct evbuffer *out)
{
	const char *why;

	(void)words;
	cl->waits_for = WAITS_FOR_UPGRADE; /* the outcome may come before this returns */
	why = cl->ctl->hooks.upgrade(cl->ctl->hooks.arg);
	if (why == NULL)
		return;
	cl->waits_for = 0;
	(void)evbuffer_add_printf(out, "ERR %s\n", why);
}

static void
preview(struct client *cl, bool dry_run, struct evbuffer *out)
{
	char error[600];

	if (cl->ctl->hooks.preview(cl->ctl->hooks.arg, dry_run, out, error, sizeof(error)) == 0)
		(void)evbuffer_add_printf(out, "OK\n");
	else
		(void)evbuffer_add_printf(out, "ERR %s\n", error);
}

static void
cmd_dry_run(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)words;
	preview(cl, true, out);
}

static void
cmd_config_diff(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)words;
	preview(cl, false, out);
}

static void
cmd_status(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)words;
	cl->ctl->hooks.status(cl->ctl->hooks.arg, out, false);
	(void)evbuffer_add_printf(out, "OK\n");
}

static void
cmd_status_json(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)words;
	cl->ctl->hooks.status(cl->ctl->hooks.arg, out, true);
	(void)evbuffer_add_printf(out, "\nOK\n");
}

static void
cmd_workers(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)words;
	cl->ctl->hooks.workers(cl->ctl->hooks.arg, out);
	(void)evbuffer_add_printf(out, "OK\n");
}

static void
cmd_prefix(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)words;
	cl->ctl->hooks.prefix(cl->ctl->hooks.arg, out);
	(void)evbuffer_add_printf(out, "OK\n");
}

static void
cmd_check(struct client *cl, const char *words, struct evbuffer *out)
{
	unsigned broken = cl->ctl->hooks.check(cl->ctl->hooks.arg, out);

	(void)words;
	if (broken > 0)
		(void)evbuffer_add_printf(out, "ERR broken invariants: %u\n", broken);
	else
		(void)evbuffer_add_printf(out, "ok\nOK\n");
}

static void
run_drain(struct client *cl, enum drain_what what, const char *words)
{
	struct control *c = cl->ctl;

	cl->waits_for = ++c->ticket; /* the answer may come before this returns */
	c->hooks.drain(c->hooks.arg, what, c->ticket, words);
}

static void
cmd_drain(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)out;
	run_drain(cl, DRAIN_BEGIN, words);
}

static void
cmd_undrain(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)out;
	run_drain(cl, DRAIN_END, words);
}

static void
cmd_in_flight(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)out;
	run_drain(cl, DRAIN_LOOK, words);
}

static void
cmd_weight(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)out;
	run_drain(cl, DRAIN_WEIGHT, words);
}

/* The answer of a hook: its lines, or its reason. */
static void
finish(struct evbuffer *out, struct evbuffer *text, int r)
{
	if (r != 0)
		(void)evbuffer_add_printf(out, "ERR ");
	(void)evbuffer_add_buffer(out, text);
	(void)evbuffer_add_printf(out, r == 0 ? "OK\n" : "\n");
	evbuffer_free(text);
}

static void
cmd_log_level(struct client *cl, const char *words, struct evbuffer *out)
{
	struct evbuffer *text = evbuffer_new();

	finish(out, text, cl->ctl->hooks.log_level(cl->ctl->hooks.arg, words, text));
}

static void
cmd_explain(struct client *cl, const char *words, struct evbuffer *out)
{
	struct evbuffer *text = evbuffer_new();
	const size_t n = cl->prompt;
	const char *prompt = NULL;

	if (n > 0) {
		prompt = (const char *)evbuffer_pullup(
			bufferevent_get_input(cl->bev), (ev_ssize_t)n);
		words += strcspn(words, " ");
		words += *words == ' ';
	}
	if (n == 0 && strncmp(words, "bytes=", 6) == 0) {
		(void)evbuffer_add_printf(text, "a prompt has 1 byte to 4 MiB");
		cl->closing = true; /* what follows is no line */
		finish(out, text, -1);
	} else {
		finish(out, text,
			cl->ctl->hooks.explain(cl->ctl->hooks.arg, words, prompt, n, text));
	}
}

/* --- an answer in parts --- */

static void
part_due(struct client *cl)
{
	static const struct timeval now = {0};

	(void)event_add(cl->ev_part, &now);
}

static void
on_part(evutil_socket_t fd, short what, void *arg)
{
	struct client *cl = arg;
	struct evbuffer *out = bufferevent_get_output(cl->bev), *text = evbuffer_new();
	const int r = requests_step(cl->requests, text);

	(void)fd;
	(void)what;
	if (r <= 0) {
		cl->waits_for = 0;
		requests_free(&cl->requests);
		finish(out, text, r);
		return;
	}
	(void)evbuffer_add_buffer(out, text);
	evbuffer_free(text);
	if (evbuffer_get_length(out) < PARTS_BYTES)
		part_due(cl);
}

static void
begin_requests(struct client *cl, bool find, const char *words, struct evbuffer *out)
{
	struct evbuffer *text = evbuffer_new();

	cl->requests = cl->ctl->hooks.requests(cl->ctl->hooks.arg, find, words, text);
	if (cl->requests == NULL) {
		finish(out, text, -1);
		return;
	}
	evbuffer_free(text);
	if (cl->ev_part == NULL)
		cl->ev_part = evtimer_new(cl->ctl->base, on_part, cl);
	assert(cl->ev_part != NULL);
	cl->waits_for = WAITS_FOR_REQUESTS;
	part_due(cl);
}

static void
cmd_requests(struct client *cl, const char *words, struct evbuffer *out)
{
	begin_requests(cl, false, words, out);
}

static void
cmd_request(struct client *cl, const char *words, struct evbuffer *out)
{
	begin_requests(cl, true, words, out);
}

static void
cmd_ping(struct client *cl, const char *words, struct evbuffer *out)
{
	(void)cl;
	(void)words;
	(void)evbuffer_add_printf(out, "OK\n");
}

/* --- accepting ---------------------------------------------------------------------------------- */

/*
 * Without a free descriptor the listening socket stays readable, and the loop would spin.  The loop watches
 * the socket again after AGAIN_MS, or when a client of this socket has ended.
 */
static void
stop_accepting(struct control *c, int err)
{
	const struct timeval again = clock_tv(AGAIN_MS);

	(void)event_del(c->ev_accept);
	(void)event_add(c->ev_again, &again);
	if (!c->starved)
		log_warn("control socket: no free descriptor for a client, which waits",
			LOG_S("path", c->path), LOG_S("error", strerror(err)));
	c->starved = true;
}

static void
accept_again(struct control *c)
{
	(void)event_del(c->ev_again);
	if (!c->paused)
		(void)event_add(c->ev_accept, NULL);
}

static void
on_again(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	accept_again(arg);
}

/* --- a client ----------------------------------------------------------------------------------- */

static void
client_end(struct client *cl)
{
	struct control *c = cl->ctl;

	TAILQ_REMOVE(&c->clients, cl, link);
	c->nclients--;
	if (cl->waits_for > FIRST_TICKET && cl->waits_for < WAITS_FOR_REQUESTS)
		c->hooks.forget_drain(c->hooks.arg, cl->waits_for);
	requests_free(&cl->requests);
	if (cl->ev_part != NULL)
		event_free(cl->ev_part);
	bufferevent_free(cl->bev); /* libevent lets a callback free its own bufferevent */
	free(cl->line);
	free(cl);
	accept_again(c);
}

static void
run_line(struct client *cl, const char *line)
{
	struct evbuffer *out = bufferevent_get_output(cl->bev);

	if (!mem_has_room(MEM_ROOM)) {
		(void)evbuffer_add_printf(out, "ERR out of memory\n");
		return;
	}
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
		const size_t n = strlen(commands[i].line);

		if (strncmp(line, commands[i].line, n) != 0 ||
			(line[n] != '\0' && !(commands[i].words && line[n] == ' ')))
			continue;
		commands[i].run(cl, line[n] == ' ' ? line + n + 1 : "", out);
		return;
	}
	(void)evbuffer_add_printf(out, "ERR unknown command; known: ");
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		(void)evbuffer_add_printf(out, "%s%s", i > 0 ? ", " : "", commands[i].line);
	(void)evbuffer_add_printf(out, "\n");
}

/* The bytes of a prompt that follow the line; 0: none, or too many. */
static size_t
prompt_behind(const char *line)
{
	static const char head[] = "explain bytes=";
	const char *at = line + sizeof(head) - 1;
	uint64_t n;

	if (strncmp(line, head, sizeof(head) - 1) != 0 ||
		!decimal_read(&at, at + strcspn(at, " "), PROMPT_BYTES, &n))
		return 0;
	return (size_t)n;
}

/* Whether a line is here, with the prompt that follows it. */
static bool
read_line(struct client *cl)
{
	struct evbuffer *in = bufferevent_get_input(cl->bev);

	if (cl->line == NULL) {
		cl->line = evbuffer_readln(in, NULL, EVBUFFER_EOL_CRLF);
		cl->prompt = cl->line != NULL ? prompt_behind(cl->line) : 0;
		if (cl->prompt > 0) {
			cl->since_ms = clock_ms();
			bufferevent_setwatermark(cl->bev, EV_READ, 0, cl->prompt + LINE_BYTES);
			(void)evbuffer_add_printf(bufferevent_get_output(cl->bev), "MORE\n");
		}
	}
	return cl->line != NULL && evbuffer_get_length(in) >= cl->prompt;
}

/* The line and its prompt have been read. */
static void
end_line(struct client *cl)
{
	free(cl->line);
	cl->line = NULL;
	if (cl->prompt > 0) {
		(void)evbuffer_drain(bufferevent_get_input(cl->bev), cl->prompt);
		bufferevent_setwatermark(cl->bev, EV_READ, 0, LINE_BYTES);
	}
	cl->prompt = 0;
}

/*
 * Runs one command at a time, and the next one only when the previous answer is written.  A client that does
 * not read its answers is not read either, so at most one answer is buffered for a client.
 */
static void
run_lines(struct client *cl)
{
	struct evbuffer *in = bufferevent_get_input(cl->bev),
			*out = bufferevent_get_output(cl->bev);

	while (cl->waits_for == 0 && evbuffer_get_length(out) == 0 && read_line(cl)) {
		cl->served = true;
		run_line(cl, cl->line);
		end_line(cl);
	}
	if (cl->waits_for != 0 || evbuffer_get_length(out) > 0) {
		/* control_reloaded() or on_written() continues */
		(void)bufferevent_disable(cl->bev, EV_READ);
	} else if (cl->line == NULL && evbuffer_get_length(in) >= LINE_BYTES) {
		(void)evbuffer_add_printf(out, "ERR line too long\n");
		cl->closing = true;
		(void)bufferevent_disable(cl->bev, EV_READ);
	} else if (cl->ended) {
		client_end(cl);
	} else {
		(void)bufferevent_enable(cl->bev, EV_READ);
	}
}

static void
on_read(struct bufferevent *bev, void *arg)
{
	(void)bev;
	run_lines(arg);
}

static void
on_written(struct bufferevent *bev, void *arg)
{
	struct client *cl = arg;

	(void)bev;
	if (cl->closing)
		client_end(cl);
	else if (cl->waits_for == WAITS_FOR_REQUESTS)
		part_due(cl);
	else
		run_lines(cl);
}

/* After the end of input the client still gets its answer, as in `echo status | nc -U`. */
static void
on_end(struct bufferevent *bev, short what, void *arg)
{
	struct client *cl = arg;

	(void)bev;
	cl->ended = true;
	if (!(what & BEV_EVENT_EOF) || (what & BEV_EVENT_ERROR))
		client_end(cl);
	else
		run_lines(cl);
}

void
control_reloaded(
	struct control *c, uint64_t attempt, bool exact, const char *error, const char *notes)
{
	struct client *cl, *next;

	for (cl = c != NULL ? TAILQ_FIRST(&c->clients) : NULL; cl != NULL; cl = next) {
		struct evbuffer *out = bufferevent_get_output(cl->bev);

		next = TAILQ_NEXT(cl, link);
		if (cl->waits_for == 0 || cl->waits_for >= WAITS_FOR_REQUESTS ||
			(exact ? cl->waits_for != attempt : cl->waits_for > attempt))
			continue;
		cl->waits_for = 0;
		if (error != NULL)
			(void)evbuffer_add_printf(out, "ERR %s\n", error);
		else
			(void)evbuffer_add_printf(out, "%sOK\n", notes);
	}
}

void
control_upgraded(struct control *c, const char *line, bool end, const char *error)
{
	struct client *cl, *next;

	for (cl = c != NULL ? TAILQ_FIRST(&c->clients) : NULL; cl != NULL; cl = next) {
		struct evbuffer *out = bufferevent_get_output(cl->bev);

		next = TAILQ_NEXT(cl, link);
		if (cl->waits_for != WAITS_FOR_UPGRADE)
			continue;
		if (line != NULL)
			(void)evbuffer_add_printf(out, "%s\n", line);
		if (!end)
			continue;
		cl->waits_for = 0;
		if (error != NULL)
			(void)evbuffer_add_printf(out, "ERR %s\n", error);
		else
			(void)evbuffer_add_printf(out, "OK\n");
	}
}

void
control_drained(struct control *c, uint64_t ticket, struct evbuffer *text, const char *error)
{
	struct client *cl;

	TAILQ_FOREACH(cl, &c->clients, link)
	if (cl->waits_for == ticket) {
		struct evbuffer *out = bufferevent_get_output(cl->bev);

		cl->waits_for = 0;
		(void)evbuffer_add_buffer(out, text);
		(void)evbuffer_add_printf(
			out, "%s%s\n", error != NULL ? "ERR " : "OK", error != NULL ? error : "");
	}
}

/*
 * Ends clients that wait for an answer but have closed their connection.  Such a client is not read, so the
 * end of input is not seen.  A unix socket reports POLLHUP when the other side is closed in both directions.
 */
static void
drop_gone(struct control *c)
{
	struct client *cl, *next;

	for (cl = TAILQ_FIRST(&c->clients); cl != NULL; cl = next) {
		struct pollfd pfd = {.fd = bufferevent_getfd(cl->bev)};

		next = TAILQ_NEXT(cl, link);
		if (cl->waits_for != 0 && poll(&pfd, 1, 0) == 1 && (pfd.revents & POLLHUP))
			client_end(cl);
	}
}

static void
on_accept(evutil_socket_t lfd, short what, void *arg)
{
	static const struct timeval silence = {.tv_sec = SILENCE_S};
	struct control *c = arg;
	struct client *cl;
	int fd = accept4(lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	(void)what;
	if (fd == -1) {
		/* other errors: the client has closed, or there was none */
		if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
			stop_accepting(c, errno);
		return;
	}
	c->starved = false;
	if (c->nclients == MAX_CLIENTS)
		drop_gone(c);
	if (c->nclients == MAX_CLIENTS) {
		static const char busy[] = "ERR too many clients\n";

		(void)send(fd, busy, sizeof(busy) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		(void)close(fd);
		return;
	}
	cl = MEM_NEW(struct client);
	cl->ctl = c;
	cl->since_ms = clock_ms();
	cl->bev = bufferevent_socket_new(c->base, fd, BEV_OPT_CLOSE_ON_FREE);
	assert(cl->bev != NULL);
	bufferevent_setcb(cl->bev, on_read, on_written, on_end, cl);
	bufferevent_setwatermark(cl->bev, EV_READ, 0, LINE_BYTES);
	(void)bufferevent_set_timeouts(cl->bev, &silence, &silence);
	(void)bufferevent_enable(cl->bev, EV_READ | EV_WRITE);
	TAILQ_INSERT_TAIL(&c->clients, cl, link);
	c->nclients++;
}

/* --- the socket --------------------------------------------------------------------------------- */

/* Logs why there is no socket.  Returns -1 if pdrouter must not start. */
static int
no_socket(const char *path, int err)
{
	if (err == EWOULDBLOCK) {
		log_error("another pdrouter has this control socket: stop it, or set another "
			  "control_socket",
			LOG_S("path", path));
		return -1;
	}
	log_warn("no control socket: pdctl will not work", LOG_S("path", path),
		LOG_S("error", strerror(err)));
	return 0;
}

/* The path that the inherited socket has; false: there is none. */
static bool
inherited_path(const struct inherit *in, struct sockaddr_un *ret)
{
	socklen_t len = sizeof(*ret);

	*ret = (struct sockaddr_un){0};
	return in->control != -1 && getsockname(in->control, (struct sockaddr *)ret, &len) == 0 &&
	       ret->sun_family == AF_UNIX && ret->sun_path[sizeof(ret->sun_path) - 1] == '\0';
}

/* 0, or -errno. */
static int
open_both(const char *path, const struct inherit *in, int *ret_fd, int *ret_lock)
{
	struct sockaddr_un sun;

	if (inherited_path(in, &sun) && strcmp(sun.sun_path, path) == 0) {
		*ret_fd = in->control;
		*ret_lock = in->control_lock;
		return 0;
	}
	unix_socket_directory(path);
	*ret_lock = lockfile_take(path);
	if (*ret_lock < 0)
		return *ret_lock;
	*ret_fd = unix_socket_listen(path, BACKLOG);
	if (*ret_fd < 0)
		(void)close(*ret_lock);
	return *ret_fd < 0 ? *ret_fd : 0;
}

int
control_new(struct event_base *base, const char *path, const struct control_hooks *hooks,
	const struct inherit *in, struct control **ret)
{
	struct control *c;
	int lock, fd, r;

	*ret = NULL;
	r = open_both(path, in, &fd, &lock);
	if (r != 0)
		return no_socket(path, -r);
	c = MEM_NEW(struct control);
	c->base = base;
	c->ticket = FIRST_TICKET + clock_us();
	c->hooks = *hooks;
	c->fd = fd;
	c->lock = lock;
	c->shared = fd == in->control;
	memcpy(c->path, path, strlen(path));
	TAILQ_INIT(&c->clients);
	c->ev_accept = event_new(base, fd, EV_READ | EV_PERSIST, on_accept, c);
	c->ev_again = evtimer_new(base, on_again, c);
	assert(c->ev_accept != NULL && c->ev_again != NULL);
	(void)event_add(c->ev_accept, NULL);
	*ret = c;
	return 0;
}

static void
put_permissions(const struct control *c)
{
	unix_socket_permit("control socket", c->path, c->mode, c->group);
}

void
control_permit(struct control *c, uint32_t mode, const char *group)
{
	if (c == NULL)
		return;
	free(c->group);
	c->group = group != NULL ? mem_strdup(group) : NULL;
	c->mode = mode;
	if (!c->paused)
		put_permissions(c);
}

static void
close_both(struct control *c)
{
	if (c->fd != -1)
		(void)close(c->fd);
	if (c->lock != -1)
		(void)close(c->lock);
	c->fd = c->lock = -1;
}

void
control_free(struct control **pc)
{
	struct control *c = *pc;

	if (c == NULL)
		return;
	while (!TAILQ_EMPTY(&c->clients))
		client_end(TAILQ_FIRST(&c->clients));
	event_free(c->ev_accept);
	event_free(c->ev_again);
	if (!c->shared)
		(void)unlink(c->path);
	close_both(c);
	free(c->group);
	free(c);
	*pc = NULL;
}

void
control_pass(const struct control *c, struct inherit *in)
{
	if (c == NULL)
		return;
	in->control = c->fd;
	in->control_lock = c->lock;
}

void
control_pause(struct control *c, bool pause)
{
	if (c == NULL)
		return;
	c->paused = pause;
	if (pause) {
		(void)event_del(c->ev_accept);
		return;
	}
	put_permissions(c); /* another instance may have had others */
	accept_again(c);
}

void
control_leave(struct control *c)
{
	if (c == NULL)
		return;
	assert(c->paused);
	c->shared = true;
	close_both(c);
}

void
control_own(struct control *c, const struct inherit *in)
{
	struct sockaddr_un sun;

	if (c != NULL)
		c->shared = false;
	if (!inherited_path(in, &sun) || (c != NULL && c->fd == in->control))
		return;
	(void)unlink(sun.sun_path);
	(void)close(in->control);
	(void)close(in->control_lock);
}

/* Its command may be on its way, or a part of one is here.  Not for ever: it may send a byte now and then. */
static bool
is_asking(const struct client *cl)
{
	return (!cl->served || cl->line != NULL) && clock_ms() < cl->since_ms + SILENCE_S * 1000;
}

bool
control_is_quiet(const struct control *c)
{
	const struct client *cl;

	if (c == NULL)
		return true;
	TAILQ_FOREACH(cl, &c->clients, link)
	if (is_asking(cl) || cl->waits_for != 0 ||
		evbuffer_get_length(bufferevent_get_output(cl->bev)) > 0)
		return false;
	return true;
}
