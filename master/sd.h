/*
 * What systemd is told (Type=notify): state changes and the watchdog's pings.  Without $NOTIFY_SOCKET
 * nothing happens.
 *
 * Process: master.
 */
#pragma once
#include <stdint.h>

struct event;
struct event_base;

void sd_tell_ready(const char *status); /* also: a reload is over */
void sd_tell_reloading(void);
void sd_tell_stopping(void);
void sd_tell_status(const char *status);

/*
 * Pings at half of WatchdogSec, from the loop of `base` alone: the watchdog watches the master, the
 * master watches its children.  NULL when systemd asks for no pings; else the caller's (event_free).
 */
struct event *sd_watchdog_start(struct event_base *base);
