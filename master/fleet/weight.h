/*
 * `pdctl weight`: the weight of an endpoint in place of the one that is configured.  The next table has it, and so all workers
 * follow with their next selection.  It outlives a reload, and with a state_file a restart (keep.h), as a drain does.
 * It ends when the configuration gives the endpoint another weight than at that time: the last word counts.
 *
 * Process: master.
 */
#pragma once
struct evbuffer;
struct fleet;

/*
 * `what`: "N | default", a space, and endpoints (wanted.h).  Appends a line for each of them and returns 0, or -1:
 * then *out holds the reason, one line without its end.
 */
int weight_set(struct fleet *f, const char *what, struct evbuffer *out);
/* The same in an older instance, without an answer. */
void weight_follow(struct fleet *f, const char *what);
