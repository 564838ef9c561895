/* What a child does to itself: it is chosen before its master when memory is short, and gets into no core file. */
#include "master/supervise/harden.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static int
oom_score_adj(void)
{
	FILE *f = fopen("/proc/self/oom_score_adj", "re");
	int adj = 5000;

	cr_assert_not_null(f);
	cr_assert_eq(fscanf(f, "%d", &adj), 1);
	(void)fclose(f);
	return adj;
}

static void
set_oom_score_adj(int adj)
{
	FILE *f = fopen("/proc/self/oom_score_adj", "we");

	cr_assert_not_null(f);
	(void)fprintf(f, "%d", adj);
	(void)fclose(f);
}

/* Of a child of a master with that value. */
static void
harden_with(int masters, int expected)
{
	int status = 0;
	pid_t pid;

	set_oom_score_adj(masters);
	cr_assert_eq(oom_score_adj(), masters);
	pid = fork();
	if (pid == 0) {
		harden_child();
#ifndef PDROUTER_DEBUG
		if (prctl(PR_GET_DUMPABLE, 0, 0, 0, 0) != 0)
			_exit(2);
#endif
		_exit(oom_score_adj() == expected ? 0 : 1);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "master %d: %d", masters, WEXITSTATUS(status));
}

Test(harden, a_child_is_chosen_first_and_not_dumped)
{
	const int ours = oom_score_adj();

	harden_with(ours, harden_oom_score_adj(ours));
	harden_with(950, 1000);
}

Test(harden, what_the_unit_gives_is_the_masters_alone)
{
	cr_assert_eq(harden_oom_score_adj(-1000), 0);
	cr_assert_eq(harden_oom_score_adj(-500), 0);
	cr_assert_eq(harden_oom_score_adj(0), 100);
	cr_assert_eq(harden_oom_score_adj(950), 1000);
	cr_assert_eq(harden_oom_score_adj(1000), 1000);
}
