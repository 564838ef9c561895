#include "master/supervise/reload.h"

#include <assert.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "master/config/conf.h"
#include "master/config/conf_keys.h"
#include "master/fleet/fleet.h"
#include "master/supervise/listen.h"
#include "master/supervise/procs.h"
#include "master/supervise/sd.h"
#include "master/fleet/watch.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "shm/settings.h"
#include "shm/core/seg.h"

/* Time for all workers of a new generation to report ready; after that the old generation stays. */
#define START_MS 10000
/* descriptors of a worker besides two per client connection: eventfds, listeners, idle connections */
#define FD_MARGIN 256

/*
 *   read -> next --+--> (live keys only) ----------------------> PUBLISHING --> in force
 *                  |                                                ^
 *                  +--> OPENING sockets --> STARTING a generation --+ ready
 *                            | fails              | refused, or too late
 *                            v                    v
 *                         refused <---gone--- ABORTING
 *
 * IDLE      no candidate is active; `next` may wait for the end of an old generation
 * OPENING   a new host name is looked up; no process has `cur`
 * STARTING  the new workers get ready; the old ones serve
 * PUBLISHING the fleet has `cur`; the old workers serve until its table is out
 * ABORTING  the new workers were told to quit; `cur` lives until they are gone
 * LEFT      another instance serves; only reload_resume() leads back
 * STOPPED   shutting down
 */
enum phase { RP_IDLE, RP_OPENING, RP_STARTING, RP_PUBLISHING, RP_ABORTING, RP_LEFT, RP_STOPPED };

static const char *const phase_name[] = {
	[RP_IDLE] = "serving",
	[RP_OPENING] = "reloading",
	[RP_STARTING] = "reloading",
	[RP_PUBLISHING] = "reloading",
	[RP_ABORTING] = "reloading",
	[RP_LEFT] = "replaced",
	[RP_STOPPED] = "stopping",
};

struct candidate {
	struct conf *conf; /* NULL: none */
	uint64_t attempt;
	uint64_t asked_us; /* clock_us() of the request */
	char *notes;       /* a line for each key that needs a restart */
};

struct reload {
	struct reload_parts parts;
	struct reload_hooks hooks;
	enum phase phase;
	bool requested;
	uint64_t asked_us; /* clock_us() of that request, the first if there are several */
	bool telling;      /* systemd was told RELOADING=1 and not yet READY=1 */
	bool held;         /* reload_hold() */
	bool waits;        /* `next` needs a generation, and old ones have all slots */
	uint64_t attempt;  /* number of times the configuration was read since the start */
	struct watch *watch;
	bool files;        /* a watched file has changed */
	uint64_t files_us; /* clock_us() of the first such change */

	struct conf *conf;   /* in force, or being the first; NULL before reload_first() */
	uint64_t number;     /* of conf; 0 until the first is in force */
	uint32_t generation; /* in force */
	struct door_fd *fds; /* its listening sockets */
	size_t nfds;

	struct candidate next; /* read, not yet active */
	struct candidate cur;  /* active */
	struct door_fd *cur_fds;
	size_t cur_nfds;
	uint32_t cur_generation;
	const char *own_level; /* reload_own_level() */
	char error[600];       /* why `cur` was refused */
	struct event *ev_late;
};

static void
candidate_drop(struct candidate *c)
{
	conf_free(&c->conf);
	free(c->notes);
	*c = (struct candidate){.conf = NULL};
}

/* --- reading ------------------------------------------------------------------------------------ */

/*
 * A client connection needs one descriptor, and its request needs one more for the engine.  Without this
 * limit, accept() and connect() of a worker would fail under load.
 */
static void
clip_connections(struct conf *conf, const struct conf *before)
{
	struct rlimit rl;
	uint64_t fit;

	if (getrlimit(RLIMIT_NOFILE, &rl) == -1 || rl.rlim_cur == RLIM_INFINITY)
		return;
	fit = rl.rlim_cur > 2 * FD_MARGIN ? (rl.rlim_cur - FD_MARGIN) / 2 : FD_MARGIN / 2;
	if (conf->live.max_connections <= fit)
		return;
	if (before == NULL || before->live.max_connections != fit)
		log_warn(
			"limits.max_connections lowered: raise the limit of open files (LimitNOFILE, ulimit -n)",
			LOG_U("from", conf->live.max_connections), LOG_U("to", fit),
			LOG_U("open_files", rl.rlim_cur));
	conf->live.max_connections = (uint32_t)fit;
}

