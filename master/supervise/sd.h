/*
 * Messages to systemd (Type=notify): state changes and the watchdog's pings.  Without $NOTIFY_SOCKET
 * nothing happens.
 *
 * Process: master.  sd_notify(3) is not used, since it blocks while the service manager does not read;
 * the protocol is one datagram.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

struct event_base;
struct sd;

/*
 * Starts the pings, if systemd requests them, at half of WatchdogSec and from the loop of `base`
 * alone: the watchdog watches the master, the master watches its children.
 */
struct sd *sd_new(struct event_base *base);
void sd_free(struct sd **);

/* A message the service manager has no room for is sent again until it has; the newest one counts. */
void sd_tell_ready(struct sd *sd); /* also: a reload is over */
void sd_tell_reloading(struct sd *sd);
void sd_tell_stopping(struct sd *sd);

/*
 * systemd keeps a copy of this listening socket and passes it to the next process of the service, so connections wait
 * while pdrouter restarts (FileDescriptorStoreMax of the unit).  A socket that is shut down leaves the store by itself.
 * A socket that is there already is no change.
 */
#define SD_STORED "pdrouter" /* the socket's name there */
void sd_store(const struct sd *sd, int fd);
bool sd_is_there(const struct sd *sd); /* this is a service of systemd */

/*
 * Another instance is the main process of the service: systemd takes messages from that one alone, so this
 * process sends none, and no ping.
 */
void sd_mute(struct sd *sd, bool mute);
/* `pid` is the main process from now on.  False: systemd has no room for the message now. */
bool sd_tell_main_pid(struct sd *sd, pid_t pid);
