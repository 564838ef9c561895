/* What routers say of an engine, also when they do not all answer. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

Test(routers, why_an_engine_is_not_up)
{
	char url[] = CLOSED;
	struct router v = {.url = url, .control = here};
	const struct routers r = {.v = &v, .n = 1};
	char *why = routers_why_not_up(&r, ENGINE);

	cr_expect_str_eq(why, "no router answers on its control socket /no/such/socket");
	free(why);
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
	(void)unlink(sun.sun_path); /* of a process that had this number and was killed */
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

/* A router's /metrics, once. */
struct page {
	int fd;
	const char *text;
};

static void *
show(void *arg)
{
	static const char head[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
	const struct page *p = arg;
	char buf[4096];
	int fd = accept(p->fd, NULL, NULL);

	cr_assert(read(fd, buf, sizeof(buf)) > 0);
	cr_assert_eq(write(fd, head, sizeof(head) - 1), (ssize_t)sizeof(head) - 1);
	cr_assert_eq(write(fd, p->text, strlen(p->text)), (ssize_t)strlen(p->text));
	(void)close(fd);
	return NULL;
}

#define UP(pool, v) "\npdrouter_endpoint_up{engine=\"" ENGINE "\",pool=\"" pool "\"} " v
#define STATE(pool, v)                                                                             \
	"\npdrouter_endpoint_state{engine=\"" ENGINE "\",pool=\"" pool "\",state=\"" v "\"} 1"
#define ANOTHER "\npdrouter_endpoint_up{engine=\"" ENGINE "0\",pool=\"a\"} 0"

Test(routers, a_drained_engine_is_neither_up_nor_down)
{
	static const struct {
		const char *text;
		enum routers_view view;
	} rows[] = {
		{ANOTHER "\n", ROUTERS_NONE},
		{ANOTHER UP("a", "1") STATE("a", "up") "\n", ROUTERS_UP},
		{UP("a", "0") STATE("a", "starting") "\n", ROUTERS_DOWN},
		{UP("a", "0") STATE("a", "draining") "\n", ROUTERS_DRAINED},
		{UP("a", "1") UP("b", "0") STATE("a", "up") STATE("b", "draining") "\n",
			ROUTERS_DRAINED},
		{UP("a", "0") UP("b", "0") STATE("a", "draining") STATE("b", "down") "\n",
			ROUTERS_DOWN},
	};
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct page page = {.fd = socket(AF_INET, SOCK_STREAM, 0)};
	socklen_t len = sizeof(sin);
	pthread_t thread;
	char url[64];
	struct router v = {.url = url};
	const struct routers r = {.v = &v, .n = 1};

	cr_assert_eq(bind(page.fd, (struct sockaddr *)&sin, len), 0);
	cr_assert_eq(getsockname(page.fd, (struct sockaddr *)&sin, &len), 0);
	cr_assert_eq(listen(page.fd, 1), 0);
	(void)snprintf(url, sizeof(url), "http://127.0.0.1:%u", ntohs(sin.sin_port));
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		page.text = rows[i].text;
		cr_assert_eq(pthread_create(&thread, NULL, show, &page), 0);
		cr_expect_eq(routers_see(&r, ENGINE), rows[i].view, "%s", rows[i].text);
		(void)pthread_join(thread, NULL);
	}
	(void)close(page.fd);
}