static void
say_expiring(void *arg, const char *file, const char *why)
{
	(void)arg;
	log_warn("a certificate expires soon", LOG_S("file", file), LOG_S("reason", why));
}

static void
say_unverified(void *arg, const char *pool, const char *why)
{
	(void)arg;
	log_warn("engines are not verified", LOG_S("pool", pool), LOG_S("reason", why));
}

int
reload_read(const struct conf_args *args, const struct conf *before, struct conf **ret,
	struct conf_error *err)
{
	struct conf *conf = NULL;

	if (conf_from_args(args, &conf, err) != 0)
		return -1;
	clip_connections(conf, before);
	conf_tls_notes(conf, say_expiring, NULL);
	conf_engine_tls_notes(conf, before, say_unverified, NULL);
	*ret = conf;
	return 0;
}

static void
failed(struct reload *r, uint64_t attempt, bool exact, const char *error)
{
	log_error("reload refused, the configuration in force stays", LOG_S("error", error),
		LOG_U("config", r->number));
	metric_add(seg_slab(r->parts.seg, SLOT_MASTER(r->parts.seg)), M_RELOADS_FAILED, 1);
	r->hooks.done(r->hooks.arg, attempt, exact, error, "");
}

static void
read_next(struct reload *r)
{
	struct conf_error err = {.line = 0};
	char text[600];
	struct conf *conf;

	r->attempt++;
	if (!mem_has_room(MEM_ROOM)) {
		failed(r, r->attempt, true, "out of memory");
		return;
	}
	if (reload_read(r->parts.args, r->conf, &conf, &err) != 0) {
		failed(r, r->attempt, true, conf_error_text(&err, text, sizeof(text)));
		return;
	}
	candidate_drop(&r->next);
	r->next.conf = conf;
	r->next.attempt = r->attempt;
	r->next.asked_us = r->asked_us;
	r->waits = false;
}

static void
on_files(void *arg)
{
	struct reload *r = arg;

	if (!r->files)
		r->files_us = clock_us();
	r->files = true;
}

static void
watch_files(struct reload *r)
{
	char **paths =
		mem_array(DOOR_N + r->conf->npools + conf_tls_paths_max(r->conf), sizeof(char *));
	size_t n = 0;

	for (enum door door = 0; r->conf->watch && door < DOOR_N; door++)
		if (r->conf->api_keys_file[door] != NULL)
			paths[n++] = conf_api_keys_path(r->conf, door);
	for (size_t i = 0; i < r->conf->npools; i++)
		if (r->conf->pools[i].watch)
			paths[n++] = conf_endpoints_path(r->conf, &r->conf->pools[i]);
	if (r->conf->tls.watch)
		n += conf_tls_paths(r->conf, paths + n);
	watch_set(r->watch, (const char *const *)paths, n);
	while (n > 0)
		free(paths[--n]);
	free(paths);
}

/* --- the ends of a candidate -------------------------------------------------------------------- */

static void
refuse(struct reload *r)
{
	uint64_t attempt = r->cur.attempt;

	candidate_drop(&r->cur);
	free(r->cur_fds);
	r->cur_fds = NULL;
	r->cur_generation = 0;
	r->phase = RP_IDLE;
	listeners_keep(r->parts.listeners, r->conf, r->fds, r->nfds);
	failed(r, attempt, false, r->error);
}

/*
 * The table of the candidate is out, so the candidate is in force.  The order: all workers follow its live
 * settings, the new workers serve, the old ones drain, sockets without an owner are closed.  The old struct is freed last: fleet and procs no
 * longer point to it, and children have their own copy.
 */
