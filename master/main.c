/*
 * pdrouter: the wiring.  The only file that includes every room: options, the start-up steps in order, the
 * table of child kinds, and the master's loop.
 */
#include <assert.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "master/config/conf.h"
#include "master/config/conf_address.h"
#include "master/exporter/exporter.h"
#include "master/supervise/child.h"
#include "master/supervise/control.h"
#include "master/supervise/drains.h"
#include "master/supervise/identity.h"
#include "master/supervise/inherit.h"
#include "master/fleet/explain.h"
#include "master/fleet/cached.h"
#include "master/fleet/fleet.h"
#include "master/fleet/siblings.h"
#include "master/fleet/requests.h"
#include "master/fleet/status.h"
#include "master/fleet/waiters.h"
#include "master/supervise/listen.h"
#include "master/notifier/notifier.h"
#include "master/supervise/procs.h"
#include "master/supervise/reload.h"
#include "master/probe/resolve.h"
#include "master/supervise/sandbox.h"
#include "master/supervise/sd.h"
#include "master/supervise/takeover.h"
#include "master/supervise/upgrade.h"
#include "master/topology/source.h"
#include "proto/tls/wipe.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/check.h"
#include "shm/metrics.h"
#include "shm/tickets.h"
#include "shm/usage.h"
#include "shm/core/seg.h"
#include "shm/core/suspect.h"
#include "worker/worker.h"

static uint32_t
worker_count(const struct conf *conf)
{
	return conf->workers;
}

static const char *
notifier_key(const struct conf *conf)
{
	return conf->notifier_key;
}

static const char *
exporter_key(const struct conf *conf)
{
	return conf->trace_otlp;
}

/* clang-format off */
static const struct proc_kind kinds[] = {
	{ .name = "worker",   .main = worker_main,   .count = worker_count,        .restarts = M_WORKER_RESTARTS,
	  .sandbox = SANDBOX_WORKER },
	{ .name = "notifier", .main = notifier_main, .identity = notifier_key, .restarts = M_NOTIFIER_RESTARTS,
	  .drains_last = true /* draining workers wait for notices */, .sandbox = SANDBOX_NOTIFIER },
	{ .name = "exporter", .main = exporter_main, .identity = exporter_key, .restarts = M_EXPORTER_RESTARTS,
	  .drains_last = true /* draining workers end spans */, .sandbox = SANDBOX_EXPORTER },
	{ .name = NULL },
};
/* clang-format on */

/* A service of systemd that stops within this time may be restarting: until then new connections wait in the sockets, of
 * which systemd has a copy. */
#define SHUT_S 1

struct master {
	struct conf_args args;
	char **argv;
	struct inherit inherit; /* what an older instance has passed */
	struct conf *first;     /* until reload_first() takes it */
	struct identity as;     /* of children */
	struct seg *seg;
	struct usage usage;
	int *wake_fds; /* [process slots] */
	struct event_base *base;
	int signals; /* signalfd */
	struct event *ev_signals;
	struct sd *sd;
	struct resolver *resolver;
	struct listeners *listeners;
	struct waiters *waiters;
	struct fleet *fleet;
	struct procs *procs;
	struct reload *reload;
	struct control *control;
	struct takeover *takeover;
	struct drains *drains;
	struct upgrade *upgrade;
	struct event *ev_check; /* debug builds */
	struct event *ev_mend;
	struct check_cursor mended; /* how far */
	struct event *ev_shut;      /* refuses new clients */
	bool shut;                  /* fact: it has */
	bool short_of_memory;       /* fact: the reserve could not be had again */
	uint64_t started_ms;
	bool stopping;
	int code; /* to exit with */
};

/* --- hooks of the other rooms --------------------------------------------------------- */

static void
on_shut(evutil_socket_t fd, short what, void *arg)
{
	struct master *m = arg;

	(void)fd;
	(void)what;
	listeners_keep(m->listeners, NULL, NULL, 0);
	m->shut = true;
}

