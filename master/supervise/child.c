#include "master/supervise/child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "master/config/conf.h"
#include "master/supervise/harden.h"
#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/core/seg.h"
#include "shm/core/suspect.h"
#include "shm/metrics.h"

static int
by_number(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return (x > y) - (x < y);
}

/* Closes every descriptor but stdin, stdout, stderr and these (sorted here). */
static void
close_all_but(int *keep, size_t n)
{
	unsigned from = STDERR_FILENO + 1;

	qsort(keep, n, sizeof(keep[0]), by_number);
	for (size_t i = 0; i < n; i++) {
		if ((unsigned)keep[i] < from)
			continue; /* it is in the place of stdin, stdout or stderr */
		if ((unsigned)keep[i] > from)
			(void)close_range(from, (unsigned)keep[i] - 1, 0);
		from = (unsigned)keep[i] + 1;
	}
	(void)close_range(from, ~0u, 0);
}

static void
keep_heritage_only(const struct heritage *h)
{
	size_t nwake = h->seg->hdr->nslots, n = 0;
	int *keep = mem_array(nwake + h->nlisten + h->nnotices_to + 3, sizeof(int));

	keep[n++] = h->channel;
	if (log_journal_fd() != -1)
		keep[n++] = log_journal_fd();
	if (h->notices_from != 0)
		keep[n++] = h->notices_from;
	for (size_t i = 0; i < h->nnotices_to; i++)
		keep[n++] = h->notices_to[i].fd;
	for (size_t i = 0; i < h->nlisten; i++)
		keep[n++] = h->listen[i].fd;
	for (size_t i = 0; i < nwake; i++)
		keep[n++] = h->wake_fds[i];
	close_all_but(keep, n);
	free(keep);
}

/*
 * The master has blocked the signals that it handles, and reads them from a signalfd, which is
 * closed by now.  A terminal's ^C and ^\ and a `kill -HUP 0` reach the whole process group: children
 * leave these signals to the master, which tells them over the channel.
 */
static void
signals_for_child(void)
{
	static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR2};
	sigset_t none;

	for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
		(void)signal(ignored[i], SIG_IGN);
	(void)signal(SIGCHLD, SIG_DFL);
	(void)sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

void
child_log_suspect(const char *where, uint64_t index, uint64_t n)
{
	log_warn("shared memory had impossible values: repaired", LOG_S("where", where),
		LOG_U("index", index), LOG_U("words", n));
}

/*
 * The order of steps matters (design.md, "A child after fork"): the master's event base is never
 * touched, since event_del() there would edit the epoll set both share; ids go before PDEATHSIG, which
 * a change of ids clears; getppid() after it, for a master that died in between.
 */
_Noreturn void
child_run(const struct proc_kind *kind, const struct heritage *h)
{
	char name[16]; /* the kernel's limit; longer ones are cut */
	int r = seg_read_only(h->seg);
	const char *failed;
	int error;

	(void)mem_reserve(0, NULL);
	log_errors_to(NULL, NULL); /* that socket is closed here, and its number used again */
	keep_heritage_only(h);
	signals_for_child();
	failed = harden_child(h->as);
	error = errno;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	if (getppid() != h->master_pid)
		_exit(CHILD_EXIT_OK);
	conf_wipe_keys(h->conf);
	if (h->kind != SANDBOX_NOTIFIER)
		conf_siblings_wipe(h->conf);
	if (kind->count == NULL) { /* a single process: it serves no clients */
		conf_wipe_certificates(h->conf);
		if (r == 0)
			r = seg_hide_keys(h->seg);
	}
	(void)snprintf(name, sizeof(name), "pdr-%s", kind->name);
	(void)prctl(PR_SET_NAME, name, 0, 0, 0);
	log_init(kind->name, h->slot);
	log_count_dropped(&seg_slab(h->seg, h->slot)->counters[M_LOG_DROPPED]);
	log_setup(h->conf->live.log_level, h->conf->live.log_format);
	if (failed != NULL) {
		log_error("cannot drop privileges", LOG_S("step", failed),
			LOG_S("error", strerrordesc_np(error)), LOG_U("uid", h->as->uid),
			LOG_U("gid", h->as->gid));
		_exit(CHILD_EXIT_NO_RESPAWN);
	}
	suspect_begin(&seg_slab(h->seg, h->slot)->counters[M_REPAIRED_READERS], child_log_suspect);
	if (r != 0) {
		log_error("cannot map the master's memory read-only",
			LOG_S("error", strerrordesc_np(-r)));
		_exit(EXIT_FAILURE);
	}
	if (seg_check(h->seg->hdr, seg_build()) != 0) {
		log_error("the shared memory is not of this version and build");
		_exit(CHILD_EXIT_NO_RESPAWN);
	}
	/* exit(), not _exit(): a leak checker reports from there; nothing of the master's is in stdio */
	exit(kind->main(h));
}
