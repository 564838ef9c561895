#include "master/supervise/harden.h"

#include <stdio.h>
#include <sys/prctl.h>

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

void
harden_child(void)
{
	be_chosen_first(); /* before its files in /proc become root's */
#ifndef PDROUTER_DEBUG
	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
}