static void
stop(struct master *m, int code)
{
	static const struct timeval later = {.tv_sec = SHUT_S};

	m->stopping = true;
	m->code = code;
	sd_tell_stopping(m->sd);
	upgrade_stop(m->upgrade, false);
	takeover_stop(m->takeover, false);
	reload_stop(m->reload);
	procs_stop(m->procs);
	/* after CH_DRAIN was sent: no process accepts any more, and new clients must be refused */
	if (sd_is_there(m->sd) && m->ev_shut != NULL)
		(void)evtimer_add(m->ev_shut, &later);
	else
		listeners_keep(m->listeners, NULL, NULL, 0);
}

static void
stop_now(struct master *m)
{
	if (!m->stopping)
		stop(m, EXIT_SUCCESS);
	upgrade_stop(m->upgrade, true);
	takeover_stop(m->takeover, true);
	procs_stop_now(m->procs);
}

/* Another instance stops. */
static void
on_other_stops(void *arg, bool now)
{
	struct master *m = arg;

	log_info("stopping with another instance", LOG_S("how", now ? "at once" : "drain"));
	if (now)
		stop_now(m);
	else if (!m->stopping)
		stop(m, EXIT_SUCCESS);
}

/* The older instance serves on; nothing was begun here that has to be finished. */
static void
on_not_wanted(void *arg)
{
	struct master *m = arg;

	log_error("the older instance does not wait for this one");
	if (!m->stopping)
		stop(m, EXIT_FAILURE);
	procs_stop_now(m->procs);
}

/* It may be that the older instance can. */
static void
on_fatal(void *arg, const char *error)
{
	struct master *m = arg;
	bool instead;

	log_error("pdrouter cannot go on", LOG_S("error", error));
	if (m->stopping)
		return;
	instead = takeover_give_up(m->takeover, error);
	stop(m, EXIT_FAILURE);
	if (instead)
		procs_stop_now(m->procs); /* the sooner the older one serves again */
}

static void
permit(struct master *m, const struct conf *conf)
{
	control_permit(m->control, conf->control_mode, conf->control_group);
}

static void
on_reload_done(void *arg, uint64_t attempt, bool exact, const char *error, const char *notes)
{
	struct master *m = arg;

	if (error == NULL)
		permit(m, reload_conf(m->reload));
	control_reloaded(m->control, attempt, exact, error, notes);
}

static void
on_ready(void *arg, uint32_t generation)
{
	struct master *m = arg;

	reload_generation_ready(m->reload, generation);
}

static void
on_refused(void *arg, uint32_t generation)
{
	struct master *m = arg;

	reload_generation_refused(m->reload, generation);
}

static void
on_gone(void *arg, uint32_t generation)
{
	struct master *m = arg;

	log_info("generation gone", LOG_U("generation", generation));
	reload_generation_gone(m->reload, generation);
}

static void
on_reaped(void *arg)
{
	struct master *m = arg;

	fleet_worker_reaped(m->fleet);
	waiters_wake_again(m->waiters);
}

static uint64_t
ctl_reload(void *arg)
{
	struct master *m = arg;

	return reload_request(m->reload);
}

static const char *
ctl_upgrade(void *arg)
{
	return upgrade_start(((struct master *)arg)->upgrade, "pdctl upgrade");
}

static int
ctl_preview(void *arg, bool dry_run, struct evbuffer *out, char *error, size_t size)
{
	return reload_preview(((struct master *)arg)->reload, dry_run, out, error, size);
}

static int
ctl_explain(void *arg, const char *what, const char *prompt, size_t n, struct evbuffer *out)
{
	return explain(((struct master *)arg)->fleet, what, prompt, n, out);
}

static struct requests *
ctl_requests(void *arg, bool find, const char *what, struct evbuffer *out)
{
	return requests_new(((struct master *)arg)->fleet, find, what, out);
}

static int
ctl_log_level(void *arg, const char *word, struct evbuffer *out)
{
	return reload_log_level(((struct master *)arg)->reload, word, out);
}

static void
ctl_workers(void *arg, struct evbuffer *out)
{
	struct master *m = arg;

	procs_status(m->procs, out, false);
}

