/* What a child does to itself: it is chosen before its master when memory is short, has no rights that it does not need, and
 * gets into no core file. */
#include "master/supervise/harden.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/supervise/identity.h"
#include "shm/base/conf.h"
#include "shm/core/heritage.h"

#define NOBODY 65534

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
		if (harden_child(&(struct identity){getuid(), getgid(), IDENTITY_STAYS}) != NULL)
			_exit(3);
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

/* The value of a line of /proc/self/status, without the white space before it. */
static void
status_line(const char *name, char *value, size_t size)
{
	FILE *f = fopen("/proc/self/status", "re");
	char line[256];

	value[0] = '\0';
	while (f != NULL && fgets(line, sizeof(line), f) != NULL)
		if (strncmp(line, name, strlen(name)) == 0)
			(void)snprintf(value, size, "%s", line + strlen(name) + 1);
	if (f != NULL)
		(void)fclose(f);
}

/* Exits with the number of the first expectation that fails. */
static void
expect_no_rights(uid_t uid, gid_t gid)
{
	static const char *const none[] = {"CapInh", "CapPrm", "CapEff", "CapAmb"};
	char got[64], want[64];

	(void)snprintf(want, sizeof(want), "\t%u\t%u\t%u\t%u\n", uid, uid, uid, uid);
	status_line("Uid", got, sizeof(got));
	if (strcmp(got, want) != 0)
		_exit(1);
	(void)snprintf(want, sizeof(want), "\t%u\t%u\t%u\t%u\n", gid, gid, gid, gid);
	status_line("Gid", got, sizeof(got));
	if (strcmp(got, want) != 0)
		_exit(2);
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
		status_line(none[i], got, sizeof(got));
		if (strcmp(got, "\t0000000000000000\n") != 0)
			_exit(3);
	}
	status_line("NoNewPrivs", got, sizeof(got));
	if (strcmp(got, "\t1\n") != 0)
		_exit(4);
	_exit(0);
}

static int
status_of_child(const struct identity *as)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		if (harden_child(as) != NULL)
			_exit(9);
		expect_no_rights(as->uid, as->gid);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return status;
}

Test(harden, a_child_keeps_its_user_and_no_capability)
{
	const struct identity own = {getuid(), getgid(), IDENTITY_STAYS};

	cr_assert_eq(status_of_child(&own), 0);
}

Test(harden, a_child_of_root_becomes_another_user)
{
	const struct identity other = {NOBODY, NOBODY, IDENTITY_CHANGES};
	int status = 0;
	char got[64];
	pid_t pid;

	if (geteuid() != 0)
		cr_skip("only root can change to another user");
	cr_assert_eq(status_of_child(&other), 0);
	pid = fork();
	if (pid == 0) {
		const gid_t groups[] = {4, 5};

		if (setgroups(2, groups) == -1 || harden_child(&other) != NULL)
			_exit(1);
		status_line("CapBnd", got, sizeof(got));
		if (strcmp(got, "\t0000000000000000\n") != 0)
			_exit(2);
		_exit(getgroups(0, NULL) == 0 && setuid(0) == -1 ? 0 : 3);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "%d", WEXITSTATUS(status));
}

/* A process that is not root cannot: it is told which step failed, and does not serve. */
Test(harden, a_step_that_fails_is_named)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		const struct identity root = {0, 0, IDENTITY_CHANGES};
		const char *step;

		if (geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) == -1 ||
					      setresuid(NOBODY, NOBODY, NOBODY) == -1))
			_exit(1);
		step = harden_child(&root);
		_exit(step != NULL && strcmp(step, "setgroups") == 0 && errno == EPERM ? 0 : 2);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "%d", WEXITSTATUS(status));
}

/* --- the keys `user` and `group` ---------------------------------------------------------------- */

static char root[] = "root", nobody[] = "nobody", number[] = "65534", nameless[] = "4242",
	    nogroup[] = "nogroup", unknown[] = "no-such-one", huge[] = "4294967295";

/* What a child of root gets; an error: NULL and its words. */
static const struct {
	char *user, *group;
	uid_t uid;
	gid_t gid;
	const char *error;
} names[] = {
	{nobody, NULL, 65534, 65534, NULL},
	{number, NULL, 65534, 65534, NULL},
	{root, nogroup, 0, 65534, NULL},
	{nameless, nogroup, 4242, 65534, NULL},
	{nameless, nameless, 4242, 4242, NULL},
	{NULL, nogroup, 0, 65534, NULL},
	{nameless, NULL, 0, 0, "user: 4242: a number without a name needs a group"},
	{unknown, NULL, 0, 0, "user: no-such-one: there is no such user"},
	{huge, nogroup, 0, 0, "user: 4294967295: there is no such user"},
	{nobody, unknown, 0, 0, "group: no-such-one: there is no such group"},
};

Test(identity, names_and_numbers)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const struct conf conf = {.user = names[i].user, .group = names[i].group};
		char error[200] = "";
		struct identity as;

		if (geteuid() != 0)
			cr_skip("only root can change to another user");
		cr_expect_eq(identity_check(&conf, error, sizeof(error)),
			names[i].error != NULL ? -1 : 0, "%zu", i);
		if (identity_find(&conf, &as, error, sizeof(error)) == 0) {
			cr_expect_null(names[i].error, "%zu", i);
			cr_expect_eq(as.uid, names[i].uid, "%zu", i);
			cr_expect_eq(as.gid, names[i].gid, "%zu", i);
			cr_expect_eq(as.change, IDENTITY_CHANGES);
		} else {
			cr_expect_str_eq(
				error, names[i].error != NULL ? names[i].error : "", "%zu", i);
		}
	}
}

/* Started as another user, the keys may only say what it is. */
Test(identity, only_root_changes)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		const struct conf same = {.user = nobody, .group = nogroup}, other = {.user = root},
				  group = {.user = nobody, .group = root}, none = {.user = NULL};
		struct identity as;
		char error[200];

		if (geteuid() == 0 && (setresgid(NOBODY, NOBODY, NOBODY) == -1 ||
					      setresuid(NOBODY, NOBODY, NOBODY) == -1))
			_exit(1);
		if (geteuid() != NOBODY)
			_exit(0); /* another account: the names above are not its own */
		if (identity_find(&same, &as, error, sizeof(error)) != 0 ||
			as.change != IDENTITY_STAYS || as.uid != NOBODY)
			_exit(2);
		if (identity_find(&none, &as, error, sizeof(error)) != 0 || as.uid != NOBODY)
			_exit(3);
		if (identity_find(&other, &as, error, sizeof(error)) != -1 ||
			strcmp(error, "user: root: only root can change to another user") != 0)
			_exit(4);
		_exit(identity_find(&group, &as, error, sizeof(error)) == -1 ? 0 : 5);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "%d", WEXITSTATUS(status));
}
