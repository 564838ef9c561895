#include "master/supervise/harden.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/core/heritage.h"

/* A hundredth of the machine's memory counts 10: a child uses less than this much more than the master. */
#define OOM_ABOVE_MASTER 100
#define OOM_MOST 1000 /* of the kernel */

int
harden_oom_score_adj(int masters)
{
	/* OOMScoreAdjust of the unit protects the master alone: to the machine a child is like any process */
	if (masters < 0)
		return 0;
	return masters < OOM_MOST - OOM_ABOVE_MASTER ? masters + OOM_ABOVE_MASTER : OOM_MOST;
}

/* A process may always make itself more likely to be chosen. */
static void
be_chosen_first(void)
{
	FILE *f = fopen("/proc/self/oom_score_adj", "r+e");
	int masters;

	if (f == NULL)
		return;
	if (fscanf(f, "%d", &masters) == 1) { // NOLINT(cert-err34-c): the kernel writes a number
		rewind(f);
		(void)fprintf(f, "%d", harden_oom_score_adj(masters));
	}
	(void)fclose(f);
}

static bool
leave_bounding_set(void)
{
	/* EINVAL: the kernel has no more.  EPERM: this process may not, and has nothing that the set could bound */
	for (unsigned long cap = 0; prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0; cap++)
		;
	return errno == EINVAL || errno == EPERM;
}

static bool
leave_groups(const struct identity *as)
{
	return as->change == IDENTITY_STAYS || setgroups(0, NULL) == 0;
}

static bool
change_group(const struct identity *as)
{
	return setresgid(as->gid, as->gid, as->gid) == 0;
}

static bool
change_user(const struct identity *as)
{
	return setresuid(as->uid, as->uid, as->uid) == 0;
}

/* Ambient capabilities go with these. */
static bool
leave_capabilities(void)
{
	struct __user_cap_header_struct own = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{.effective = 0}};

	return syscall(SYS_capset, &own, none) == 0;
}

/*
 * The order matters: the bounding set needs a capability, groups need root, and the user goes last.  Where no id changes,
 * three equal ids leave no way back to what a set-id bit gave.
 */
const char *
harden_child(const struct identity *as)
{
	be_chosen_first(); /* before its files in /proc become root's */
	if (!leave_bounding_set())
		return "bounding set";
	if (!leave_groups(as))
		return "setgroups";
	if (!change_group(as))
		return "setresgid";
	if (!change_user(as))
		return "setresuid";
	if (!leave_capabilities())
		return "capset";
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == -1)
		return "no-new-privileges";
#ifndef PDROUTER_DEBUG
	if (prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == -1)
		return "dumpable";
#endif
	return NULL;
}
