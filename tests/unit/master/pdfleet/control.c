/* What a router answers on its control socket, also where the answer is cut off or has no end. */
#include "master/pdfleet/control.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[] = "/tmp/pdfleet-control-XXXXXX";

/* A router that says `text` so many times, whatever it is asked. */
static pid_t
serve(int listener, const char *text, size_t times)
{
	pid_t pid = fork();
	char buf[64];
	int fd;

	if (pid != 0)
		return pid;
	(void)signal(SIGPIPE, SIG_IGN);
	fd = accept(listener, NULL, NULL);
	if (fd == -1 || read(fd, buf, sizeof(buf)) <= 0)
		_exit(1);
	while (times-- > 0 && send(fd, text, strlen(text), 0) > 0)
		;
	_exit(0);
}

static const struct {
	const char *says;
	size_t times;
	enum control_answer answer;
	const char *text; /* NULL: any */
} rows[] = {
	{"a\nb\nOK\n", 1, CONTROL_OK, "a\nb\n"},
	{"OK\n", 1, CONTROL_OK, ""},
	{"ERR no such endpoint\n", 1, CONTROL_ERR, "no such endpoint"},
	{"a\nERR why\n", 1, CONTROL_ERR, "why"},
	{"ERR \n", 1, CONTROL_ERR, ""},
	{"ERR ", 1, CONTROL_ERR, ""},
	{"ERR cut o", 1, CONTROL_ERR, "cut o"},
	{"a\nb", 1, CONTROL_NONE, NULL},
	{"", 1, CONTROL_NONE, ""},
	{"a line of more than sixty bytes, so that there are not too many of them\n", 1u << 20,
		CONTROL_NONE, NULL},
};

Test(control, answers)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	struct membuf b = {.p = NULL};
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);

	cr_assert_not_null(mkdtemp(dir));
	(void)snprintf(sun.sun_path, sizeof(sun.sun_path), "%s/ctl", dir);
	cr_assert_eq(bind(listener, (struct sockaddr *)&sun, sizeof(sun)), 0);
	cr_assert_eq(listen(listener, 1), 0);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		pid_t pid = serve(listener, rows[i].says, rows[i].times);

		b.n = 0;
		cr_expect_eq(control_say(sun.sun_path, "ping", &b), rows[i].answer, "row %zu", i);
		cr_expect(rows[i].text == NULL || strcmp(b.p, rows[i].text) == 0, "row %zu: %s", i,
			b.p);
		cr_expect_lt(b.n, 16u << 20);
		(void)waitpid(pid, NULL, 0);
	}
	(void)close(listener);
	(void)unlink(sun.sun_path);
	(void)rmdir(dir);
	cr_expect_eq(control_say(sun.sun_path, "ping", &b), CONTROL_NONE, "nobody is there");
	membuf_free(&b);
}