static void
published(struct reload *r)
{
	struct candidate done = r->cur;
	struct conf *old = r->conf;

	r->cur = (struct candidate){.conf = NULL};
	r->phase = RP_IDLE;
	r->conf = done.conf;
	r->number++;
	r->own_level = NULL;
	log_setup(r->conf->live.log_level, r->conf->live.log_format);
	settings_put(r->parts.seg, &r->conf->live);
	if (r->cur_generation != 0) {
		free(r->fds);
		r->fds = r->cur_fds;
		r->nfds = r->cur_nfds;
		r->cur_fds = NULL;
		r->generation = r->cur_generation;
		r->cur_generation = 0;
	}
	procs_conf_set(r->parts.procs, r->conf, r->generation);
	listeners_keep(r->parts.listeners, r->conf, r->fds, r->nfds);
	watch_files(r);
	conf_free(&old);
	metric_add(seg_slab(r->parts.seg, SLOT_MASTER(r->parts.seg)), M_RELOADS, 1);
	log_info("configuration in force", LOG_U("config", r->number),
		LOG_U("generation", r->generation), LOG_MS("took_ms", clock_us() - done.asked_us));
	r->hooks.done(
		r->hooks.arg, done.attempt, false, NULL, done.notes != NULL ? done.notes : "");
	free(done.notes);
}

static bool
level_of(const char *word, enum log_level *ret)
{
	for (enum log_level level = LOG_L_ERROR; level <= LOG_L_DEBUG; level++)
		if (strcmp(word, log_level_word(level)) == 0) {
			*ret = level;
			return true;
		}
	return false;
}

int
reload_log_level(struct reload *r, const char *word, struct evbuffer *out)
{
	struct conf_live live;
	enum log_level level;

	if (!level_of(word, &level)) {
		(void)evbuffer_add_printf(
			out, "error, warn, info or debug is needed, not %.64s", word);
		return -1;
	}
	if (r->number == 0) {
		(void)evbuffer_add_printf(out, "no configuration is in force yet");
		return -1;
	}
	log_info("log level set by pdctl", LOG_S("log_level", log_level_word(level)),
		LOG_S("configured", log_level_word(r->conf->live.log_level)));
	live = r->conf->live;
	live.log_level = level;
	r->own_level = level != r->conf->live.log_level ? log_level_word(level) : NULL;
	log_setup(live.log_level, live.log_format);
	settings_put(r->parts.seg, &live);
	(void)evbuffer_add_printf(out, "log_level %s until the next reload; configured: %s\n",
		log_level_word(level), log_level_word(r->conf->live.log_level));
	return 0;
}

const char *
reload_own_level(const struct reload *r)
{
	return r->own_level;
}

/* Mostly the table is out at once.  Else readers hold all arenas, and reload_turn() comes back. */
static void
put_in_force(struct reload *r)
{
	r->phase = RP_PUBLISHING;
	fleet_apply(r->parts.fleet, r->cur.conf, r->number + 1);
	if (fleet_published(r->parts.fleet))
		published(r);
}

/* --- the way of a candidate --------------------------------------------------------------------- */

static void
on_kept(void *arg, const char *key, int line)
{
	struct reload *r = arg;
	struct candidate *c = &r->next;
	const char *before = c->notes != NULL ? c->notes : "",
		   *path = c->conf->path != NULL ? c->conf->path : "";
	char *notes;

	log_warn("this key needs a restart, the old value stays", LOG_S("file", path),
		LOG_I("line", line), LOG_S("key", key));
	notes = mem_printf(
		"%s%s:%d: %s: needs a restart, the old value stays\n", before, path, line, key);
	free(c->notes);
	c->notes = notes;
}

static void
on_late(evutil_socket_t fd, short what, void *arg)
{
	struct reload *r = arg;

	(void)fd;
	(void)what;
	if (r->phase != RP_STARTING || r->number == 0)
		return;
	(void)snprintf(r->error, sizeof(r->error),
		"the workers of the new configuration were not ready after %d s", START_MS / 1000);
	r->phase = RP_ABORTING;
	procs_generation_quit(r->parts.procs, r->cur_generation);
}

