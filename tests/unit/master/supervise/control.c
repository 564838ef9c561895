/* The control socket where descriptors run out: it neither spins nor forgets who waits; and its lock. */
#include <criterion/criterion.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/supervise/control.h"
#include "master/supervise/inherit.h"
#include "shm/base/clock.h"
#include "shm/base/lockfile.h"
#include "tests/unit/running_time.h"

static struct event_base *base;
static struct control *control;
static struct sockaddr_un at = {.sun_family = AF_UNIX};

/* Answers with what it got. */
static int
take_prompt(void *arg, const char *what, const char *prompt, size_t n, struct evbuffer *out)
{
	(void)arg;
	(void)evbuffer_add_printf(out, "%s: %zu, %.*s\n", what, n,
		prompt == NULL || n > 10 ? 10 : (int)n, prompt != NULL ? prompt : "none");
	return 0;
}

static void
setup(void)
{
	const struct control_hooks hooks = {.explain = take_prompt};
	struct inherit nothing;
	char dir[] = "/tmp/pdr-control-XXXXXX";

	cr_assert_not_null(mkdtemp(dir));
	(void)snprintf(at.sun_path, sizeof(at.sun_path), "%s/sock", dir);
	base = event_base_new();
	inherit_init(&nothing);
	cr_assert_eq(control_new(base, at.sun_path, &hooks, &nothing, &control), 0);
	cr_assert_not_null(control);
}

static void
teardown(void)
{
	control_free(&control);
	event_base_free(base);
	(void)strcat(at.sun_path, ".lock"); /* it stays */
	cr_assert_eq(unlink(at.sun_path), 0);
	*strrchr(at.sun_path, '/') = '\0';
	(void)rmdir(at.sun_path);
}

TestSuite(control, .init = setup, .fini = teardown, .timeout = 60);

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

/* Runs the loop for so long, or until there is an answer on fd (-1: not looked at).  Turns taken. */
static unsigned
run(uint64_t ms, int fd)
{
	const uint64_t end = clock_ms() + ms;
	const struct timeval tick_s = {.tv_usec = 20000};
	struct event *tick = event_new(base, -1, EV_PERSIST, on_tick, NULL);
	unsigned turns = 0;
	char c;

	(void)event_add(tick, &tick_s);
	while (clock_ms() < end && (fd == -1 || recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT) != 1)) {
		(void)event_base_loop(base, EVLOOP_ONCE);
		turns++;
	}
	event_free(tick);
	return turns;
}

static int
connect_silent(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	cr_assert_eq(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	return fd;
}

static int
connect_client(void)
{
	int fd = connect_silent();

	cr_assert_eq(send(fd, "ping\n", 5, MSG_NOSIGNAL), 5);
	return fd;
}

/* No descriptor above those that are open now; returns the limit that was. */
static struct rlimit
limit_descriptors(void)
{
	struct rlimit was, now;
	int fd = dup(0);

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	now = was;
	now.rlim_cur = (rlim_t)fd;
	(void)close(fd);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
	return was;
}

static void
check_answer(int fd)
{
	char text[8] = "";

	cr_assert_eq(recv(fd, text, sizeof(text) - 1, MSG_DONTWAIT), 3);
	cr_assert_str_eq(text, "OK\n");
}

Test(control, at_the_limit_of_descriptors_the_loop_rests)
{
	int fd = connect_client();
	const struct rlimit was = limit_descriptors();
	const unsigned turns = run(500, -1);

	cr_assert_lt(turns, 100, "%u turns in 500 ms", turns);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	(void)run(3000, fd);
	check_answer(fd);
	(void)close(fd);
}

Test(control, a_client_that_ends_makes_room_for_the_next_one)
{
	struct rlimit was;
	uint64_t began;
	int first = connect_client(), second = connect_client();

	(void)run(100, first); /* it is accepted; the second may be, too */
	check_answer(first);
	(void)run(3000, second);
	check_answer(second);
	(void)close(second);
	(void)run(100, -1);
	second = connect_client();
	was = limit_descriptors();
	(void)run(200, -1);
	cr_assert_eq(
		recv(second, &(char){0}, 1, MSG_DONTWAIT), -1, "there is no descriptor for it");
	began = clock_ms();
	(void)close(first);
	(void)run(3000, second);
	check_answer(second);
	cr_assert_lt(clock_ms() - began, 500, "the end of a client is not waited for by a timer");
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	(void)close(second);
}

/* An instance that an upgrade has replaced ends when its control socket is quiet: a command on its way is not lost. */
Test(control, a_client_that_is_about_to_ask_is_waited_for)
{
	int fd = connect_silent();

	cr_assert(control_is_quiet(control), "it is not accepted yet: another instance may do so");
	while (control_is_quiet(control))
		(void)event_base_loop(base, EVLOOP_ONCE);
	(void)run(50, -1);
	cr_assert_not(control_is_quiet(control), "its command may be on its way");
	cr_assert_eq(send(fd, "ping\n", 5, MSG_NOSIGNAL), 5);
	(void)run(3000, fd);
	check_answer(fd);
	(void)run(50, -1);
	cr_assert(control_is_quiet(control), "it has its answer, and may stay for hours");
	(void)close(fd);
}

/* A child that a killed master has just forked holds the lock until it has closed what it inherited. */
Test(control, a_lock_that_is_free_in_a_moment_is_waited_for)
{
	char other[sizeof(at.sun_path)];
	struct control *second = NULL;
	const struct control_hooks none = {.arg = NULL};
	struct inherit nothing;
	int pipes[2], lock;
	pid_t pid;

	(void)snprintf(other, sizeof(other), "%.90s.2", at.sun_path);
	cr_assert_eq(pipe(pipes), 0);
	lock = lockfile_take(other);
	cr_assert_geq(lock, 0);
	pid = fork();
	if (pid == 0) {
		(void)close(pipes[1]);
		(void)!read(pipes[0], &(char){0}, 1); /* until the other side is closed */
		(void)usleep(50000);
		_exit(0);
	}
	(void)close(lock);
	(void)close(pipes[1]);
	inherit_init(&nothing);
	cr_expect_eq(control_new(base, other, &none, &nothing, &second), 0);
	cr_expect_not_null(second);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	(void)close(pipes[0]);
	control_free(&second);
	(void)strcat(other, ".lock");
	cr_expect_eq(unlink(other), 0);
}

/* Sends all while the loop runs; the next command follows at once. */
static void
send_on(int fd, const char *p, size_t n)
{
	while (n > 0) {
		const ssize_t sent = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);

		p += sent > 0 ? sent : 0;
		n -= sent > 0 ? (size_t)sent : 0;
		(void)event_base_loop(base, EVLOOP_NONBLOCK);
	}
}

