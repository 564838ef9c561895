/* The live settings: what a reader copies, and that it never copies half of a change. */
#include "shm/settings.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/conf.h"
#include "tests/unit/shm/fixture.h"

#define CHANGES 100000

TestSuite(shm_settings, .init = small_seg, .fini = small_seg_end);

/* All its words depend on n, the first and the last one too. */
static struct conf_live
numbered(uint64_t n)
{
	return (struct conf_live){.max_body = n,
		.max_head = n,
		.client_idle_ms = n,
		.client_rate = {(uint32_t)n, 60},
		.log_level = (enum log_level)(n % 4)};
}

static bool
is_whole(const struct conf_live *l)
{
	return l->max_head == l->max_body && l->client_idle_ms == l->max_body &&
	       l->client_rate.n == l->max_body && l->log_level == l->max_body % 4;
}

Test(shm_settings, a_reader_copies_what_is_new_and_nothing_else)
{
	struct conf_live five = numbered(5), seen = {0};
	uint64_t seq = 0;

	cr_assert_not(settings_get(seg, &seen, &seq), "none were put");
	settings_put(seg, &five);
	cr_assert_neq(settings_seq(seg), seq);
	cr_assert(settings_get(seg, &seen, &seq));
	cr_assert_eq(memcmp(&seen, &five, sizeof(seen)), 0);
	cr_assert_eq(settings_seq(seg), seq);
	cr_assert_not(settings_get(seg, &seen, &seq), "nothing is new");
}

Test(shm_settings, a_reader_keeps_its_copy_while_they_change)
{
	struct conf_live five = numbered(5), seen = numbered(4);
	uint64_t seq = 0;

	settings_put(seg, &five);
	seg->settings->seq++;
	cr_assert_not(settings_get(seg, &seen, &seq));
	cr_assert_eq(seen.max_body, 4);
	cr_assert_eq(seq, 0);
	seg->settings->seq++;
	cr_assert(settings_get(seg, &seen, &seq));
	cr_assert_eq(seen.max_body, 5);
}

/* Another process writes all the time, as fast as it can. */
Test(shm_settings, no_copy_is_half_of_a_change)
{
	uint64_t seq = 0, copies = 0;
	struct conf_live seen = numbered(0);
	int status;
	pid_t writer = fork();

	if (writer == 0) {
		for (uint32_t n = 1; n <= CHANGES; n++) {
			struct conf_live live = numbered(n);

			settings_put(seg, &live);
		}
		_exit(0);
	}
	while (seen.max_body < CHANGES) {
		copies += settings_get(seg, &seen, &seq);
		cr_assert(is_whole(&seen), "after %llu copies", (unsigned long long)copies);
	}
	cr_assert_eq(waitpid(writer, &status, 0), writer);
	cr_assert_eq(status, 0);
	cr_assert_gt(copies, 0);
}

static _Noreturn void
reader(void)
{
	struct conf_live seen = numbered(0);
	uint64_t seq = 0;

	(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	(void)raise(SIGSTOP);
	(void)settings_get(seg, &seen, &seq);
	_exit(is_whole(&seen) ? 0 : 1);
}

/* After so many instructions of a reader they change.  False: it has fewer. */
static bool
change_after(unsigned instructions)
{
	const struct conf_live five = numbered(5), six = numbered(6);
	const pid_t pid = fork();
	int status;

	cr_assert_geq(pid, 0);
	if (pid == 0)
		reader();
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	settings_put(seg, &five);
	for (unsigned i = 0; i < instructions && WIFSTOPPED(status); i++) {
		cr_assert_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
	}
	if (!WIFSTOPPED(status))
		return false;
	settings_put(seg, &six);
	cr_assert_eq(ptrace(PTRACE_CONT, pid, NULL, NULL), 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "after %u instructions", instructions);
	return true;
}

#ifdef __SANITIZE_ADDRESS__
#define STEP 997 /* a reader has thousands of instructions, most of them the sanitizer's */
#else
#define STEP 2
#endif

Test(shm_settings, at_every_instruction_of_a_reader, .timeout = 60)
{
	unsigned n = 0;

	while (change_after(n))
		n += STEP;
	cr_assert_gt(n, 50, "else this test tested nothing");
}
