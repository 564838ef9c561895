/* A collector that cannot be reached: the failure is an answer at once, and never from within collector_post(). */
#include "master/exporter/collector.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"

#define SOON_MS (COLLECTOR_MS / 2)

static struct event_base *base;
static struct collector *c;
static unsigned answers;
static int status;
static const char *error;
static int bound;

static void
on_answer(void *arg, const struct collector_answer *a)
{
	(void)arg;
	answers++;
	status = a->status;
	error = a->error;
	(void)event_base_loopbreak(base);
}

/* An address where nobody listens. */
static void
setup(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(at);
	const int fd = socket(AF_INET, SOCK_STREAM, 0);
	char url[64];

	cr_assert_eq(bind(fd, (struct sockaddr *)&at, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	bound = fd; /* open, so that no other process listens there */
	(void)snprintf(url, sizeof(url), "http://127.0.0.1:%u", ntohs(at.sin_port));
	base = event_base_new();
	c = collector_new(base, url, on_answer, NULL);
}

static void
teardown(void)
{
	(void)close(bound);
	collector_free(&c);
	event_base_free(base);
}

TestSuite(collector, .init = setup, .fini = teardown);

/* Posts, and waits for the answer. */
static void
fails(const char *why)
{
	const uint64_t began_ms = clock_ms();

	answers = 0;
	collector_post(c, "{}", 2);
	cr_assert_eq(answers, 0, "not from within collector_post()");
	(void)event_base_dispatch(base);
	cr_expect_eq(answers, 1);
	cr_expect_eq(status, 0);
	cr_expect_str_eq(error, why);
	cr_expect_lt(clock_ms() - began_ms, SOON_MS);
}

Test(collector, a_refused_connection)
{
	fails("the connection failed");
	fails("the connection failed");
}

Test(collector, a_connection_that_cannot_be_begun)
{
	struct rlimit was, none;
	const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	none = was;
	none.rlim_cur = (rlim_t)fd;
	(void)close(fd);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	fails("no connection could be begun");
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	fails("the connection failed");
}