static void
expect_line(FILE *in, int fd, const char *want)
{
	char line[256] = "";

	(void)run(10000, fd);
	while (fgets(line, sizeof(line), in) != NULL && strcmp(line, "OK\n") == 0)
		(void)run(10000, fd);
	cr_expect_str_eq(line, want);
}

Test(control, a_prompt_follows_its_line)
{
	enum { BYTES = 3 << 20 };
	char *prompt = malloc(BYTES);
	const int fd = connect_client(); /* and a ping */
	FILE *in = fdopen(fd, "r");

	memset(prompt, 'x', BYTES);
	memcpy(prompt, "status\nab\n", 10); /* it is no command */
	setvbuf(in, NULL, _IONBF, 0);
	send_on(fd, "explain m\nexplain bytes=5 json m\n12", 35);
	send_on(fd, "345explain bytes=3145728 m\n", 27);
	send_on(fd, prompt, BYTES);
	send_on(fd, "explain m2\n", 11);
	expect_line(in, fd, "m: 0, none\n");
	expect_line(in, fd, "MORE\n");
	expect_line(in, fd, "json m: 5, 12345\n");
	expect_line(in, fd, "MORE\n");
	expect_line(in, fd, "m: 3145728, status\n");
	expect_line(in, fd, "ab\n");
	expect_line(in, fd, "\n");
	expect_line(in, fd, "m2: 0, none\n");
	(void)fclose(in);
	free(prompt);
}

/* It may send a byte now and then, for months. */
Test(control, a_prompt_that_does_not_end_holds_no_replaced_instance)
{
	struct timespec now;
	const int fd = connect_client();

	send_on(fd, "explain bytes=5 m\n12", 20);
	(void)run(10000, fd);
	cr_assert_not(control_is_quiet(control), "the rest may be on its way");
	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	clock_held_us = (uint64_t)(now.tv_sec + 6) * 1000000;
	cr_assert(control_is_quiet(control));
	clock_go_on();
	(void)close(fd);
}

Test(control, a_client_that_ends_within_its_prompt_ends)
{
	const int fd = connect_client();
	char text[16] = "";

	send_on(fd, "explain bytes=5 m\n12", 20);
	cr_assert_eq(shutdown(fd, SHUT_WR), 0);
	for (unsigned i = 0;
		i < 500 && recv(fd, text, sizeof(text) - 1, MSG_PEEK | MSG_DONTWAIT) < 8; i++)
		(void)run(20, -1);
	cr_expect_eq(recv(fd, text, sizeof(text) - 1, 0), 8);
	cr_expect_str_eq(text, "OK\nMORE\n", "the first is to the ping");
	for (unsigned i = 0; i < 500 && recv(fd, text, 1, MSG_DONTWAIT) != 0; i++)
		(void)run(20, -1);
	cr_expect_eq(recv(fd, text, 1, MSG_DONTWAIT), 0, "the connection is closed");
	(void)close(fd);
}
