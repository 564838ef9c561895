/*
 * What an engine reports about itself: its models, its longest context, its version, and for SGLang its
 * role and the port where its KV cache is fetched.  All of this goes into the engine's `models` and
 * `runtime`, and from there into the table, where configured values win (master/fleet/rows.c).
 *
 * Process: master.
 * Ownership: health.c has one per engine.  fn may call any function here but learn_free().
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct engine;
struct ep_addr;
struct learn;

/*
 * learn_gate() has ended.  why: NULL if the gate is open, else why it is not.  `local`: this machine is
 * at fault, not the engine.
 */
typedef void learn_fn(const char *why, bool local, void *arg);

struct learn *learn_new(struct engine *e, learn_fn *fn, void *arg);
void learn_free(struct learn **);

/* True while the engine has not yet reported what must be known before it may be UP. */
bool learn_gated(const struct learn *l);
/* Queries the engine at an address that is not published yet.  fn is called once, later, unless
 * learn_forget() comes before.  Only while learn_gated(). */
void learn_gate(struct learn *l, const struct ep_addr *addr);
/* The engine is UP at e->addr: all queries are sent soon, then every 15 health intervals,
 * 60 s at most. */
void learn_up(struct learn *l);
/* ... or now, unless they are under way. */
void learn_now(struct learn *l);
/* The engine is down or has moved: another engine may answer next, so all is learned anew.  What was
 * learned before stays in force until then. */
void learn_forget(struct learn *l);

/* As learn_forget(), but what has been logged is not logged again. */
void learn_again(struct learn *l);

/* The query that the engine answers with 401 or 403: "GET /v1/models: status 401, engine refuses our key"; "" if there
 * is none. */
const char *learn_refused(const struct learn *l);

#define LEARN_SAID 256 /* bytes of either phrase */
/*
 * Write one phrase into buf, or "".  Return buf.  A misfit is a contradiction between the engine's report and the
 * configuration that would fail all its requests: it must not be UP.  learn_contradiction() returns a misfit or a
 * contradiction that is harmless, or may be.
 */
const char *learn_misfit(const struct engine *e, char *buf, size_t size);
const char *learn_contradiction(const struct engine *e, char *buf, size_t size);
