#include "master/sd.h"

#include <assert.h>
#include <event2/event.h>
#include <stddef.h>
#include <systemd/sd-daemon.h>

#include "shm/base/clock.h"
#include "shm/base/log.h"

void
sd_tell_ready(const char *status)
{
	(void)sd_notifyf(0, "READY=1\nSTATUS=%s", status);
}

/* MONOTONIC_USEC: systemd 253 and later tell by it which reload a READY=1 answers. */
void
sd_tell_reloading(void)
{
	(void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=reloading", (unsigned long long)clock_us());
}

void
sd_tell_stopping(void)
{
	(void)sd_notify(0, "STOPPING=1\nSTATUS=draining");
}

void
sd_tell_status(const char *status)
{
	(void)sd_notifyf(0, "STATUS=%s", status);
}

static void
on_ping(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
	(void)sd_notify(0, "WATCHDOG=1");
}

struct event *
sd_watchdog_start(struct event_base *base)
{
	uint64_t usec = 0;
	struct timeval tv;
	struct event *ev;

	if (sd_watchdog_enabled(0, &usec) <= 0)
		return NULL;
	usec /= 2;
	tv = (struct timeval){ .tv_sec = (time_t)(usec / 1000000), .tv_usec = (suseconds_t)(usec % 1000000) };
	ev = event_new(base, -1, EV_PERSIST, on_ping, NULL);
	assert(ev != NULL);
	(void)event_add(ev, &tv);
	on_ping(-1, 0, NULL);
	log_info("watchdog", LOG_MS("ping_every_ms", usec));
	return ev;
}
