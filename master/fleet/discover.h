/*
 * Where endpoints come from: folds the pools of a configuration, and the endpoints that other sources
 * (DNS, announcements) have found for them, into one set keyed by (url, role, pool name).  Reports which
 * endpoints were added, kept, changed and removed since the last fold.  Knows no health.
 *
 * Process: master.
 * Ownership: the set keeps pointers into the configuration of the last fold, which therefore must live
 * until the next discover_fold() has returned.  The lists of other sources are copied.  A copy lives
 * until the first discover_fold() without it has returned.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "shm/base/conf.h"
#include "shm/core/layout.h"

struct discover;
struct fleet;

enum discover_what { DISCOVER_ADDED, DISCOVER_KEPT, DISCOVER_CHANGED, DISCOVER_REMOVED };

struct discover_event {
	enum discover_what what;
	const struct conf_pool *pool;         /* REMOVED: NULL */
	const struct conf_endpoint *endpoint; /* REMOVED: NULL */
	const char *source;  /* "config", "announced", "former", "dns NAME"; as `endpoint` lives */
	bool found;          /* by a source, and in no list of the configuration */
	const char *kv_addr; /* as some source said, else "" */
	void *object;        /* what fn returned for this key earlier; ADDED: NULL */
};

/* Returns the object to keep for this key; the result is not used for REMOVED. */
typedef void *discover_fn(const struct discover_event *ev, void *arg);

/* An endpoint that is in no list of the configuration. */
struct found {
	struct conf_endpoint as; /* url: host or address with its port, valid by http_url_parse() */
	char kv_addr[ANNOUNCED_ADDRESS]; /* "" if the source does not say */
};

/*
 * The function by which a source other than the configuration's lists reports a pool's endpoints
 * (fleet_found()).
 */
typedef void found_fn(
	struct fleet *f, const char *pool, const char *source, const struct found *list, size_t n);

#define DISCOVER_CONFIG "config"
/* The other kinds of sources; of a text with a colon only the part before it is shown. */
#define DISCOVER_ANNOUNCED "announced"
#define DISCOVER_FORMER "former" /* "former:ROLE": former.c */
#define DISCOVER_KEY 320         /* bytes of a source's name */
/* "dns NAME:PORT:ROLE:SCHEME", the source of a DNS entry.  Returns buf. */
const char *discover_dns_key(const struct conf_dns *d, char buf[DISCOVER_KEY]);

struct discover *discover_new(void);
void discover_free(struct discover **);

/*
 * From the next fold on `source` contributes this list (copied, n may be 0) to the pool of that
 * name, in place of its previous list.  True if the list differs.  An entry with an invalid URL is
 * left out.
 */
bool discover_found(struct discover *d, const char *pool, const char *source,
	const struct found *list, size_t n);

/*
 * Calls fn once for each endpoint, first those of the configuration in its order, then those of
 * other sources, then once for each removed endpoint.  A key that several sources have counts once:
 * the configuration's own entry wins, then the first source's.  Sources that are no longer in the
 * configuration are dropped.
 */
void discover_fold(struct discover *d, const struct conf *conf, discover_fn *fn, void *arg);
/* Calls fn with the object of each endpoint that a fold with this configuration would remove. */
void discover_leaving(struct discover *d, const struct conf *conf,
	void (*fn)(void *object, void *arg), void *arg);
/* Upper limit of the endpoints the next fold reports as there. */
size_t discover_most(const struct discover *d, const struct conf *conf);
