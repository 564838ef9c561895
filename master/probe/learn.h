/*
 * What an engine reports about itself: its models, its longest context, its version, and for SGLang its
 * role and the port where its KV cache is fetched.  Into the engine's `models`
 * and `runtime`, and with them into the table; what is configured wins there (publish.c).
 *
 * Process: master.
 * Ownership: health.c has one per endpoint.  fn may call anything here but learn_free().
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct engine;
struct ep_addr;
struct learn;

/*
 * The end of what learn_gate() began: why NULL: the gate is open.  `local`: this machine is to blame,
 * not the engine.
 */
typedef void learn_fn(const char *why, bool local, void *arg);

struct learn *learn_new(struct engine *e, learn_fn *fn, void *arg);
void learn_free(struct learn **);

/* True while something is not known yet that must be before this endpoint may be UP. */
bool learn_gated(const struct learn *l);
/* Asks for it at an address not yet proven; fn is called once, later, unless learn_forget() comes
 * before.  Only while learn_gated(). */
void learn_gate(struct learn *l, const struct ep_addr *addr);
/* The endpoint is UP at e->addr: everything is asked soon, then every 30 s. */
void learn_up(struct learn *l);
/* The endpoint is down, or elsewhere: what answers next may be another engine, so everything is
 * learned anew.  What was learned stays in force until then. */
void learn_forget(struct learn *l);

/*
 * What the engine says of itself against what is configured: one phrase into buf, "" if nothing
 * contradicts.  Returns buf.
 */
const char *learn_contradiction(const struct engine *e, char *buf, size_t size);