/* Writes the error with the file, the key and its line. */
static void
listen_error(const struct conf *conf, const struct listen_error *e, char *out, size_t size)
{
	static const char *const keys[LISTEN_N] = {"listen", "tls.listen", "admin.listen"};
	struct conf_error err = {.line = 0};

	(void)snprintf(err.file, sizeof(err.file), "%s", conf->path != NULL ? conf->path : "");
	(void)snprintf(err.key, sizeof(err.key), "%s", keys[e->list]);
	(void)snprintf(err.what, sizeof(err.what), "%s", e->text);
	for (size_t i = 0; i < conf_root_keys.n; i++)
		if (strcmp(conf_root_keys.key[i].path, err.key) == 0)
			err.line = conf->key_lines[i];
	(void)conf_error_text(&err, out, size);
}

static void
on_opened(void *arg, struct door_fd *fds, size_t n, const struct listen_error *error)
{
	static const struct timeval late = {.tv_sec = START_MS / 1000};
	struct reload *r = arg;

	if (fds == NULL) {
		listen_error(r->cur.conf, error, r->error, sizeof(r->error));
		refuse(r);
		return;
	}
	r->cur_fds = fds;
	r->cur_nfds = n;
	r->cur_generation = procs_generation_start(r->parts.procs, r->cur.conf, fds, n);
	r->phase = RP_STARTING;
	(void)evtimer_add(r->ev_late, &late);
}

/* The configuration in force with its files as they are now: what differs, as conf_diff(). */
static int
read_again(struct reload *r, struct candidate *c, struct conf_error *err)
{
	int classes = -1;

	if (mem_has_room(MEM_ROOM) && conf_again(r->parts.args, r->conf, &c->conf, err) == 0)
		classes = conf_diff(r->conf, c->conf, NULL, NULL, err);
	if (classes >= 0 && fleet_check(r->parts.fleet, c->conf, err) != 0)
		classes = -1;
	return classes;
}

/* The certificates in force stay; `c` takes the place of r->conf, which is freed with the ones that were read. */
static void
keep_certificates(struct reload *r, struct conf *c)
{
	const struct conf_tls read = c->tls;

	c->tls = r->conf->tls;
	r->conf->tls = read;
	/* the same text: it has the same pools */
	for (size_t i = 0; i < c->npools && i < r->conf->npools; i++) {
		const struct conf_engine_tls of_pool = c->pools[i].tls;

		c->pools[i].tls = r->conf->pools[i].tls;
		r->conf->pools[i].tls = of_pool;
	}
}

/*
 * While `next` waits for old generations to end, what needs no generation does not.  Certificates come with `next`.
 * `classes`: what differs in `c`, -1: it could not be read.
 */
static void
put_before_next(struct reload *r, struct candidate *c, int classes)
{
	if (classes < 0 || (classes & CONF_LIVE) == 0) {
		candidate_drop(c);
		return;
	}
	keep_certificates(r, c->conf);
	log_info("changed files are in force now, the reload still waits");
	r->cur = *c;
	put_in_force(r);
}

/* Other files than those in force come with `next`. */
static bool
has_same_key_files(const struct conf *a, const struct conf *b)
{
	bool same = true, any = false;

	for (enum door door = 0; door < DOOR_N; door++) {
		same = same && mem_text_equal(a->api_keys_file[door], b->api_keys_file[door]);
		any = any || a->api_keys_file[door] != NULL;
	}
	return same && any;
}

static void
swap_keys_text(struct conf *a, struct conf *b)
{
	for (enum door door = 0; door < DOOR_N; door++) {
		const struct conf_text text = a->api_keys_text[door];

		a->api_keys_text[door] = b->api_keys_text[door];
		b->api_keys_text[door] = text;
	}
}

/* `next` waits, but a key that was revoked counts at once: the api_keys_file as `next` has read it, with all else that is
 * in force.  Keys that do not fit that wait, too. */
static void
put_keys_before_next(struct reload *r)
{
	struct candidate c = {.asked_us = r->next.asked_us};
	struct conf_error err = {.line = 0};
	char text[600];
	int classes;

	if (!has_same_key_files(r->conf, r->next.conf))
		return;
	swap_keys_text(r->conf, r->next.conf);
	classes = read_again(r, &c, &err);
	swap_keys_text(r->conf, r->next.conf);
	if (classes < 0)
		log_warn("API keys cannot be read before the waiting reload: the old ones stay",
			LOG_S("error", conf_error_text(&err, text, sizeof(text))));
	put_before_next(r, &c, classes);
}

