/* A client whose host may have vanished: what the tick makes of the kernel's figures of its connection. */
#include "worker/request/client.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "tests/unit/worker/one_engine.h"

#define MS 20000 /* client.tcp_user */

static struct tcp_info info; /* what the kernel says */
static struct conf conf;
static struct client *c;
static unsigned gone, looks;
static uint64_t first_look_ms;
static int request; /* stands for the client's request */

/* In place of the C library's. */
int
getsockopt(int fd, int level, int name, void *to, socklen_t *len)
{
	(void)fd;
	cr_assert(level == IPPROTO_TCP && name == TCP_INFO && *len == sizeof(info));
	memcpy(to, &info, sizeof(info));
	looks++;
	return 0;
}

static void
on_gone(struct req *req, bool stalled)
{
	(void)req;
	gone += !stalled;
}

static const struct client_ops ops = {.gone = on_gone};

static void
setup(void)
{
	int fds[2];

	one_engine();
	w.conf = &conf;
	w.slab = seg_slab(w.seg, 0);
	w.base = event_base_new();
	w.ticking = true;
	rounds_init(&w.client_rounds, 0);
	conf.live.client_tcp_user_ms = MS;
	TAILQ_INIT(&w.clients);
	TAILQ_INIT(&w.ended_clients);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	client_new(&w, fds[0], &(struct client_origin){.door = DOOR_CLIENTS}, &ops);
	c = TAILQ_FIRST(&w.clients);
	c->req = (struct req *)(void *)&request;
	first_look_ms = c->look_ms;
	c->look_ms = 0; /* the tests have a clock of their own */
	info.tcpi_unacked = 1;
}

TestSuite(client, .init = setup);

/* Until then the host has answered nothing for `quiet_ms`, and the kernel has sent again `times`. */
static void
until(uint64_t now_ms, uint32_t quiet_ms, uint8_t times)
{
	static uint64_t at_ms = 1000;

	info.tcpi_last_ack_recv = quiet_ms;
	info.tcpi_retransmits = times;
	for (; at_ms < now_ms; at_ms += 100)
		client_tick(&c->visit, at_ms);
}

Test(client, a_host_is_not_looked_at_as_soon_as_it_has_connected)
{
	cr_assert_eq(looks, 0);
	cr_assert_gt(first_look_ms, clock_ms());
	cr_assert_leq(first_look_ms, clock_ms() + MS);
}

Test(client, a_host_that_leaves_bytes_unacknowledged_for_the_time_has_vanished)
{
	until(MS, 100, 0);
	until(2 * MS, MS, 3);
	cr_assert_eq(gone, 0);
	until(2 * MS + MS / 2, MS, 8);
	cr_assert_eq(gone, 1);
}

Test(client, a_connection_that_was_quiet_for_longer_has_the_whole_time)
{
	until(MS, 10 * MS, 0); /* no probe was due: the limit was longer when it began */
	until(MS + MS / 2, 10 * MS, 2);
	until(4 * MS, 100, 0);
	cr_assert_eq(gone, 0);
}

Test(client, bytes_that_are_lost_now_and_then_do_not_add_up)
{
	for (uint64_t t = MS; t < 10 * MS; t += MS) {
		until(t, 10 * MS, 2);
		until(t + MS / 3, 100, 0);
	}
	cr_assert_eq(gone, 0);
}

Test(client, a_host_that_has_acknowledged_all_is_looked_at_again_when_bytes_were_written)
{
	const struct iovec byte = {.iov_base = (char[]){'x'}, .iov_len = 1};

	info.tcpi_unacked = 0;
	info.tcpi_notsent_bytes = 1; /* it has no room */
	until(3 * MS, 100, 0);
	cr_assert_gt(looks, 4);
	info.tcpi_notsent_bytes = 0;
	until(4 * MS, 100, 0);
	looks = 0;
	until(8 * MS, 100, 0);
	cr_assert_eq(looks, 0);
	(void)client_write(c, &byte, 1);
	info.tcpi_unacked = 1;
	until(11 * MS, MS, 8);
	cr_assert_gt(looks, 0);
	cr_assert_eq(gone, 1);
}
