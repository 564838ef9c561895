/*
 * The pages /health and /ready: which endpoints of each pool are up, and whether each pool can serve.
 *
 * Process: worker.  The pages are rendered from a copy of the endpoint table, outside of any read section.
 */
#pragma once
#include <stdbool.h>

struct evbuffer;
struct worker;

/*
 * Writes the page of all pools, or of the pool `only` if it is not NULL, into `out`.  Returns the status: 200
 * if one shown pool can serve (with `all`: if every shown pool can), 404 if no pool is named `only`, else 503.
 */
int health_page(struct worker *w, struct evbuffer *out, const char *only, bool all);
