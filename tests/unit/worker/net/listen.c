/* A connection wakes one worker; it is not lost when that worker does not accept it. */
#include "worker/net/listen.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/accept.h"
#include "shm/base/clock.h"
#include "shm/core/atomic.h"
#include "shm/core/heritage.h"
#include "tests/unit/shm/fixture.h"
#include "worker/base/core.h"

#define N 2 /* workers */

static struct conf conf = {.live.max_connections = 100};
static struct door_fd door = {.door = DOOR_CLIENTS};
static int wake_fds[2 * N + 3];
static struct heritage h[N];
static struct worker w[N];
static struct event ev_wake[N];
static unsigned accepted[N];

static void
on_accept(evutil_socket_t fd, short what, void *arg)
{
	struct worker *me = arg;
	const int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK);

	(void)what;
	if (client != -1) {
		(void)close(client);
		accepted[me - w]++;
	}
	listen_accepted(me, fd);
}

static void
on_wake(evutil_socket_t fd, short what, void *arg)
{
	uint64_t count;

	(void)what;
	cr_assert_eq(read(fd, &count, sizeof(count)), sizeof(count));
	listen_woken(arg);
}

static void
begin(uint32_t i)
{
	h[i] = (struct heritage){.conf = &conf,
		.seg = seg,
		.slot = i,
		.listen = &door,
		.nlisten = 1,
		.wake_fds = wake_fds};
	w[i] = (struct worker){.h = &h[i],
		.conf = &conf,
		.seg = seg,
		.slot = i,
		.slab = seg_slab(seg, i),
		.ticking = true};
	w[i].base = event_base_new();
	wake_fds[i] = eventfd(0, EFD_NONBLOCK);
	proc_slot_set(seg, i, 1, PROC_READY, 1);
	/* ahead: it does not count as stopped because the machine was */
	proc_heartbeat(seg, i, clock_ms() + 60000);
	event_assign(&ev_wake[i], w[i].base, wake_fds[i], EV_READ | EV_PERSIST, on_wake, &w[i]);
	event_add(&ev_wake[i], NULL);
	listen_init(&w[i], on_accept);
	cr_assert_neq(w[i].epoll_fd, -1);
	w[i].phase = WORKER_SERVES;
}

static void
setup(void)
{
	small_seg();
	door.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	cr_assert_eq(listen(door.fd, 16), 0); /* of any free port */
	for (uint32_t i = 0; i < N; i++)
		begin(i);
	memset(accepted, 0, sizeof(accepted));
}

static void
teardown(void)
{
	for (uint32_t i = 0; i < N; i++) {
		event_del(&ev_wake[i]);
		if (w[i].listening[DOOR_CLIENTS])
			event_del(&w[i].ev_listen[0]);
		listen_fini(&w[i]);
		event_base_free(w[i].base);
		(void)close(wake_fds[i]);
	}
	(void)close(door.fd);
	small_seg_end();
}

TestSuite(listen, .init = setup, .fini = teardown);

static void
client_connects(void)
{
	struct sockaddr_in to;
	socklen_t len = sizeof(to);
	const int fd = socket(AF_INET, SOCK_STREAM, 0);

	cr_assert_eq(getsockname(door.fd, (struct sockaddr *)&to, &len), 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	cr_assert_eq(connect(fd, (struct sockaddr *)&to, len), 0);
	(void)close(fd);
}

static void
turn(uint32_t i)
{
	event_base_loop(w[i].base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
}

/* Stands for a worker that is woken, and killed before it accepts. */
struct victim {
	pthread_t thread;
	int epoll, tid;
};

static void *
sleep_until_woken(void *arg)
{
	struct victim *v = arg;
	struct epoll_event e;

	shm_store(&v->tid, gettid());
	while (epoll_wait(v->epoll, &e, 1, -1) != 1)
		;
	(void)close(v->epoll);
	return NULL;
}

static bool
sleeps(struct victim *v)
{
	char path[64], state = '?';
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/self/task/%d/stat", shm_load(&v->tid));
	f = fopen(path, "r");
	if (f != NULL && fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = '?';
	if (f != NULL)
		(void)fclose(f);
	return state == 'S';
}

/* It is registered first, so the kernel wakes it first. */
static void
victim_sleeps(struct victim *v)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE};

	*v = (struct victim){.epoll = epoll_create1(0)};
	cr_assert_eq(epoll_ctl(v->epoll, EPOLL_CTL_ADD, door.fd, &e), 0);
	cr_assert_eq(pthread_create(&v->thread, NULL, sleep_until_woken, v), 0);
	while (!sleeps(v))
		(void)sched_yield();
}

static void
connection_wakes(struct victim *v)
{
	client_connects();
	(void)pthread_join(v->thread, NULL);
}

Test(listen, a_connection_wakes_one_worker)
{
	struct victim v;

	victim_sleeps(&v);
	listen_update(&w[0]);
	connection_wakes(&v);
	turn(0);
	cr_assert_eq(accepted[0], 0);
}

Test(listen, a_heartbeat_finds_what_a_killed_worker_has_left)
{
	struct victim v;

	victim_sleeps(&v);
	listen_update(&w[0]);
	connection_wakes(&v);
	listen_heartbeat(&w[0]);
	turn(0);
	cr_assert_eq(accepted[0], 1);
}

Test(listen, who_stops_passes_a_connection_on)
{
	struct victim v;

	victim_sleeps(&v);
	listen_update(&w[0]);
	listen_update(&w[1]);
	connection_wakes(&v);
	w[0].phase = WORKER_DRAINS;
	listen_update(&w[0]);
	turn(0);
	turn(1); /* its eventfd */
	turn(1);
	cr_assert_eq(accepted[0], 0);
	cr_assert_eq(accepted[1], 1);
}

/* The worker drains, and closes its descriptor of the socket: a process has its own. */
static void
end(uint32_t i)
{
	const int fd = door.fd;

	w[i].phase = WORKER_DRAINS;
	door.fd = dup(fd);
	listen_end(&w[i]);
	door.fd = fd;
}

/* The workers of the instance that takes over are in another segment: this one cannot wake them. */
Test(listen, the_last_one_that_serves_accepts_what_woke_it)
{
	struct victim v;

	victim_sleeps(&v);
	listen_update(&w[0]);
	proc_slot_set(seg, 1, 1, PROC_DRAINING, 1);
	connection_wakes(&v);
	end(0);
	cr_assert_eq(accepted[0], 1);
}

/* A worker of the next generation begins to serve at that moment. */
Test(listen, who_drains_leaves_it_to_who_begins)
{
	struct victim v;

	victim_sleeps(&v);
	listen_update(&w[0]);
	connection_wakes(&v);
	end(0);
	listen_update(&w[1]);
	turn(1);
	cr_assert_eq(accepted[0], 0);
	cr_assert_eq(accepted[1], 1);
}

Test(listen, a_worker_accepts_one_connection_after_the_other)
{
	listen_update(&w[0]);
	client_connects();
	client_connects();
	turn(0);
	cr_assert_eq(accepted[0], 1);
	turn(0);
	turn(0);
	cr_assert_eq(accepted[0], 2);
}
