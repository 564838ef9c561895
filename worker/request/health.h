/*
 * The pages /health and /ready: which endpoints of each pool are up, and whether each pool can serve.
 *
 * Process: worker.  The pages are rendered from a copy of the endpoint table, outside of any read section.
 */
#pragma once
#include <stdbool.h>

struct evbuffer;
struct worker;

struct health_asked {
	const char *only;  /* the pool that is shown; NULL: all */
	bool all;          /* every shown pool must be able to serve, not only one */
	bool no_addresses; /* the engines' addresses are not shown */
};

/*
 * Writes the page into `out`.  Returns the status: 200 if the shown pools can serve, 404 if no pool is named
 * `only`, else 503.
 */
int health_page(struct worker *w, struct evbuffer *out, const struct health_asked *asked);
