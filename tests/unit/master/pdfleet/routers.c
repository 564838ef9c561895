/* What routers say of an engine when they do not all answer. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "master/pdfleet/routers.h"

#define ENGINE "http://127.0.0.1:9"
#define CLOSED "http://127.0.0.1:1" /* nobody listens there */

static char here[] = "/no/such/socket";

Test(routers, one_of_this_host_that_does_not_answer_does_not_say_up)
{
	char url[] = CLOSED;
	struct router v[] = {{.url = url}, {.url = url, .control = here}};
	const struct routers remote = {.v = v, .n = 1}, both = {.v = v, .n = 2}, none = {.v = v};

	cr_expect_eq(routers_see(&none, ENGINE), ROUTERS_NONE);
	cr_expect_eq(routers_see(&remote, ENGINE), ROUTERS_NONE, "it is passed over");
	cr_expect_eq(routers_see(&both, ENGINE), ROUTERS_SILENT);
}

/* Answers ERR to one command. */
static void *
refuse(void *arg)
{
	static const char answer[] = "ERR no such thing\n";
	char buf[256];
	int fd = accept(*(int *)arg, NULL, NULL);

	cr_assert(read(fd, buf, sizeof(buf)) > 0);
	cr_assert_eq(write(fd, answer, sizeof(answer) - 1), (ssize_t)sizeof(answer) - 1);
	(void)close(fd);
	return NULL;
}

Test(routers, why_a_drain_was_refused_is_said, .init = cr_redirect_stderr)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct router v = {.control = sun.sun_path};
	const struct routers r = {.v = &v, .n = 1};
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	pthread_t thread;

	(void)snprintf(sun.sun_path, sizeof(sun.sun_path), "/tmp/pdfleet-ctl.%d", (int)getpid());
	cr_assert_eq(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	cr_assert_eq(listen(fd, 1), 0);
	cr_assert_eq(pthread_create(&thread, NULL, refuse, &fd), 0);
	routers_drain(&r, ENGINE);
	(void)pthread_join(thread, NULL);
	(void)unlink(sun.sun_path);
	(void)fflush(stderr);
	cr_assert_stderr_eq_str(
		"pdctl fleet: the router refuses drain " ENGINE ": no such thing\n");
}