static void
ctl_prefix(void *arg, struct evbuffer *out)
{
	fleet_cached(((struct master *)arg)->fleet, out);
}

static void
ctl_drain(void *arg, enum drain_what what, uint64_t ticket, const char *words)
{
	drains_ask(((struct master *)arg)->drains, what, ticket, words);
}

static void
ctl_forget_drain(void *arg, uint64_t ticket)
{
	drains_forget(((struct master *)arg)->drains, ticket);
}

static void
on_drained(void *arg, uint64_t ticket, struct evbuffer *text, const char *error)
{
	control_drained(((struct master *)arg)->control, ticket, text, error);
}

static void
on_older_said(void *arg, uint64_t number, const struct drain_left *left)
{
	drains_said(((struct master *)arg)->drains, number, left);
}

static void
on_older_gone(void *arg, uint64_t said)
{
	drains_gone(((struct master *)arg)->drains, said);
}

static void
ctl_status(void *arg, struct evbuffer *out, bool json)
{
	struct master *m = arg;
	const char *own = reload_own_level(m->reload);

	(void)evbuffer_add_printf(out,
		json ? "{\"version\":\"%s\",\"state\":\"%s\",\"config\":%llu,\"uptime_s\":%llu,\"generations\":%u,"
		       "\"instance\":%u,\"pid\":%ld,\"older\":"
		     : "pdrouter %s state=%s config=%llu uptime=%llus generations=%u instance=%u pid=%ld\n",
		PDROUTER_VERSION, reload_phase(m->reload),
		(unsigned long long)reload_number(m->reload),
		(unsigned long long)((clock_ms() - m->started_ms) / 1000),
		procs_generations(m->procs), m->seg->hdr->instance, (long)getpid());
	if (!json && own != NULL)
		(void)evbuffer_add_printf(out, "log_level=%s by pdctl\n", own);
	takeover_status(m->takeover, out, json);
	if (json)
		(void)evbuffer_add_printf(out, ",\"log_level_set\":%s%s%s", own != NULL ? "\"" : "",
			own != NULL ? own : "null", own != NULL ? "\"" : "");
	if (json)
		(void)evbuffer_add_printf(out, ",\"processes\":");
	procs_status(m->procs, out, json);
	if (json)
		(void)evbuffer_add_printf(out, ",\"fleet\":");
	fleet_status(m->fleet, out, json);
	if (json)
		(void)evbuffer_add_printf(out, ",\"siblings\":");
	if (json)
		siblings_json(m->fleet, out);
	if (json)
		(void)evbuffer_add_printf(out, "}");
}

/* --- the checker of the shared memory ----------------------------------------------------------- */

#define WALKS_AFTER_FINDINGS 2 /* one is half done */

static unsigned
look_over(struct master *m, check_report *report, void *arg)
{
	const unsigned n = check_segment(m->seg, seg_build(), fleet_writer(m->fleet), report, arg);

	if (n > 0)
		m->mended.whole = WALKS_AFTER_FINDINGS;
	return n;
}

static void
put_finding(const char *line, void *arg)
{
	(void)evbuffer_add_printf(arg, "%s\n", line);
}

static unsigned
ctl_check(void *arg, struct evbuffer *out)
{
	return look_over(arg, put_finding, out);
}

#ifdef PDROUTER_DEBUG
#define CHECK_S 1

static void
log_finding(const char *line, void *arg)
{
	(void)arg;
	log_error("invariant broken", LOG_S("finding", line));
}

static void
on_check(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)look_over(arg, log_finding, NULL);
}
#endif

/* An allocation may have taken the reserve. */
static void
have_reserve(struct master *m)
{
	uint64_t *counter = &seg_slab(m->seg, SLOT_MASTER(m->seg))->counters[M_OUT_OF_MEMORY];
	const bool had = mem_has_reserve();

	if (!had && !m->short_of_memory)
		log_error("out of memory: the reserve is in use", LOG_U("bytes", MEM_RESERVE));
	if (!had)
		m->short_of_memory = !mem_reserve(MEM_RESERVE, counter);
	if (!had && !m->short_of_memory)
		log_info("memory is available again");
}

