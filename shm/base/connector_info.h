/*
 * What master and worker must know about each connector, as data: connector_info[CONNECTOR_NIXL] and
 * so on, one row of connector_list.h each.  The master takes configuration keys, defaults and checks from
 * it.  The functions of a connector are the worker's (worker/handshake/).
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"

#define CONNECTOR_KEYS_MAX 8

/* What the engines hold after a request has been given up, and so what the router must do. */
enum connector_cleanup {
	CLEANUP_NONE, /* nothing: closing the connections is enough */
	CLEANUP_KV, /* the prefill engine holds KV blocks until a decode engine has fetched them */
	CLEANUP_ABORT /* each engine waits for the other: both need an /abort_request */
};

/* What an endpoint of the pool must be configured with. */
enum connector_needs {
	CONNECTOR_NEEDS_NOTHING,
	CONNECTOR_NEEDS_RECEIVER, /* decode: receiver_init_port and receiver_alloc_port */
	CONNECTOR_NEEDS_KV_ADDR   /* kv_addr, unless engines announce themselves */
};

struct connector_info {
	const char *name; /* in configuration, log and metrics; also of its map of keys in a pool */
	enum connector_cleanup cleanup;
	bool kv_leased;    /* the prefill engine holds the KV for a limited time: kv_lease */
	bool kv_bound;     /* KV parameters are valid for the chosen decode engine only */
	bool decode_alone; /* a decode engine can serve a whole request: fallback, routing_threshold */
	bool decode_cached; /* a decode engine fetches only KV that it does not have: decode_policy cache_aware */
	/* /v1/messages and /v1/responses carry its KV parameters, or it has none */
	bool agent_paths;
	bool one_engine;                   /* `engine` is the only possible value */
	bool generate_path;                /* the engines serve SGLang's /generate */
	enum engine_kind engine;           /* default */
	enum handoff_kind handoff;         /* default */
	unsigned handoffs;                 /* a bit for each enum handoff_kind that is possible */
	enum remote_host_kind remote_host; /* default */
	uint16_t bootstrap_port; /* of a prefill engine without a configured one; 0: learned */
	enum connector_needs needs;
	/* rows of CONF_CONNECTOR_KEYS (master/config/conf_keys.h) that its map may have; NULL ends them */
	const char *keys[CONNECTOR_KEYS_MAX + 1];
};

extern const struct connector_info connector_info[CONNECTOR_N];
