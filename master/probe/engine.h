/*
 * One engine as the probes see it, what all probes share, and how the probes report to the room
 * above (struct probe_ops).
 *
 * Process: master.
 * Ownership: the room above owns each engine (master/fleet embeds it in its endpoint) and calls
 * health_start(), health_stop() and scrape_stop().  Probes own what they have learned in it.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "master/probe/models.h"
#include "proto/http/http.h"
#include "proto/tls/client.h"
#include "shm/base/conf.h"
#include "shm/table.h"

struct engine;
struct health;
struct metrics_slab;
struct probe_env;
struct resolver;
struct scrape;
struct seg;
struct turns;

#define ENGINE_NO_SLOT UINT32_MAX

/*
 * What the room above hears.  Each is called from an event of the loop.  It must not free the
 * engine, nor stop its probes.
 */
struct probe_ops {
	/* The engine serves: addr, models and runtime are filled in. */
	void (*up)(struct engine *);
	/* An engine that was up, or that is still starting, has failed `fall` rounds. */
	void (*down)(struct engine *);
	/* An engine that is up has answered one more round, on a new connection. */
	void (*accepted)(struct engine *);
	/* An engine that was up must be learned anew: up() follows when it has been. */
	void (*unlearned)(struct engine *);
	/* The engine answers, and reports that it is not what the configuration says. */
	void (*misconfigured)(struct engine *);
	/* The engine has ended: what answers from now on is another process. */
	void (*restarted)(struct engine *);
	/* addr, models or runtime have changed.  `later`: a delay of 100 ms does no harm. */
	void (*changed)(struct engine *, bool later);
};

/* What all probes share.  W: the room above; shortage_ms: engine.c. */
struct prober {
	struct seg *seg;
	struct metrics_slab *slab; /* the master's */
	struct probe_env *env;
	struct turns *turns;
	struct resolver *resolver;
	const struct conf *conf; /* in force; NULL before the first one */
	const struct probe_ops *ops;
	uint64_t shortage_ms; /* clock_ms() when a shortage was last logged; 0: never */
	uint32_t often;       /* engines whose load of others changes; W: scrape.c */
};

/* What an engine reports about itself; "" and 0: it has not. */
struct runtime {
	char version[48];
	char mode[16]; /* SGLang's disaggregation_mode */
	uint32_t bootstrap_port;
	uint32_t max_context; /* tokens */
	uint64_t seed;        /* SGLang's random_seed: most often drawn anew at each start */
};

struct engine {
	struct prober *prober;
	/* Own copies: an engine may outlive its configuration. */
	char *url, *pool_name;
	char *authority; /* host:port for the Host header */
	enum role role;
	struct http_url at;
	uint64_t number; /* counts engines: spreads their probes over time */

	/* W: the room above */
	const struct conf_pool *pool;     /* NULL: it is not probed */
	const struct conf_endpoint *conf; /* NULL: it is not probed */
	uint32_t slot;                    /* of its words in shared memory, or ENGINE_NO_SLOT */
	bool found;                       /* fact: it is in no list of the configuration */

	/* W: health.c; models, models_number and runtime: learn.c */
	struct tls_memory memory; /* of its latest session of TLS; filled by its probes */
	struct ep_addr addr;      /* proven by a probe, or given as a literal; family 0: none yet */
	struct model_set models;
	uint64_t models_number; /* counts changes of `models` and `runtime` */
	struct runtime runtime;
	struct health *health; /* NULL: not probed */
	/* scrape.c and learn.c call it with the sign of a restart that they have met, or NULL if the engine
	 * is misconfigured; itself NULL: not probed */
	void (*look_again)(struct engine *, const char *sign);

	/* W: scrape.c */
	struct scrape *scrape; /* NULL: not scraped */
	double start_s;        /* process_start_time_seconds of its page; 0: none in this life */
	double latest_s;       /* the latest of all lives */
};

/* "host:port", with brackets around an IPv6 address; the caller frees it. */
char *engine_authority(const struct http_url *at);

/* Fills a zeroed engine in from its configuration; slot is ENGINE_NO_SLOT. */
void engine_init(struct engine *e, struct prober *prober, const struct conf_pool *pool,
	const struct conf_endpoint *conf, uint64_t number);
/* Frees what the engine holds.  Its probes must have been stopped. */
void engine_fini(struct engine *e);

/*
 * Milliseconds until this engine's next turn in a grid of `interval_ms`, at least half an interval.
 * Each engine has its own fixed offset in the grid, so probes are spread evenly over the interval.
 */
uint64_t engine_wait_ms(const struct engine *e, uint64_t now_ms, uint64_t interval_ms);

/* How the engine is verified; NULL: it speaks no TLS. */
struct tls_client *engine_tls(const struct engine *e);

/* The key that the engine is sent, or NULL.  A found engine gets none unless its pool trusts it. */
const char *engine_key(const struct engine *e);

/* A probe failed because this machine lacks descriptors or memory.  Logged at most every 10 s. */
void engine_shortage(struct engine *e, const char *why);
