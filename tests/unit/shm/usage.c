/* What a process uses of the machine, as it says itself. */
#include "shm/usage.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "tests/unit/shm/fixture.h"

#define SLOT 1u
#define NOW UINT64_C(100000)

TestSuite(shm_usage, .init = small_seg, .fini = small_seg_end);

static struct usage_said
report(uint64_t fds)
{
	struct usage u;
	struct usage_said said;

	usage_begin(&u);
	usage_report(&u, seg, SLOT, NOW, fds);
	usage_end(&u);
	(void)usage_read(seg, SLOT, &said);
	return said;
}

Test(shm_usage, a_process_says_what_it_uses)
{
	struct usage_said said;
	struct rlimit rl;
	volatile uint64_t n = 0;

	proc_slot_set(seg, SLOT, (uint64_t)getpid(), PROC_READY, 1);
	cr_assert_not(usage_read(seg, SLOT, &said), "not yet");
	while (clock() < CLOCKS_PER_SEC / 100)
		n++;
	said = report(5);
	cr_assert(usage_read(seg, SLOT, &said));
	cr_assert_geq(said.cpu_us, 9000);
	cr_assert_gt(said.resident_bytes, 1 << 16);
	cr_assert_eq(said.resident_bytes % (uint64_t)sysconf(_SC_PAGESIZE), 0);
	cr_assert_geq(said.fds, 3);
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &rl), 0);
	cr_assert_eq(said.max_fds, rl.rlim_cur == RLIM_INFINITY ? 0 : rl.rlim_cur);
	cr_assert_leq(said.start_ms, clock_wall_us() / 1000);
	cr_assert_geq(said.start_ms + 60000, clock_wall_us() / 1000);
}

Test(shm_usage, its_own_count_stands_in_for_the_kernels)
{
	struct usage u;
	struct usage_said said;

	proc_slot_set(seg, SLOT, (uint64_t)getpid(), PROC_READY, 1);
	usage_begin(&u);
	usage_end(&u); /* as if there were no /proc */
	usage_report(&u, seg, SLOT, NOW, 77);
	cr_assert(usage_read(seg, SLOT, &said));
	cr_assert_eq(said.fds, 77);
	cr_assert_eq(said.resident_bytes, 0);
}

Test(shm_usage, it_is_read_once_a_second)
{
	struct usage u;
	struct usage_said said;

	proc_slot_set(seg, SLOT, (uint64_t)getpid(), PROC_READY, 1);
	usage_begin(&u);
	(void)close(u.fds);
	u.fds = -1;
	usage_report(&u, seg, SLOT, NOW, 1);
	usage_report(&u, seg, SLOT, NOW + 999, 2);
	(void)usage_read(seg, SLOT, &said);
	cr_assert_eq(said.fds, 1);
	usage_report(&u, seg, SLOT, NOW + 1000, 3);
	(void)usage_read(seg, SLOT, &said);
	cr_assert_eq(said.fds, 3);
	usage_end(&u);
}

Test(shm_usage, its_end_leaves_no_descriptor_open)
{
	struct usage u;
	const int next = dup(0);

	(void)close(next);
	usage_begin(&u);
	cr_assert_eq(u.statm, next);
	usage_end(&u);
	cr_assert_eq(dup(0), next);
	usage_end(&u); /* a second call closes nothing */
	cr_assert_eq(close(next), 0);
}

Test(shm_usage, a_dead_process_uses_nothing)
{
	struct usage_said said;

	proc_slot_set(seg, SLOT, (uint64_t)getpid(), PROC_READY, 1);
	(void)report(1);
	proc_slot_set(seg, SLOT, 0, PROC_EMPTY, 0);
	cr_assert_not(usage_read(seg, SLOT, &said));
	proc_slot_set(seg, SLOT, (uint64_t)getpid(), PROC_STARTING, 2);
	cr_assert_not(usage_read(seg, SLOT, &said), "its successor has not said anything");
}
