/*
 * Where endpoints come from: folds the pools of a configuration into a set keyed by (url, role,
 * pool name) and says what was added, kept, changed and removed since the last one.  Knows no
 * health.
 *
 * Process: master.
 * Ownership: the set keeps pointers into the configuration it was last given, which therefore must
 * live until the next discover_fold() has returned.
 */
#pragma once

struct conf;
struct conf_endpoint;
struct conf_pool;
struct discover;

enum discover_what { DISCOVER_ADDED, DISCOVER_KEPT, DISCOVER_CHANGED, DISCOVER_REMOVED };

struct discover_event {
	enum discover_what what;
	const struct conf_pool *pool;         /* REMOVED: NULL */
	const struct conf_endpoint *endpoint; /* REMOVED: NULL */
	void *object; /* what fn returned for this key earlier; ADDED: NULL */
};

/* Returns the object to keep for this key; not looked at for REMOVED. */
typedef void *discover_fn(const struct discover_event *ev, void *arg);

struct discover *discover_new(void);
void discover_free(struct discover **);

/*
 * Calls fn once for each endpoint in the order of the configuration (a key that stands there twice
 * counts once, the first line wins), then once for each that is gone.
 */
void discover_fold(struct discover *d, const struct conf *conf, discover_fn *fn, void *arg);