#define MEND_MS 100
#define MEND_US 100       /* of each MEND_MS: a walk takes 1 ms at the default sizes */
#define MEND_WHOLE_US 500 /* after findings */

static void
on_mend(evutil_socket_t fd, short what, void *arg)
{
	struct master *m = arg;

	(void)fd;
	(void)what;
	check_mend(m->seg, &m->mended, m->mended.whole > 0 ? MEND_WHOLE_US : MEND_US);
	tickets_keep(m->seg, clock_ms());
	have_reserve(m);
	usage_report(&m->usage, m->seg, SLOT_MASTER(m->seg), clock_ms(), 0);
}

/* --- signals ------------------------------------------------------------------------------------ */

static void
on_signal(struct master *m, uint32_t sig)
{
	const char *why = NULL;

	if (sig == SIGCHLD) {
		procs_sigchld(m->procs);
		fleet_sigchld(m->fleet);
		upgrade_sigchld(m->upgrade);
	} else if (sig == SIGUSR2) {
		why = upgrade_start(m->upgrade, "SIGUSR2");
		if (why != NULL)
			log_warn("no upgrade", LOG_S("reason", why));
	} else if (sig == SIGHUP) {
		(void)reload_request(m->reload);
	} else if (!m->stopping && sig != SIGQUIT) {
		log_info("stopping: streams may finish", LOG_S("signal", sigabbrev_np((int)sig)));
		stop(m, EXIT_SUCCESS);
	} else {
		log_info("stopping at once", LOG_S("signal", sigabbrev_np((int)sig)));
		stop_now(m);
	}
}

static void
on_signals(evutil_socket_t fd, short what, void *arg)
{
	struct signalfd_siginfo info;

	(void)what;
	while (read(fd, &info, sizeof(info)) == (ssize_t)sizeof(info))
		on_signal(arg, info.ssi_signo);
}

/* --- the steps of the start; each logs its own failure and returns -1 ---------------------------- */

static void
log_note(void *arg, const char *flag, const char *why)
{
	(void)arg;
	log_info("flag of another router", LOG_S("flag", flag), LOG_S("note", why));
}

