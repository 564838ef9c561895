/* Engines that run in the loop of the fleet that probes them: each answers what its script says, or
 * does what engines do when they fail. */
#pragma once
#include "tests/unit/master/fleet.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/metrics.h"
#include "tests/unit/running_time.h"

#define OK "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"
#define UNHEALTHY "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
#define ABSENT "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
#define SILENT "(accepts, reads and says nothing)"
#define RESET "(resets the connection)"
#define CLOSES "(closes without a byte)"
#define ENDLESS "HTTP/1.1 200 OK\r\n\r\n(and on and on)"
#define PAGE                                                                                       \
	"HTTP/1.1 200 OK\r\nContent-Length: 106\r\n\r\n"                                           \
	"vllm:num_requests_running{e=\"0\"} 3.0\nvllm:num_requests_waiting{e=\"0\"} 2.0\n"         \
	"vllm:kv_cache_usage_perc 0.5000\n"
#define MODELS(list) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{\"data\":[" list "]}"

struct fake {
	struct evconnlistener *listener;
	char url[96];
	unsigned port;
	const char *health, *metrics, *models;
	const char *info, *old_info, *version; /* /server_info, /get_server_info */
	unsigned nhealth, nmetrics, nmodels, ninfo, nold_info, nversion, conns;
	char key[64];          /* of the last request, the text after "Authorization: " */
	const char *wants_key; /* for all but /health */
	uint32_t short_ones;   /* requests of ours that begin and end while the page is rendered */
	bool closes_reused;    /* at the second request on a connection, without a byte */
	bool closes_after;     /* each answer, without having said so */
};

static struct fake fakes[4];
static size_t nfakes;
static struct bufferevent *open_conns[2048]; /* by descriptor */
static unsigned asked_on[2048];              /* requests on it */

static void
hang_up(struct bufferevent *bev)
{
	open_conns[bufferevent_getfd(bev)] = NULL;
	bufferevent_free(bev);
}

static void
on_gone(struct bufferevent *bev, short what, void *arg)
{
	(void)what;
	(void)arg;
	hang_up(bev);
}

static void
on_written(struct bufferevent *bev, void *arg)
{
	static char junk[64 << 10];

	(void)arg;
	memset(junk, 'x', sizeof(junk));
	bufferevent_write(bev, junk, sizeof(junk));
}

static void
on_flushed(struct bufferevent *bev, void *arg)
{
	(void)arg;
	hang_up(bev);
}

static void
behave(struct fake *f, struct bufferevent *bev, const char *script)
{
	struct linger now = {.l_onoff = 1, .l_linger = 0};
	bool close = strstr(script, "Connection: close") != NULL || f->closes_after;

	if (strcmp(script, SILENT) == 0)
		return;
	if (strcmp(script, RESET) == 0)
		(void)setsockopt(bufferevent_getfd(bev), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	if (strcmp(script, RESET) == 0 || strcmp(script, CLOSES) == 0) {
		hang_up(bev);
		return;
	}
	bufferevent_write(bev, script, strlen(script));
	if (strcmp(script, ENDLESS) == 0)
		bufferevent_setcb(bev, NULL, on_written, on_gone, f);
	else if (close)
		bufferevent_setcb(bev, NULL, on_flushed, on_gone, f);
}

static const struct {
	const char *path;
	size_t script, count;
} paths[] = {
#define PATH(p, s)                                                                                 \
	{                                                                                          \
		p, offsetof(struct fake, s), offsetof(struct fake, n##s)                           \
	}
	PATH("/health", health),
	PATH("/metrics", metrics),
	PATH("/v1/models", models),
	PATH("/server_info", info),
	PATH("/get_server_info", old_info),
	PATH("/version", version),
#undef PATH
};

static void
note_key(struct fake *f, const char *head)
{
	const char *at = strstr(head, "\r\nAuthorization: ");

	(void)snprintf(f->key, sizeof(f->key), "%.*s", at != NULL ? (int)strcspn(at + 17, "\r") : 0,
		at != NULL ? at + 17 : "");
}

/* Quotes the key, as no engine should. */
static void
refuse(struct fake *f, struct bufferevent *bev)
{
	char text[256];

	(void)snprintf(text, sizeof(text),
		"HTTP/1.1 401 x\r\nConnection: close\r\n\r\n{\"error\":\"key %s?\"}",
		f->key[0] != '\0' ? f->key : "(none)");
	behave(f, bev, text);
}

/* It is one of the figures of this page, and gone before the page is there. */
static void
be_short(struct fake *f)
{
	uint32_t slot = endpoint_of(f->url)->engine.slot;

	f->short_ones--;
	cr_assert(load_reserve(seg, 0, slot, 0));
	load_sent(seg, 0, slot, 1);
	load_sent(seg, 0, slot, -1);
	load_release(seg, 0, slot);
}

static void
on_request(struct bufferevent *bev, void *arg)
{
	struct fake *f = arg;
	struct evbuffer *in = bufferevent_get_input(bev);
	char line[256] = "";

	if (evbuffer_search(in, "\r\n\r\n", 4, NULL).pos == -1)
		return;
	(void)evbuffer_copyout(in, line, sizeof(line) - 1);
	(void)evbuffer_drain(in, evbuffer_get_length(in));
	if (++asked_on[bufferevent_getfd(bev)] > 1 && f->closes_reused) {
		hang_up(bev);
		return;
	}
	note_key(f, line);
	if (strncmp(line, "GET /metrics HTTP/1.1\r\n", 23) == 0 && f->short_ones > 0)
		be_short(f);
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		size_t n = strlen(paths[i].path);

		if (strncmp(line, "GET ", 4) == 0 && strncmp(line + 4, paths[i].path, n) == 0 &&
			strncmp(line + 4 + n, " HTTP/1.1\r\n", 11) == 0) {
			++*(unsigned *)((char *)f + paths[i].count);
			if (f->wants_key != NULL && i > 0 && strcmp(f->key, f->wants_key) != 0) {
				refuse(f, bev);
				return;
			}
			behave(f, bev, *(const char **)((char *)f + paths[i].script));
			return;
		}
	}
	cr_assert_fail("asked for %s", line);
}

static void
on_connection(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *sa, int len, void *arg)
{
	struct bufferevent *bev = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE);

	(void)l;
	(void)sa;
	(void)len;
	cr_assert_lt(fd, 2048);
	open_conns[fd] = bev;
	asked_on[fd] = 0;
	((struct fake *)arg)->conns++;
	bufferevent_setcb(bev, on_request, NULL, on_gone, arg);
	bufferevent_enable(bev, EV_READ | EV_WRITE);
}

