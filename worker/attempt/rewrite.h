/*
 * Whether the engines' answers must be rewritten for the client, and how.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct job;

/* Makes job->answer for the job as planned, or leaves it NULL if the engines' answers pass
 * unchanged. */
void rewrite_plan(struct job *job);
/* The prefill answer has no first token: the decode engine makes it.  Returns false if it is
 * too late for that. */
bool rewrite_without_first_token(struct job *job);