/* What an older instance passes.  Descriptors that are not named are of no use. */
static int
step_inherit(struct master *m)
{
	const char *text = getenv(INHERIT_ENV), *why;

	inherit_init(&m->inherit);
	if (text == NULL)
		return 0;
	if (inherit_parse(text, &m->inherit, &why) != 0) {
		log_error("what the older instance has passed on cannot be read",
			LOG_S("variable", INHERIT_ENV), LOG_S("error", why));
		return -1;
	}
	(void)unsetenv(INHERIT_ENV);
	(void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
	takeover_report_errors(&m->inherit);
	return 0;
}

static void
log_begin_journal(const struct conf *c)
{
	int err = c->log_to == LOG_TO_JOURNALD ? log_to_journal(LOG_JOURNAL) : 0;

	if (err != 0)
		log_warn("journald does not accept log lines, they go to stderr",
			LOG_S("error", strerror(err)));
}

static int
step_configuration(struct master *m)
{
	struct conf_error err = {.line = 0};
	char text[600];

	if (reload_read(&m->args, NULL, &m->first, &err) == 0) {
		log_setup(m->first->live.log_level, m->first->live.log_format);
		log_begin_journal(m->first);
		conf_args_notes(&m->args, log_note, NULL);
		return 0;
	}
	(void)fprintf(stderr, "%s\n", conf_error_text(&err, text, sizeof(text)));
	return -1;
}

static int
step_identity(struct master *m)
{
	char error[600];

	if (identity_find(m->first, &m->as, error, sizeof(error)) == 0)
		return 0;
	log_error("cannot run as this user or group", LOG_S("error", error));
	return -1;
}

/* Of each worker's ring for other routers. */
static uint32_t
sibling_bytes(const struct conf *c)
{
	return c->siblings_listen == NULL
		       ? 0
		       : (uint32_t)((c->siblings_ring_bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE);
}

static int
step_memory(struct master *m)
{
	struct seg_sizes sizes = {.max_workers = m->first->max_workers,
		.max_endpoints = m->first->max_endpoints,
		.max_pools = m->first->max_pools,
		.flags_per_worker = m->first->flags_per_worker,
		.max_quotas = m->first->client_entries,
		.queue_slots = m->first->queue_slots,
		.max_api_keys = m->first->max_api_keys,
		.span_bytes = (uint32_t)((m->first->trace_ring_bytes + SHM_LINE - 1) / SHM_LINE *
					 SHM_LINE),
		.running_requests = m->first->running_requests,
		/* with as many workers as now the rings have as many as are configured */
		.kept_requests =
			(m->first->recent_requests + m->first->workers - 1) / m->first->workers,
		.prefix_buckets = (uint32_t)(m->first->prefix_index_bytes / SHM_LINE *
					     (SHM_LINE / sizeof(struct prefix_bucket))),
		.sibling_bytes = sibling_bytes(m->first),
		.instance = m->inherit.instance != 0 ? m->inherit.instance : 1};
	struct seg_part parts[SEG_NPARTS];
	int r;

	if (m->first->siblings_key != NULL)
		memcpy(sizes.prefix_seed, m->first->siblings_key->digest,
			sizeof(sizes.prefix_seed));
	r = seg_new(&sizes, seg_build(), &m->seg);
	if (r < 0) {
		log_error("no shared memory", LOG_S("error", strerror(-r)),
			LOG_U("bytes", seg_size(&sizes, NULL)));
		return -1;
	}
	tickets_keep(m->seg, clock_ms());
	(void)seg_size(&sizes, parts);
	for (int i = 0; i < SEG_NPARTS; i++)
		log_debug("shared memory part", LOG_S("part", parts[i].name),
			LOG_U("offset", parts[i].offset), LOG_U("bytes", parts[i].bytes));
	log_info("shared memory", LOG_U("bytes", m->seg->hdr->bytes),
		LOG_U("slots", m->seg->hdr->nslots), LOG_U("max_endpoints", sizes.max_endpoints));
	proc_slot_set(m->seg, SLOT_MASTER(m->seg), (uint64_t)getpid(), PROC_READY, 0);
	usage_begin(&m->usage);
	log_init("master", SLOT_MASTER(m->seg));
	log_count_dropped(&seg_slab(m->seg, SLOT_MASTER(m->seg))->counters[M_LOG_DROPPED]);
	(void)mem_reserve(
		MEM_RESERVE, &seg_slab(m->seg, SLOT_MASTER(m->seg))->counters[M_OUT_OF_MEMORY]);
	suspect_begin(&seg_slab(m->seg, SLOT_MASTER(m->seg))->counters[M_REPAIRED_READERS],
		child_log_suspect);
	return 0;
}

/* One eventfd per process slot, made before any fork: all processes of a slot use the same eventfd. */
static int
step_eventfds(struct master *m)
{
	uint32_t n = m->seg->hdr->nslots;

	m->wake_fds = mem_array(n, sizeof(int));
	for (uint32_t i = 0; i < n; i++)
		m->wake_fds[i] = -1;
	for (uint32_t i = 0; i < n; i++) {
		m->wake_fds[i] = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		if (m->wake_fds[i] == -1) {
			log_error("eventfd", LOG_S("error", strerror(errno)));
			return -1;
		}
	}
	return 0;
}

static void
on_libevent_log(int severity, const char *msg)
{
	if (severity >= EVENT_LOG_WARN)
		log_warn("libevent", LOG_S("message", msg));
}

/* Signals are read from a signalfd, so no handler can run in a child after a fork. */
static int
step_loop(struct master *m)
{
	sigset_t set;

	event_set_log_callback(on_libevent_log);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGCHLD);
	(void)sigaddset(&set, SIGHUP);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGQUIT);
	(void)sigaddset(&set, SIGUSR2);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	(void)signal(SIGUSR2, SIG_DFL); /* an ignored signal is not queued */
	m->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
	m->base = event_base_new();
	if (m->signals == -1 || m->base == NULL) {
		log_error("no event loop", LOG_S("error", strerror(errno)));
		return -1;
	}
	m->ev_signals = event_new(m->base, m->signals, EV_READ | EV_PERSIST, on_signals, m);
	assert(m->ev_signals != NULL);
	(void)event_add(m->ev_signals, NULL);
	m->sd = sd_new(m->base);
	m->ev_shut = evtimer_new(m->base, on_shut, m);
	assert(m->ev_shut != NULL);
	return 0;
}

