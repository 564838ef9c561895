/*
 * Serving: the attempts of a job from the first to the last.  This is the door of the room.
 * The request room begins a job's attempts, ticks them, and reports when the client reads
 * again; legs report here (leg_ops).
 *
 * Process: worker.
 */
#pragma once
#include <stdint.h>

#include "worker/base/end_list.h"

struct reserved;
struct job;
struct job_ops;
struct transfer;
struct worker;

/* Initializes the job of a request; `ops` sends to its client. */
void serve_init(struct job *job, struct worker *w, const struct job_ops *ops);

/* Frees what hangs from a job that is over. */
void serve_free(struct job *job);
/* The engines of `n` branches are chosen: makes the branches, moves the engines into their attempts, and begins these.
 * Returns END_OK, or why one of the attempts cannot begin; then none has sent anything. */
enum req_end serve_begin(struct job *job, struct reserved *reserved, uint32_t n);
/* Sends the lookups and legs that are due: call it once the request is in SERVE.  The job may
 * be over afterwards. */
void serve_start(struct job *job);
/* Each tick: checks the time limits of lookups, notices and legs.  The job may be over afterwards. */
void serve_tick(struct job *job, uint64_t now_ms);
/* Returns the milliseconds until the next tick that the job needs, at most `most`. */
uint64_t serve_next_look(const struct job *job, uint64_t most, uint64_t now_ms);
/* Reads the bytes that the engines have sent by now.  The job may be over afterwards. */
void serve_poll(struct job *job);
/* The job has ended with job->end: its attempts end, or release what their engines hold. */
void serve_end(struct job *job);
/* The notices that the KV has arrived are complete, or are no longer waited for. */
void serve_kv_ready(struct transfer *t);

/* Detached attempts: the same tick, and their end. */
void serve_tick_detached(struct worker *w, uint64_t now_ms);
void serve_end_detached(struct worker *w);