/* Makes `next` the active candidate, or leaves it waiting. */
static void
begin(struct reload *r)
{
	struct conf_error err = {.line = 0};
	int classes = conf_diff(r->conf, r->next.conf, on_kept, r, &err);

	if (classes >= 0 && fleet_check(r->parts.fleet, r->next.conf, &err) != 0)
		classes = -1;
	r->waits = classes > 0 && (classes & CONF_GENERATION) &&
		   !procs_generation_fits(r->parts.procs, r->next.conf);
	if (r->waits) {
		log_info("reload waits: old generations of workers have all process slots",
			LOG_U("attempt", r->next.attempt),
			LOG_U("generations", procs_generations(r->parts.procs)),
			LOG_U("most", GENERATIONS_MAX));
		procs_make_room(r->parts.procs, r->next.conf);
		put_keys_before_next(r);
		return;
	}
	r->cur = r->next;
	r->next = (struct candidate){.conf = NULL};
	if (classes < 0) {
		(void)conf_error_text(&err, r->error, sizeof(r->error));
		refuse(r);
	} else if (classes & CONF_GENERATION) {
		r->phase = RP_OPENING;
		listeners_open(r->parts.listeners, r->cur.conf, on_opened, r);
	} else {
		put_in_force(r);
	}
}

/*
 * A watched endpoints_file, fleet_file, api_keys_file or file of tls has changed.  Reads the text of the configuration in force again, with the current
 * files.  Attempt 0: no client waits for this reload.
 */
static void
read_files(struct reload *r)
{
	struct candidate c = {.asked_us = r->files_us};
	struct conf_error err = {.line = 0};
	char text[600];
	int classes;

	if (!mem_has_room(MEM_ROOM)) {
		failed(r, 0, true, "out of memory");
		return;
	}
	classes = read_again(r, &c, &err);
	if (classes < 0)
		failed(r, 0, true, conf_error_text(&err, text, sizeof(text)));
	if (r->next.conf != NULL) { /* it has been read again, with these files */
		put_before_next(r, &c, classes);
		return;
	}
	if (classes <= 0) {
		candidate_drop(&c);
		return;
	}
	if (classes & CONF_GENERATION) {
		log_info("a watched file of tls has changed");
		r->next = c;
		r->waits = false;
		begin(r);
		return;
	}
	log_info("a watched file has changed");
	r->cur = c;
	put_in_force(r);
}

/* Reads the waiting candidate again, so that it does not restore an older endpoints_file. */
static void
refresh_next(struct reload *r)
{
	struct conf_error err;
	struct conf *conf;

	if (r->next.conf == NULL || r->next.conf->text == NULL ||
		conf_again(r->parts.args, r->next.conf, &conf, &err) != 0)
		return;
	conf_free(&r->next.conf);
	free(r->next.notes);
	r->next.conf = conf;
	r->next.notes = NULL; /* begin() writes the notes again */
}

void
reload_turn(struct reload *r)
{
	/* a request during the start waits for the end of the start */
	if (r->phase >= RP_LEFT || r->number == 0)
		return;
	if (r->requested && !r->held) {
		r->requested = false;
		if (!r->telling)
			sd_tell_reloading(r->parts.sd);
		r->telling = true;
		read_next(r);
	}
	if (r->phase == RP_PUBLISHING && fleet_published(r->parts.fleet))
		published(r);
	if (r->next.conf != NULL && r->phase == RP_IDLE && !r->held &&
		(!r->waits || procs_generation_fits(r->parts.procs, r->next.conf)))
		begin(r);
	if (r->files && r->phase == RP_IDLE && !r->held) {
		r->files = false;
		refresh_next(r);
		read_files(r);
	}
	if (r->telling && r->phase == RP_IDLE && r->next.conf == NULL) {
		r->telling = false;
		sd_tell_ready(r->parts.sd);
		listeners_store(r->parts.listeners, r->parts.sd);
	}
}

