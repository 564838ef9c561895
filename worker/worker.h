/*
 * A worker: one process, one event loop, no locks, no blocking call.  Takes requests from accept to the
 * last byte.
 */
#pragma once

struct heritage;

/* Runs until drained or the master is gone; returns the exit code (enum child_exit). */
int worker_main(const struct heritage *h);