static struct fake *
fake_new(const char *host)
{
	struct fake *f = &fakes[nfakes++];
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sin);

	*f = (struct fake){.health = OK,
		.metrics = PAGE,
		.models = MODELS("{\"id\":\"m\"}"),
		.info = ABSENT,
		.old_info = ABSENT,
		.version = ABSENT};
	f->listener = evconnlistener_new_bind(base, on_connection, f, LEV_OPT_CLOSE_ON_FREE, -1,
		(struct sockaddr *)&sin, sizeof(sin));
	cr_assert_not_null(f->listener);
	cr_assert_eq(
		getsockname(evconnlistener_get_fd(f->listener), (struct sockaddr *)&sin, &len), 0);
	f->port = ntohs(sin.sin_port);
	(void)snprintf(f->url, sizeof(f->url), "http://%s:%u", host, f->port);
	return f;
}

static void
engines_setup(void)
{
	(void)signal(
		SIGPIPE, SIG_IGN); /* as in the master: a fake may write to a probe that has gone */
	fleet_setup(512, 2);
}

static void
engines_teardown(void)
{
	for (size_t i = 0; i < nfakes; i++)
		if (fakes[i].listener != NULL)
			evconnlistener_free(fakes[i].listener);
	for (size_t i = 0; i < 2048; i++)
		if (open_conns[i] != NULL)
			hang_up(open_conns[i]);
	fleet_teardown();
}

static void
tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

static bool
wait_for(bool (*is)(void *), void *arg, uint64_t ms)
{
	struct timeval tv = {.tv_usec = 5000};
	struct event *ticker = event_new(base, -1, EV_PERSIST, tick, NULL);
	uint64_t end = clock_ms() + ms;

	event_add(ticker, &tv);
	while (!is(arg) && clock_ms() < end)
		event_base_loop(base, EVLOOP_ONCE);
	event_free(ticker);
	return is(arg);
}

static bool
never(void *arg)
{
	(void)arg;
	return false;
}

static void
run_for(uint64_t ms)
{
	(void)wait_for(never, NULL, ms);
}

static enum ep_state
state_of(const struct fake *f)
{
	return ep_state_get(seg, endpoint_of(f->url)->engine.slot);
}

static bool
is_up(void *f)
{
	return state_of(f) == EP_UP;
}

static bool
is_down(void *f)
{
	return state_of(f) == EP_DOWN;
}

static bool
is_scraped(void *f)
{
	return ep_scrape_get(seg, endpoint_of(((struct fake *)f)->url)->engine.slot).at_ms != 0;
}

/* One pool; model NULL: learned. */
static struct conf *
apply_fakes(const char *model)
{
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", model);

	for (size_t i = 0; i < nfakes; i++)
		conf_endpoint(p, ROLE_DECODE, fakes[i].url);
	apply(c);
	return c;
}
