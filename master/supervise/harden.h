/*
 * What a child does to itself before it serves, so that its faults cost less.
 *
 * Process: worker, notifier.
 */
#pragma once

struct identity;

/*
 * - When memory is short the kernel ends this child and not the master: the master replaces it.
 * - The child has the rights of `as`, none of root's, and no way back to any.
 * - The child's memory, which has clients' prompts and keys, gets into no core file, and processes of the same user
 *   cannot attach to the child.  Debug and sanitizer builds leave that out.
 * Returns NULL, or the name of the step that failed, and errno.
 */
const char *harden_child(const struct identity *as);
/* Returns the child's oom_score_adj for that of its master. */
int harden_oom_score_adj(int masters);
