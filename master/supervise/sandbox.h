/*
 * What a child may still do once it serves: the system calls of one table, each with the arguments that are
 * needed.  Any other call ends the child, and the master's log has the call's name.
 *
 * Process: worker, notifier, exporter; sandbox_possible() and sandbox_call_name(): master.
 */
#pragma once
#include <stdint.h>

struct heritage;

/*
 * The child has opened all that it needs.  If the kernel takes no filter, or `sandbox` is false, the child serves
 * without one: the master has said so at its start, and pdrouter_sandbox is 0.
 */
void sandbox_enter(const struct heritage *h);
/* Master: 0, or the negative errno with which the kernel, or what it runs in, refuses filters. */
int sandbox_possible(void);
/* Name of a system call of this machine; NULL: it has none.  The caller frees it. */
char *sandbox_call_name(uint32_t call);