uint64_t
reload_request(struct reload *r)
{
	if (r->phase >= RP_LEFT)
		return 0;
	if (!r->requested)
		r->asked_us = clock_us();
	r->requested = true;
	return r->attempt + 1;
}

/* --- what a reload would do ---------------------------------------------------------------------- */

static void
put_cost(const struct reload *r, const struct conf *next, struct conf_cost cost,
	struct evbuffer *out)
{
	if (cost.live + cost.generation + cost.restart == 0)
		(void)evbuffer_add_printf(out, "A reload would change nothing.\n");
	if (cost.live > 0)
		(void)evbuffer_add_printf(
			out, "%u live: at once, no worker is replaced for it\n", cost.live);
	if (cost.generation > 0)
		(void)evbuffer_add_printf(out,
			"%u new generation: %u workers start, the old ones finish their requests\n",
			cost.generation, next->workers);
	if (cost.generation > 0 && !procs_generation_fits(r->parts.procs, next))
		(void)evbuffer_add_printf(out,
			"It would cut requests: old generations have all slots, the oldest must "
			"end in drain_timeout.\n");
	if (cost.restart > 0)
		(void)evbuffer_add_printf(
			out, "%u restart: a reload keeps the old value\n", cost.restart);
}

int
reload_preview(struct reload *r, bool dry_run, struct evbuffer *out, char *error, size_t size)
{
	struct conf_error err = {.line = 0};
	struct conf *next = NULL;
	struct conf_cost cost;
	char *text = NULL;
	size_t n = 0;
	FILE *f;
	int rc = -1;

	if (reload_read(r->parts.args, r->conf, &next, &err) == 0) {
		do
			f = open_memstream(&text, &n);
		while (f == NULL && mem_give_up_reserve());
		assert(f != NULL);
		cost = conf_changes(r->conf, next, f);
		(void)fclose(f);
		if (conf_diff(r->conf, next, NULL, NULL, &err) >= 0 &&
			fleet_check(r->parts.fleet, next, &err) == 0)
			rc = 0;
		if (rc == 0 || !dry_run)
			(void)evbuffer_add(out, text, n);
		if (rc == 0 && dry_run)
			put_cost(r, next, cost, out);
		free(text);
		conf_free(&next);
	}
	if (rc != 0)
		(void)conf_error_text(&err, error, size);
	return rc;
}

/* --- generations -------------------------------------------------------------------------------- */

void
reload_generation_ready(struct reload *r, uint32_t generation)
{
	if (r->phase != RP_STARTING ||
		generation != (r->number == 0 ? r->generation : r->cur_generation))
		return;
	(void)evtimer_del(r->ev_late);
	if (r->number != 0) {
		put_in_force(r);
		return;
	}
	r->number = 1;
	r->phase = RP_IDLE;
	log_info("configuration in force", LOG_U("config", r->number),
		LOG_U("generation", generation));
	sd_tell_ready(r->parts.sd);
	listeners_store(r->parts.listeners, r->parts.sd);
}

void
reload_generation_refused(struct reload *r, uint32_t generation)
{
	if (r->phase != RP_STARTING)
		return;
	(void)evtimer_del(r->ev_late);
	(void)snprintf(r->error, sizeof(r->error),
		"a worker cannot run with this configuration: see the log");
	if (r->number == 0) {
		r->hooks.fatal(r->hooks.arg, r->error);
	} else if (generation == r->cur_generation) {
		r->phase = RP_ABORTING;
		procs_generation_quit(r->parts.procs, generation);
	}
}

/* The fleet has the candidate already: it takes the configuration in force again, under a number of its own. */
static void
put_back(struct reload *r)
{
	(void)snprintf(
		r->error, sizeof(r->error), "the new workers have ended before they could serve");
	r->number += 2;
	fleet_apply(r->parts.fleet, r->conf, r->number);
	refuse(r);
}

