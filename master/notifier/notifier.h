/*
 * The notifier: drains the ZMQ socket on which engines say "the KV cache of request R has arrived" and
 * completes R's flag in shared memory.  Remembers nothing, so it cannot grow.  The only place that
 * includes zmq.h.
 */
#pragma once

struct heritage;

/* Runs until told to go or the master is gone; returns the exit code (enum child_exit). */
int notifier_main(const struct heritage *h);
