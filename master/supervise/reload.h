/*
 * Bringing a configuration in force: the first one at start, further ones on SIGHUP or `pdctl reload`.
 *
 * Process: master.  Owns the configuration in force and those on their way.
 * Requests are coalesced: reload_request() sets a flag, reload_turn() acts on it once per loop turn.
 * While one configuration is on its way, the newest other one waits; those in between are never used.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conf;
struct conf_args;
struct conf_error;
struct evbuffer;
struct event_base;
struct fleet;
struct listeners;
struct procs;
struct reload;
struct sd;
struct seg;

/* The caller owns all parts; they must outlive the struct reload. */
struct reload_parts {
	struct event_base *base;
	const struct conf_args *args;
	struct seg *seg;
	struct listeners *listeners;
	struct fleet *fleet;
	struct procs *procs;
	struct sd *sd;
};

struct reload_hooks {
	/* The first configuration cannot be brought in force, or no worker is left that can: the end. */
	void (*fatal)(void *arg, const char *error);
	/*
	 * The outcome of reading attempt number `attempt`.  error NULL: it, or a newer one, is in force.
	 * exact: only this attempt; else also all earlier ones that have no outcome yet.  `notes`: one line
	 * per key that keeps its old value until a restart, or "".
	 */
	void (*done)(void *arg, uint64_t attempt, bool exact, const char *error, const char *notes);
	void *arg;
};

/*
 * Reads the configuration and lowers what this machine's limits do not allow, which is logged unless it
 * was so `before` (NULL at the start).  Returns as conf_from_args().
 */
int reload_read(const struct conf_args *args, const struct conf *before, struct conf **ret,
	struct conf_error *err);

struct reload *reload_new(const struct reload_parts *parts, const struct reload_hooks *hooks);
void reload_free(struct reload **);

/* Takes `conf`, opens its sockets, starts its workers.  Done when they are ready, or fatal(). */
void reload_first(struct reload *r, struct conf *conf);
/* Returns the number of the attempt that will serve this request; 0 when stopping. */
uint64_t reload_request(struct reload *r);
/*
 * What a reload would change, and what that costs: a line for each key; with `dry_run` also a line for each
 * cost, and whether the reload would be refused.  Changes nothing.  0, or -1 with the reason in error.
 */
int reload_preview(struct reload *r, bool dry_run, struct evbuffer *out, char *error, size_t size);
/*
 * All processes log from this level on ("error" to "debug"), until a configuration is put in force.  Appends what is
 * in force now; or -1 with the reason in *out, one line without its end.
 */
int reload_log_level(struct reload *r, const char *word, struct evbuffer *out);
/* The word of the level that is in force in place of that of the configuration; NULL: that of the configuration is. */
const char *reload_own_level(const struct reload *r);
/* Once per loop turn. */
void reload_turn(struct reload *r);
/* Accepts no further configuration; a reload under way is cancelled. */
void reload_stop(struct reload *r);

/* An upgrade is under way: no reload begins.  Requests are remembered. */
void reload_hold(struct reload *r, bool hold);
bool reload_is_idle(const struct reload *r); /* none is under way */
/* Another instance serves: requests are refused, and the end of the last worker is not the end of this instance. */
void reload_leave(struct reload *r);
/* The other instance has failed: new workers with the configuration in force. */
void reload_resume(struct reload *r);
/* The configuration in force; NULL: none yet. */
const struct conf *reload_conf(const struct reload *r);
/* Closes the sockets that the configuration in force does not have (listeners_own()); during a reload its end does
 * that. */
void reload_keep_listeners(const struct reload *r);

/* From procs' hooks. */
void reload_generation_ready(struct reload *r, uint32_t generation);
void reload_generation_refused(struct reload *r, uint32_t generation);
void reload_generation_gone(struct reload *r, uint32_t generation);

uint64_t reload_number(const struct reload *r);   /* of the configuration in force; 0: none yet */
const char *reload_phase(const struct reload *r); /* a word for `status` */
