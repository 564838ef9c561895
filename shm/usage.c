#include "shm/usage.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/core/atomic.h"

#define PERIOD_MS 1000

void
usage_begin(struct usage *u)
{
	struct rlimit rl;

	*u = (struct usage){.start_ms = clock_wall_us() / 1000};
	u->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
	u->fds = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (getrlimit(RLIMIT_NOFILE, &rl) == 0 && rl.rlim_cur != RLIM_INFINITY)
		u->max_fds = rl.rlim_cur;
}

void
usage_end(struct usage *u)
{
	if (u->statm != -1)
		(void)close(u->statm);
	if (u->fds != -1)
		(void)close(u->fds);
	u->statm = u->fds = -1;
}

static uint64_t
cpu_us(void)
{
	struct timespec t;

	return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0
		       ? (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000
		       : 0;
}

/* "size resident shared ...", in pages. */
static uint64_t
resident_bytes(const struct usage *u)
{
	char text[128];
	const char *second;
	ssize_t n;

	if (u->statm == -1 || lseek(u->statm, 0, SEEK_SET) != 0)
		return 0;
	n = read(u->statm, text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	second = strchr(text, ' ');
	return second != NULL ? strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

/* A kernel before 6.2 says 0. */
static uint64_t
open_fds(const struct usage *u)
{
	struct stat st;

	return u->fds != -1 && fstat(u->fds, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

void
usage_report(struct usage *u, struct seg *seg, uint32_t slot, uint64_t now_ms, uint64_t fds)
{
	struct proc_slot *p = &seg->procs[slot];
	uint64_t kernels;

	if (now_ms < u->next_ms)
		return;
	u->next_ms = now_ms + PERIOD_MS;
	kernels = open_fds(u);
	shm_store(&p->cpu_us, cpu_us());
	shm_store(&p->resident_bytes, resident_bytes(u));
	shm_store(&p->fds, kernels != 0 ? kernels : fds);
	shm_store(&p->max_fds, u->max_fds);
	shm_store(&p->start_ms, u->start_ms);
}

bool
usage_read(const struct seg *seg, uint32_t slot, struct usage_said *ret)
{
	const struct proc_slot *p = &seg->procs[slot];

	*ret = (struct usage_said){
		.cpu_us = shm_load(&p->cpu_us),
		.resident_bytes = shm_load(&p->resident_bytes),
		.fds = shm_load(&p->fds),
		.max_fds = shm_load(&p->max_fds),
		.start_ms = shm_load(&p->start_ms),
	};
	return proc_slot_state(seg, slot) != PROC_EMPTY && ret->start_ms != 0;
}
