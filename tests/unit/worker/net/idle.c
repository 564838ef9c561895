/* Idle connections to an engine: which one the next request gets, and whether the loop or a look has found it quiet. */
#include "worker/net/connpool.h"

#include <criterion/criterion.h>
#include <event2/event.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/metrics.h"
#include "tests/unit/worker/one_engine.h"

#define NCONNS 2

static struct conf conf;
static int listener, engine[NCONNS];
static struct upconn *uc[NCONNS], *taken;
static unsigned readable, broken;

static void
on_readable(void *user)
{
	char buf[16];
	int err;

	(void)user;
	readable++;
	(void)sock_read(&uc[0]->sock, buf, sizeof(buf));
	if (taken == NULL)
		taken = connpool_get(w.connpool, &ep, false, &err);
}

static void
on_drained(void *user)
{
	(void)user;
}

static void
on_broken(void *user)
{
	(void)user;
	broken++;
}

static const struct upconn_ops ops = {on_readable, on_drained, on_broken};

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

static void
turn(void)
{
	worker_turn(&w);
	(void)event_base_loop(w.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
}

static uint64_t
opened(void)
{
	return w.slab->counters[M_UP_CONNS];
}

/* Waits until the kernel has what the engine has sent. */
static void
engine_sends(unsigned i)
{
	struct pollfd p = {.fd = uc[i]->sock.fd, .events = POLLIN};

	cr_assert_eq(send(engine[i], "x", 1, 0), 1);
	cr_assert_eq(poll(&p, 1, 10000), 1);
}

static void
setup(void)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(sin);
	int err;

	one_engine();
	w.slab = seg_slab(w.seg, 0);
	w.base = event_base_new();
	conf.live.upstream_max_idle = 4;
	conf.live.upstream_idle_ms = 60000;
	w.conf = &conf;
	event_assign(&w.ev_tick, w.base, -1, 0, on_tick, NULL);
	w.connpool = connpool_new(&w);
	ep.refs = 1;
	ep.current = true;
	ep.host = (char *)(uintptr_t) "engine";
	TAILQ_INIT(&ep.idle);
	TAILQ_INIT(&ep.legs);
	listener = socket(AF_INET, SOCK_STREAM, 0);
	cr_assert_eq(bind(listener, (struct sockaddr *)&sin, len), 0);
	cr_assert_eq(listen(listener, 4), 0);
	cr_assert_eq(getsockname(listener, (struct sockaddr *)&sin, &len), 0);
	ep.addr = (struct ep_addr){
		.family = AF_INET, .port = ntohs(sin.sin_port), .ip = {127, 0, 0, 1}};
	for (unsigned i = 0; i < NCONNS; i++) {
		uc[i] = connpool_get(w.connpool, &ep, true, &err);
		cr_assert_not_null(uc[i]);
		uc[i]->ops = &ops;
		engine[i] = accept(listener, NULL, NULL);
		cr_assert_geq(engine[i], 0);
		while (uc[i]->sock.connecting)
			turn();
	}
}

TestSuite(idle, .init = setup, .timeout = 60);

/* uc[i] again in *ret: connpool_put() takes the pointer. */
static void
put(unsigned i)
{
	struct upconn *mine = uc[i];

	connpool_put(w.connpool, &mine);
}

static struct upconn *
get(void)
{
	int err;
	struct upconn *got = connpool_get(w.connpool, &ep, false, &err);

	cr_assert_not_null(got);
	return got;
}

/* The loop is in a turn, and handles a socket. */
static void
handle(void)
{
	turn();
	worker_turn_handles(&w);
}

Test(idle, the_last_one_used_is_the_first_one_taken)
{
	put(0);
	put(1);
	handle();
	cr_expect_eq(get(), uc[1]);
	cr_expect_eq(get(), uc[0]);
}

Test(idle, one_that_the_turn_has_polled_is_taken_before_one_of_this_turn)
{
	put(0);
	handle();
	put(1);
	cr_expect_eq(get(), uc[0]);
	cr_expect_eq(get(), uc[1], "a connection of this turn is better than a new one");
	cr_expect_eq(opened(), NCONNS);
}

