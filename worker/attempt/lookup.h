/*
 * The lookup before the legs: a request to an engine for what the legs need (the prompt's
 * tokens, the address of the KV).  If an answer serves all attempts with that engine, one
 * attempt sends the lookup and the others wait for its answer (LOOKUP_SHARED).
 *
 * Process: worker.
 */
#pragma once

struct job;
struct worker;

/* Sends the lookups that are due, and begins the legs of the attempts that have none left.  The first attempts of several
 * branches begin together.  The job may be over afterwards. */
void lookup_go_on(struct job *job);
/* A shared lookup has its answer: the attempts that waited for the answer continue. */
void lookup_wake(struct worker *w);