static int
step_parts(struct master *m)
{
	struct procs_hooks on_procs = {on_ready, on_refused, on_gone, on_reaped, m};
	struct reload_hooks outcome = {on_fatal, on_reload_done, m};
	struct takeover_hooks on_older = {
		on_not_wanted, on_fatal, on_other_stops, on_older_said, on_older_gone, m};
	struct upgrade_hooks on_newer = {on_other_stops, m};
	struct reload_parts parts = {.base = m->base, .args = &m->args, .seg = m->seg, .sd = m->sd};

	m->resolver = resolver_new(m->base);
	m->listeners = parts.listeners = listeners_new(m->resolver, &m->inherit);
	m->waiters = waiters_new(m->base, m->seg, m->wake_fds);
	m->fleet = parts.fleet = fleet_new(m->base, m->seg);
	fleet_waiters(m->fleet, m->waiters);
	fleet_hear(m->fleet, m->wake_fds[SLOT_MASTER(m->seg)]);
	m->procs = parts.procs = procs_new(m->base, m->seg, kinds, m->wake_fds, &on_procs);
	procs_identity(m->procs, &m->as);
	m->reload = reload_new(&parts, &outcome);
	m->takeover = takeover_new(&(struct takeover_parts){m->base, m->seg, m->sd, m->listeners,
					   m->fleet, m->procs, m->reload, &m->control, &m->inherit},
		&on_older);
	m->drains =
		drains_new(m->base, m->fleet, m->takeover, &(struct drains_hooks){on_drained, m});
	m->upgrade =
		upgrade_new(&(struct upgrade_parts){m->base, m->argv, m->seg, m->sd, m->listeners,
				    m->fleet, m->procs, m->reload, m->takeover, &m->control},
			&on_newer);
	return 0;
}

static int
step_control(struct master *m)
{
	struct control_hooks hooks = {.reload = ctl_reload,
		.upgrade = ctl_upgrade,
		.preview = ctl_preview,
		.explain = ctl_explain,
		.requests = ctl_requests,
		.log_level = ctl_log_level,
		.status = ctl_status,
		.workers = ctl_workers,
		.prefix = ctl_prefix,
		.drain = ctl_drain,
		.forget_drain = ctl_forget_drain,
		.check = ctl_check,
		.arg = m};

	if (m->first->control_socket == NULL)
		return 0;
	if (control_new(m->base, m->first->control_socket, &hooks, &m->inherit, &m->control) != 0)
		return -1;
	if (!takeover_is_final(m->takeover))
		control_pause(m->control, true);
	permit(m, m->first);
	return 0;
}

/* After the control socket: a second pdrouter with that socket has ended before this.  After an upgrade takeover.c does it. */
static int
step_state(struct master *m)
{
	if (m->first->state_file != NULL && takeover_is_final(m->takeover))
		fleet_keep(m->fleet, m->first->state_file);
	return 0;
}

/* The shared memory is repaired all the time.  A debug build also checks it every CHECK_S seconds. */
static int
step_check(struct master *m)
{
	const struct timeval often = clock_tv(MEND_MS);

	m->ev_mend = event_new(m->base, -1, EV_PERSIST, on_mend, m);
	assert(m->ev_mend != NULL);
	(void)event_add(m->ev_mend, &often);
#ifdef PDROUTER_DEBUG
	static const struct timeval every = {.tv_sec = CHECK_S};

	m->ev_check = event_new(m->base, -1, EV_PERSIST, on_check, m);
	assert(m->ev_check != NULL);
	(void)event_add(m->ev_check, &every);
#endif
	return 0;
}

