/*
 * The /metrics page: sums the slabs of all processes, and shows the endpoint table with its load.
 *
 * The page of a large fleet has megabytes.  It is written in pieces, so that no event waits for the whole page.
 *
 * Process: worker, any of them.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "worker/request/exposition.h"
#include "worker/request/table_copy.h"

struct evbuffer;
struct worker;

/* A page that is being written. */
struct stats {
	struct worker *w;
	enum exposition_form form;
	struct table_copy t;         /* as it was when the page began */
	uint32_t section, nsections; /* `section`: the one that is being written */
	uint32_t row, at;            /* of that section: metric, endpoint */
};

void stats_begin(struct stats *s, struct worker *w, enum exposition_form form);
/* Writes the next piece, some 64 KiB or less.  Returns false if that was the last one. */
bool stats_more(struct stats *s, struct evbuffer *out);
void stats_end(struct stats *s);
