/*
 * The notifier: drains the ZMQ sockets on which engines say "the KV cache of request R has arrived"
 * (PULL), and completes R's flag in shared memory; and "I am here" (ROUTER), which it notes in the table
 * of announcements (shm/announce.h) for the master.  Remembers nothing else, so it cannot grow.  The
 * only place that includes zmq.h.
 */
#pragma once

struct heritage;

/* Runs until the master tells it to end or is gone; returns the exit code (enum child_exit). */
int notifier_main(const struct heritage *h);