Test(idle, bytes_that_came_in_the_turn_in_which_it_became_idle_are_found)
{
	handle();
	put(0);
	engine_sends(0);
	cr_expect_neq(get(), uc[0]);
	cr_expect_eq(opened(), NCONNS + 1);
}

/* Both are readable in one turn.  The first is in use; its user wants another connection before the loop comes to the
 * second, which is idle. */
Test(idle, bytes_that_the_turn_has_found_and_not_yet_handled)
{
	put(1);
	turn();
	engine_sends(0);
	engine_sends(1);
	turn();
	cr_assert_eq(readable, 1);
	cr_expect_neq(taken, uc[1]);
	cr_expect_eq(opened(), NCONNS + 1);
	cr_expect_eq(ep.nidle, 0);
}

Test(idle, a_turn_that_lasts_too_long_is_not_believed)
{
	put(0);
	handle();
	engine_sends(0);
	w.believed_until_us = clock_us();
	cr_expect_neq(get(), uc[0]);
	cr_expect_eq(opened(), NCONNS + 1);
}

Test(idle, no_socket_was_handled_in_this_turn)
{
	put(0);
	turn();
	engine_sends(0);
	cr_expect_neq(get(), uc[0], "a timer's callback looks itself");
}

/* libevent's epoll_wait() has room for 32 events at first: what does not find room is ready all the same. */
#define MANY 40

static struct event many[MANY];
static int ends[MANY][2];

static void
on_many(evutil_socket_t fd, short what, void *arg)
{
	char c;
	int err;

	(void)what;
	(void)arg;
	cr_assert_eq(read(fd, &c, 1), 1);
	worker_turn_handles(&w);
	if (taken == NULL)
		taken = connpool_get(w.connpool, &ep, false, &err);
}

Test(idle, more_sockets_are_ready_than_epoll_wait_returns)
{
	for (unsigned i = 0; i < MANY; i++) {
		cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[i]), 0);
		event_assign(&many[i], w.base, ends[i][0], EV_READ | EV_PERSIST, on_many, NULL);
		cr_assert_eq(event_add(&many[i], NULL), 0);
	}
	put(0);
	turn();
	for (unsigned i = 0; i < MANY; i++)
		cr_assert_eq(write(ends[i][1], "x", 1), 1);
	engine_sends(0);
	turn();
	cr_assert_not_null(taken);
	cr_expect_neq(taken, uc[0]);
}

/* What is removed from the list is not what the next request finds. */
Test(idle, connections_that_leave_the_list)
{
	put(0);
	put(1);
	handle();
	connpool_drop_idle(w.connpool, &ep);
	cr_expect_eq(ep.nidle, 0);
	(void)get();
	cr_expect_eq(opened(), NCONNS + 1);
}

/* --- new ones ------------------------------------------------------------------------------------ */

/* The kernel may put the end of a connect off when it is busy, but not each time. */
Test(idle, a_connection_to_this_machine_is_there_at_once)
{
	unsigned at_once = 0;
	int err;

	for (unsigned i = 0; i < 100 && at_once == 0; i++) {
		struct upconn *c = connpool_get(w.connpool, &ep, true, &err);
		const int peer = accept(listener, NULL, NULL);
		char got;

		cr_assert_not_null(c);
		c->ops = &ops;
		if (!c->sock.connecting) {
			at_once++;
			cr_assert(c->sock.reading);
			cr_assert_eq(sock_write(&c->sock, "x", 1), 0);
			cr_assert_eq(read(peer, &got, 1), 1);
		}
		connpool_drop(w.connpool, &c);
		(void)close(peer);
	}
	cr_assert_eq(at_once, 1);
	cr_assert_eq(broken, 0);
}

Test(idle, a_refused_connection_is_none)
{
	struct upconn *c;
	int err;

	(void)close(listener);
	c = connpool_get(w.connpool, &ep, true, &err);
	cr_assert_not_null(c);
	c->ops = &ops;
	cr_assert(c->sock.connecting);
	while (broken == 0)
		turn();
	cr_assert_not(c->sock.connecting);
	connpool_drop(w.connpool, &c);
}
