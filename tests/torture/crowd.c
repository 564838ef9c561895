#include "tests/torture/crowd.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define STOPPED_US 4000

static struct crowd {
	bool threads;
	uint64_t rnd;
	uint64_t *ends; /* [CHILDREN] shared: enum end */
	uint64_t lives, kills, stops;
	struct child {
		const struct crew *crew; /* NULL: there is none */
		struct life life;
		pid_t pid;
		pthread_t thread;
		bool stopped;
		uint64_t continue_us;
	} child[CHILDREN];
} crowd;

void
crowd_init(bool threads, uint64_t seed)
{
	crowd.threads = threads;
	crowd.rnd = seed | 1;
	crowd.ends = shared(CHILDREN * sizeof(*crowd.ends));
}

uint64_t
crowd_random(void)
{
	return next_random(&crowd.rnd);
}

static void *
thread_main(void *arg)
{
	struct child *c = arg;

	rnd_seed(c->life.rnd);
	c->crew->body(&c->life);
	return NULL;
}

static void
start_process(struct child *c)
{
	const pid_t master = getpid();

	c->pid = fork();
	if (c->pid == -1) {
		perror("fork");
		exit(2);
	}
	if (c->pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		if ((c->crew->fate & RULES) == 0 && seg_read_only(seg) != 0)
			_exit(2);
		if (getppid() == master) /* else it died before */
			(void)thread_main(c);
		_exit(0);
	}
	proc_slot_set(seg, c->life.child, (uint64_t)c->pid, PROC_READY, 1);
}

/* After waitpid, or join. */
static void
gone(uint32_t i)
{
	proc_slot_set(seg, i, 0, PROC_EMPTY, 0);
	crowd.child[i].crew = NULL;
}

static void
start(const struct crew *crew, uint32_t i)
{
	struct child *c = &crowd.child[i];
	const uint64_t seed = (crowd_random() ^ ++crowd.lives * UINT64_C(0x9e3779b97f4a7c15)) | 8;

	*c = (struct child){.crew = crew, .life = {i, seed, &crowd.ends[i]}};
	seen_set(&crowd.ends[i], (uint64_t)END_NOT);
	if (!crowd.threads) {
		start_process(c);
	} else if (pthread_create(&c->thread, NULL, thread_main, c) != 0) {
		perror("pthread_create");
		exit(2);
	}
}

void
crowd_start(const struct crew *crew)
{
	for (uint32_t i = crew->first; i < crew->first + crew->count; i++)
		start(crew, i);
}

/* An assertion of the child's was faster than we. */
static void
died_of_itself(uint32_t i, int status)
{
	/* inside a section only rcu_enter()'s own look at the table aborts */
	const bool section =
		WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && seg->readers[i].ctr != 0;

	bad(section ? BAD_READ : BAD_DEATH);
}

static void
tell(uint32_t i, enum end end)
{
	struct child *c = &crowd.child[i];

	seen_set(&crowd.ends[i], (uint64_t)end);
	if (end == END_DIE && c->crew->wake != NULL)
		c->crew->wake(i);
	if (crowd.threads)
		(void)pthread_join(c->thread, NULL);
}

static void
kill_child(uint32_t i)
{
	struct child *c = &crowd.child[i];
	const struct crew *crew = c->crew;
	int status = 0;

	if (crowd.threads) {
		tell(i, END_DIE);
	} else {
		(void)kill(c->pid, SIGKILL);
		(void)waitpid(c->pid, &status, 0);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			died_of_itself(i, status);
	}
	crowd.kills++;
	if (crew->bury != NULL)
		crew->bury(i);
	gone(i);
}

static void
stop_child(struct child *c, uint64_t now_us)
{
	(void)kill(c->pid, SIGSTOP);
	c->stopped = true;
	c->continue_us = now_us + STOPPED_US;
	crowd.stops++;
}

static unsigned
often(uint32_t i)
{
	const struct crew *crew = crowd.child[i].crew;

	return crew != NULL ? crew->often : 0;
}

/* Somebody is there. */
static uint32_t
any_child(void)
{
	uint64_t sum = 0, at;
	uint32_t i;

	for (i = 0; i < CHILDREN; i++)
		sum += often(i);
	at = crowd_random() % sum;
	for (i = 0; at >= often(i); i++)
		at -= often(i);
	return i;
}

void
crowd_disturb(uint64_t now_us)
{
	const uint32_t i = any_child();
	struct child *c = &crowd.child[i];
	const struct crew *crew = c->crew;
	const bool stop = crowd_random() % 3 == 0;

	if (c->stopped)
		return;
	if ((crew->fate & STOPS) != 0 && (stop || (crew->fate & DIES) == 0)) {
		if (!crowd.threads) /* nothing stops one thread alone */
			stop_child(c, now_us);
	} else if ((crew->fate & DIES) != 0) {
		kill_child(i);
		start(crew, i);
	}
}

void
crowd_resume(uint64_t now_us)
{
	for (uint32_t i = 0; i < CHILDREN; i++) {
		struct child *c = &crowd.child[i];

		if (!c->stopped || now_us < c->continue_us)
			continue;
		(void)kill(c->pid, SIGCONT);
		c->stopped = false;
	}
}

static void
leave_child(uint32_t i)
{
	struct child *c = &crowd.child[i];
	int status = 0;

	tell(i, END_LEAVE);
	if (!crowd.threads) {
		(void)waitpid(c->pid, &status, 0);
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			died_of_itself(i, status);
	}
	gone(i);
}

void
crowd_end(const struct crew *crew)
{
	crowd_resume(UINT64_MAX);
	for (uint32_t i = crew->first; i < crew->first + crew->count; i++) {
		if ((crew->fate & DIES) != 0)
			kill_child(i);
		else
			leave_child(i);
	}
}

void
crowd_report(void)
{
	printf("lives=%" PRIu64 " killed=%" PRIu64 " stopped=%" PRIu64 "\n", crowd.lives,
		crowd.kills, crowd.stops);
}
