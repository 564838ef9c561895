/*
 * Engines that are slower than their peers: the master compares the estimates of all workers
 * (shm/pace.h) and lowers the share of the slow ones.
 *
 * Peers are the engines of one pool and role that serve the same models.  An engine is slow from `factor` times the
 * median of the other peers on, until it is below three quarters of that, each for three comparisons.  The median is
 * taken of the peers that have `min_samples`; for an engine that is slow, of all others with a few samples left, because
 * samples fade.  It is slow no longer when none of them, or none of its own, are left.  Both times of an engine must
 * exceed the medians: the time of a sample and the time per token.  So longer prompts and shorter answers are no fault.
 * Two things may slow an engine in proportion: requests that others than this router have there, and a weight below its
 * peers'.
 *
 * Process: master.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct endpoint;
struct fleet;
struct outlier;

/* Begins to compare. */
struct outlier *outlier_new(struct fleet *f);
void outlier_free(struct outlier **);
/* One comparison of all engines.  A timer does it each second, or more often. */
void outlier_turn(struct outlier *o, uint64_t now_ms);
/* Its engine comes up: what was measured before was of its former life. */
void outlier_up(struct endpoint *ep);

/* Times are logarithms as in shm/pace.h. */
struct outlier_own {
	double time, token;
	double foreign; /* requests that others than this router have there */
	double weight;
};
struct outlier_peers {
	double time, token;           /* medians */
	double load, foreign, weight; /* means; load: the requests of all */
};
/* How many times the time of its peers an engine takes, beyond what may slow it. */
double outlier_times(const struct outlier_own *own, const struct outlier_peers *peers);
/* The median of n sorted values, or of the others if `without` is one of them.  At least one is left. */
double outlier_median(const double *sorted, size_t n, const double *without);
