/*
 * The endpoints that a command of the operator means.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>

#include "proto/http/http.h"

struct away;
struct endpoint;
struct evbuffer;
struct fleet;

#define WANTED_MAX 256 /* bytes of a word as the operator writes it */

/* One URL may be several endpoints, in other pools and roles. */
struct wanted {
	char endpoint[WANTED_MAX]; /* "": `host` or `group` is set */
	char host[WANTED_MAX];     /* all endpoints of a host */
	char group[WANTED_MAX];    /* all endpoints of a group */
	char pool[WANTED_MAX];     /* "": all */
	int role;                  /* enum role; -1: both */
	bool parsed;               /* `at` is the endpoint's */
	struct http_url at;
};

/*
 * `words`: "ENDPOINT | host=HOST | group=GROUP [role=ROLE] [pool=POOL]"; ENDPOINT is a URL or host:port.  0, or -1: then
 * *out holds the reason, one line without its end.
 */
int wanted_parse(const char *words, struct wanted *ret, struct evbuffer *out);
/* 0 if at least one endpoint is meant, and an ENDPOINT means one URL; else -1 as above, and similar names. */
int wanted_resolve(const struct fleet *f, const struct wanted *w, struct evbuffer *out);

bool wanted_is(const struct wanted *w, const struct endpoint *ep);
/* An endpoint that is not there now has no group. */
bool wanted_is_away(const struct wanted *w, const struct away *a);