void
reload_generation_gone(struct reload *r, uint32_t generation)
{
	if (r->phase == RP_ABORTING && generation == r->cur_generation)
		refuse(r);
	else if (r->phase == RP_PUBLISHING && generation == r->cur_generation)
		put_back(r);
	else if (r->phase < RP_LEFT && generation == r->generation)
		r->hooks.fatal(
			r->hooks.arg, "no worker is left that can run with this configuration");
}

/* --- several instances ------------------------------------------------------------------------- */

void
reload_hold(struct reload *r, bool hold)
{
	r->held = hold;
}

bool
reload_is_idle(const struct reload *r)
{
	return r->phase == RP_IDLE;
}

void
reload_leave(struct reload *r)
{
	assert(r->phase == RP_IDLE);
	r->phase = RP_LEFT;
	r->requested = false;
	candidate_drop(&r->next);
	r->hooks.done(r->hooks.arg, r->attempt + 1, false,
		"an upgrade has replaced this instance: reload the new one", "");
}

void
reload_resume(struct reload *r)
{
	assert(r->phase == RP_LEFT);
	r->phase = RP_IDLE;
	r->generation = procs_generation_start(r->parts.procs, r->conf, r->fds, r->nfds);
	procs_conf_set(r->parts.procs, r->conf, r->generation);
}

const struct conf *
reload_conf(const struct reload *r)
{
	return r->conf;
}

void
reload_keep_listeners(const struct reload *r)
{
	if (r->phase == RP_IDLE)
		listeners_keep(r->parts.listeners, r->conf, r->fds, r->nfds);
}

/* --- start and stop ----------------------------------------------------------------------------- */

static void
on_first_opened(void *arg, struct door_fd *fds, size_t n, const struct listen_error *error)
{
	struct reload *r = arg;
	struct conf_error err;

	if (fds == NULL) {
		listen_error(r->conf, error, r->error, sizeof(r->error));
		r->hooks.fatal(r->hooks.arg, r->error);
		return;
	}
	r->fds = fds;
	r->nfds = n;
	if (fleet_check(r->parts.fleet, r->conf, &err) != 0) {
		(void)conf_error_text(&err, r->error, sizeof(r->error));
		r->hooks.fatal(r->hooks.arg, r->error);
		return;
	}
	r->phase = RP_STARTING;
	settings_put(r->parts.seg, &r->conf->live);
	/* before any worker starts: no worker may see an empty table */
	fleet_apply(r->parts.fleet, r->conf, 1);
	r->generation = procs_generation_start(r->parts.procs, r->conf, fds, n);
	procs_conf_set(r->parts.procs, r->conf, r->generation);
	listeners_keep(r->parts.listeners, r->conf, fds, n);
	watch_files(r);
}

void
reload_first(struct reload *r, struct conf *conf)
{
	r->conf = conf;
	r->phase = RP_OPENING;
	listeners_open(r->parts.listeners, conf, on_first_opened, r);
}

void
reload_stop(struct reload *r)
{
	if (r->phase == RP_STOPPED)
		return;
	listeners_cancel(r->parts.listeners);
	(void)evtimer_del(r->ev_late);
	r->phase = RP_STOPPED;
	r->requested = false;
	r->hooks.done(r->hooks.arg, r->attempt + 1, false, "pdrouter is stopping", "");
}

struct reload *
reload_new(const struct reload_parts *parts, const struct reload_hooks *hooks)
{
	struct reload *r = MEM_NEW(struct reload);

	r->parts = *parts;
	r->hooks = *hooks;
	r->ev_late = evtimer_new(parts->base, on_late, r);
	assert(r->ev_late != NULL);
	r->watch = watch_new(parts->base, on_files, r);
	return r;
}

void
reload_free(struct reload **pr)
{
	struct reload *r = *pr;

	if (r == NULL)
		return;
	event_free(r->ev_late);
	watch_free(&r->watch);
	candidate_drop(&r->next);
	candidate_drop(&r->cur);
	conf_free(&r->conf);
	free(r->fds);
	free(r->cur_fds);
	free(r);
	*pr = NULL;
}

uint64_t
reload_number(const struct reload *r)
{
	return r->number;
}

const char *
reload_phase(const struct reload *r)
{
	return r->number == 0 ? "starting" : phase_name[r->phase];
}
