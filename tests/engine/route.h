/* Which path is served by whom; counts, checks the key and applies faults on the way. */
#pragma once

struct buf;
struct conn;
struct sim;

#define ROUTE_OTHER 0

void route_request(struct conn *c);                       /* c holds a whole request */
void route_count(struct sim *sim, int route, int status); /* status 0: no answer */
void route_metrics(struct sim *sim, struct buf *b);
