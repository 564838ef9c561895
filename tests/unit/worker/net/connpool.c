/* A kept connection that breaks as a request goes out on it: had the engine's kernel taken any of that? */
#include "worker/net/connpool.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"

#define LATE_US 100000 /* longer than any kernel puts off its word */

static int engine;
static struct upconn uc;

/* One request has been answered, the next may go out. */
static void
setup(void)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(sin);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	char buf[8];

	memset(&uc, 0, sizeof(uc));
	uc.sock.fd = socket(AF_INET, SOCK_STREAM, 0);
	cr_assert_eq(bind(listener, (struct sockaddr *)&sin, len), 0);
	cr_assert_eq(listen(listener, 1), 0);
	cr_assert_eq(getsockname(listener, (struct sockaddr *)&sin, &len), 0);
	cr_assert_eq(connect(uc.sock.fd, (struct sockaddr *)&sin, len), 0);
	engine = accept(listener, NULL, NULL);
	cr_assert_geq(engine, 0);
	(void)close(listener);
	cr_assert_eq(write(uc.sock.fd, "one", 3), 3);
	cr_assert_eq(read(engine, buf, sizeof(buf)), 3);
	cr_assert_eq(write(engine, "1", 1), 1);
	cr_assert_eq(sock_read(&uc.sock, buf, sizeof(buf)), 1);
	uc.sent_before = 3;
}

static void
teardown(void)
{
	(void)close(uc.sock.fd);
}

TestSuite(connpool, .init = setup, .fini = teardown);

static void
send_next(void)
{
	cr_assert_eq(write(uc.sock.fd, "next", 4), 4);
	uc.sent_us = clock_us();
}

/* The end of it, as it is found a good while later. */
static ssize_t
broken(void)
{
	char buf[8];

	(void)usleep(20000);
	uc.sent_us -= LATE_US;
	return sock_read(&uc.sock, buf, sizeof(buf));
}

Test(connpool, an_end_that_crossed_the_request_is_certain)
{
	(void)close(engine);
	send_next();
	cr_assert_eq(broken(), 0);
	cr_assert(connpool_nothing_acked(&uc));
}

Test(connpool, an_end_after_the_request_was_read_is_certain_too)
{
	char buf[8];

	send_next();
	cr_assert_eq(read(engine, buf, sizeof(buf)), 4);
	(void)close(engine);
	cr_assert_eq(broken(), 0);
	cr_assert_not(connpool_nothing_acked(&uc));
}

Test(connpool, a_reset_that_comes_late_may_be_of_one_who_has_read)
{
	const struct linger at_once = {.l_onoff = 1};

	send_next();
	cr_assert_eq(setsockopt(engine, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
	(void)close(engine);
	cr_assert_eq(broken(), -ECONNRESET);
	cr_assert(uc.sock.reset);
	cr_assert_not(connpool_nothing_acked(&uc));
}
