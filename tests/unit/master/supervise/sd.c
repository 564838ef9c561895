/* What systemd is told, with a socket in the place of its own. */
#include <criterion/criterion.h>
#include <event2/event.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "master/supervise/sd.h"
#include "shm/base/clock.h"

static struct event_base *base;
static struct sd *sd;
static int manager, other; /* its socket, and somebody else's who fills it */

static void
setup(void)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	char name[64];
	int n = snprintf(name, sizeof(name), "@pdrouter-test-sd-%d", (int)getpid());
	socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n);

	memcpy(sun.sun_path + 1, name + 1, (size_t)n - 1);
	manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	other = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	cr_assert_eq(bind(manager, (struct sockaddr *)&sun, len), 0);
	cr_assert_eq(connect(other, (struct sockaddr *)&sun, len), 0);
	cr_assert_eq(setenv("NOTIFY_SOCKET", name, 1), 0);
	base = event_base_new();
	sd = sd_new(base);
}

static void
teardown(void)
{
	sd_free(&sd);
	event_base_free(base);
	(void)close(other);
	(void)close(manager);
}

/* The next datagram, or "none"; the filler's are passed over. */
static const char *
received(void)
{
	static char text[256];
	ssize_t n;

	do
		n = recv(manager, text, sizeof(text) - 1, 0);
	while (n == 6 && memcmp(text, "filler", 6) == 0);
	if (n == -1)
		return "none";
	text[n] = '\0';
	return text;
}

static void
run_for(uint64_t ms)
{
	struct timeval tv = clock_tv(ms);

	(void)event_base_loopexit(base, &tv);
	(void)event_base_loop(base, EVLOOP_NO_EXIT_ON_EMPTY);
}

Test(sd, what_finds_no_room_is_sent_later_and_only_once, .init = setup, .fini = teardown)
{
	while (send(other, "filler", 6, 0) == 6)
		;
	sd_tell_stopping(sd);
	cr_assert_str_eq(received(), "none");
	run_for(500);
	cr_assert_str_eq(received(), "STOPPING=1\nSTATUS=draining");
	run_for(300);
	cr_assert_str_eq(received(), "none");
}

Test(sd, a_newer_message_takes_the_place_of_one_that_waits, .init = setup, .fini = teardown)
{
	while (send(other, "filler", 6, 0) == 6)
		;
	sd_tell_reloading(sd);
	cr_assert_str_eq(received(), "none");
	sd_tell_ready(sd);
	cr_assert_str_eq(received(), "READY=1\nSTATUS=serving");
	run_for(300);
	cr_assert_str_eq(received(), "none", "nothing is left to send");
}
