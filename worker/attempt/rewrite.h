/*
 * Whether what the engines say must be rewritten for the client, and how.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct job;

/* Makes job->answer for the job as it is planned, or leaves it NULL: the engine's own words are passed on. */
void rewrite_plan(struct job *job);
/* The prefill engine did not tell its first token: the decode engine makes it.  False: it is too late for that. */
bool rewrite_without_first_token(struct job *job);
