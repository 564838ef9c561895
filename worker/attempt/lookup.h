/*
 * The lookup before the legs: what must be known to make them is asked of an engine (the prompt's tokens, where KV
 * is fetched).  Where an answer serves all attempts with that engine, one attempt asks, and the others wait for its answer
 * (LOOKUP_SHARED).
 *
 * Process: worker.
 */
#pragma once

struct job;
struct worker;

/* Sends the lookups that are due, and begins the legs of the attempts that have none left.  The first attempts of several
 * branches begin together.  The job may be over afterwards. */
void lookup_go_on(struct job *job);
/* A shared lookup has its answer: the attempts that waited for it try again. */
void lookup_wake(struct worker *w);