/* Clients from other hosts can read what is meant for operators: said once. */
static void
say_open_pages(const struct conf *conf)
{
	const struct conf_listen *l;
	enum listen_list list;

	if (conf->nadmin_listen > 0)
		return;
	for (size_t i = 0; (l = conf_listen_at(conf, i, &list)) != NULL; i++)
		if (!conf_address_is_loopback(l)) {
			log_warn("clients can read /metrics and the engines' addresses in /health",
				LOG_S("address", l->text), LOG_S("cure", "admin.listen"));
			return;
		}
}

/* Children could do more than they need: said once. */
static void
say_open_sandbox(const struct conf *conf, const struct identity *as)
{
	const int r = conf->sandbox ? sandbox_possible() : 0;

	if (!conf->sandbox || r != 0)
		log_warn("workers, notifier and exporter run without a filter of system calls",
			LOG_S("reason", r != 0 ? strerrordesc_np(-r) : "sandbox: false"));
	if (as->uid == 0)
		log_warn("workers, notifier and exporter run as root", LOG_S("cure", "user"));
}

/* Without keys, who reaches an address may use the engines: said once. */
static void
say_no_keys(const struct conf *conf)
{
	const struct conf_listen *l;
	enum listen_list list;

	if (conf->api_keys_file[DOOR_CLIENTS] != NULL)
		return;
	for (size_t i = 0; (l = conf_listen_at(conf, i, &list)) != NULL; i++)
		if (list != LISTEN_ADMIN && !conf_address_is_loopback(l)) {
			log_warn(
				"clients need no key: who reaches this address may use the engines",
				LOG_S("address", l->text), LOG_S("cure", "api_keys_file"));
			return;
		}
}

static int
step_serve(struct master *m)
{
	struct conf *conf = m->first;

	m->first = NULL;
	say_open_pages(conf);
	say_open_sandbox(conf, &m->as);
	say_no_keys(conf);
	reload_first(m->reload, conf);
	return 0;
}

static int (*const steps[])(struct master *) = {
	step_inherit,
	step_configuration,
	step_identity,
	step_memory,
	step_eventfds,
	step_loop,
	step_parts,
	step_control,
	step_state,
	step_check,
	step_serve,
};

/* --- the whole ---------------------------------------------------------------------------------- */

static void
fini(struct master *m)
{
	upgrade_free(&m->upgrade);
	takeover_free(&m->takeover);
	control_free(&m->control);
	drains_free(&m->drains);
	procs_free(&m->procs);
	if (m->fleet != NULL)
		fleet_free(&m->fleet);
	waiters_free(&m->waiters);
	reload_free(&m->reload);
	if (m->listeners != NULL && m->stopping && sd_is_there(m->sd) && !m->shut)
		listeners_leave(m->listeners);
	listeners_free(&m->listeners);
	if (m->resolver != NULL)
		resolver_free(&m->resolver);
	sd_free(&m->sd);
	if (m->ev_signals != NULL)
		event_free(m->ev_signals);
	if (m->ev_shut != NULL)
		event_free(m->ev_shut);
	if (m->ev_check != NULL)
		event_free(m->ev_check);
	if (m->ev_mend != NULL)
		event_free(m->ev_mend);
	if (m->base != NULL)
		event_base_free(m->base);
	for (uint32_t i = 0; m->wake_fds != NULL && i < m->seg->hdr->nslots; i++)
		(void)close(m->wake_fds[i]);
	if (m->seg != NULL)
		usage_end(&m->usage);
	free(m->wake_fds);
	seg_free(&m->seg);
	conf_free(&m->first);
}

/*
 * Signals that would end a process and have no meaning here are ignored.  Children inherit that.
 * Job control, and the signals of a crash or a limit of CPU time, keep their meaning.
 */
static void
ignore_signals(void)
{
	static const int ignored[] = {SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
		SIGPWR, SIGSTKFLT, SIGXFSZ /* a write to a full file returns an error code */};

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		(void)signal(ignored[i], SIG_IGN);
	for (int sig = SIGRTMIN; sig <= SIGRTMAX; sig++)
		(void)signal(sig, SIG_IGN);
}

