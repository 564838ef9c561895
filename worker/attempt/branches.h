/*
 * Steps that concern all branches of a job at once.
 *
 * Process: worker.
 */
#pragma once

struct job;

/* From now on the decode engine serves the job alone, in one branch.  `direct`, `why`: for the log. */
void branches_go_direct(struct job *job, const char *direct, const char *why);
/* Drops the client's bytes and what was made of them once no leg can be sent again: every prefill
 * engine has answered, every decode answer has begun, and no decode engine was sent wrong
 * parameters. */
void branches_drop_text_if_sent(struct job *job);
