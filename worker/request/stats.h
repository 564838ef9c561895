/*
 * The /metrics page: sums the slabs of all processes, and shows the endpoint table with its load.
 *
 * Process: worker, any of them.
 */
#pragma once

struct evbuffer;
struct worker;

void stats_page(struct worker *w, struct evbuffer *out);