/* A closed standard descriptor would be reused by a socket, and children keep descriptors 0 to 2. */
static void
fill_standard_fds(void)
{
	int fd;

	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd != -1)
		(void)close(fd);
}

/* Raises the limit of open files to its maximum: each stream needs two descriptors. */
static void
raise_nofile(void)
{
	struct rlimit rl;

	if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur < rl.rlim_max) {
		rl.rlim_cur = rl.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &rl);
	}
}

/* Another instance that stops with this one may need this one longer than the own processes do. */
static bool
lives(const struct master *m)
{
	return !m->stopping || procs_alive(m->procs) > 0 || upgrade_waits(m->upgrade) ||
	       takeover_waits_for(m->takeover) > 0;
}

static int
run(struct master *m)
{
	(void)event_set_mem_functions(mem_or_null, mem_resize_or_null, free);
	ignore_signals();
	m->started_ms = clock_ms();
	m->signals = -1;
	log_info("pdrouter starts", LOG_S("version", PDROUTER_VERSION), LOG_I("pid", getpid()));
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		if (steps[i](m) == -1) {
			m->code = EXIT_FAILURE;
			goto out;
		}
	log_keep();
	while (lives(m)) {
		(void)event_base_loop(m->base, EVLOOP_ONCE);
		(void)log_flush();
		reload_turn(m->reload);
		takeover_turn(m->takeover);
		drains_turn(m->drains);
		upgrade_turn(m->upgrade);
		if (upgrade_is_over(m->upgrade) && procs_generations(m->procs) == 0 &&
			control_is_quiet(m->control) && !m->stopping)
			stop(m, EXIT_SUCCESS); /* the requests are done */
	}
	log_info("pdrouter ends", LOG_I("code", m->code));
	log_finish();
out:
	fini(m);
	return m->code;
}

static void
print_note(void *arg, const char *flag, const char *why)
{
	(void)arg;
	(void)fprintf(stderr, "%s: %s\n", flag, why);
}

/* -t: prints the errors of a start or a reload.  --print-config: prints the configuration as YAML. */
static int
check(const struct conf_args *args)
{
	struct conf_error err = {.line = 0};
	struct conf *conf = NULL;
	char text[600];

	if (conf_from_args(args, &conf, &err) != 0) {
		(void)fprintf(stderr, "%s\n", conf_error_text(&err, text, sizeof(text)));
		return EXIT_FAILURE;
	}
	if (identity_check(conf, text, sizeof(text)) == -1) {
		(void)fprintf(
			stderr, "%s: %s\n", conf->path != NULL ? conf->path : "command line", text);
		conf_free(&conf);
		return EXIT_FAILURE;
	}
	conf_args_notes(args, print_note, NULL);
	conf_tls_notes(conf, print_note, NULL);
	conf_engine_tls_notes(conf, NULL, print_note, NULL);
	if (args->print)
		conf_write(conf, stdout);
	else
		(void)printf("%s: good\n", conf->path != NULL ? conf->path : "command line");
	conf_free(&conf);
	return EXIT_SUCCESS;
}

int
main(int argc, char **argv)
{
	struct conf_error err = {.line = 0};
	struct master m = {.code = EXIT_SUCCESS, .argv = argv};
	const bool wipes = tls_wipe_begin(); /* before any other call of OpenSSL */
	char text[600];

	fill_standard_fds();
	log_init("master", 0);
	assert(wipes);
	if (conf_args_parse(argc, argv, &m.args, &err) != 0) {
		(void)fprintf(stderr, "pdrouter: %s\nTry pdrouter --help\n",
			conf_error_text(&err, text, sizeof(text)));
		return EXIT_FAILURE;
	}
	m.args.fleet_reader = topo_source;
	if (m.args.help) {
		conf_args_help(stdout);
		return EXIT_SUCCESS;
	}
	if (m.args.version) {
		(void)puts("pdrouter " PDROUTER_VERSION);
		return EXIT_SUCCESS;
	}
	raise_nofile();
	return m.args.check || m.args.print ? check(&m.args) : run(&m);
}
