/*
 * Paths: which of them go through an engine, which the router answers itself.
 */
#pragma once
#include <stdbool.h>

#include "proto/http.h"

enum route {
	ROUTE_NONE, /* no such path */
	ROUTE_CHAT,
	ROUTE_COMPLETIONS,
	ROUTE_MODELS,
	ROUTE_LIVE,
	ROUTE_HEALTH,
	ROUTE_READY,
	ROUTE_METRICS,
	ROUTE_VERSION,
	ROUTE_N
};

/* Of a request's path, exactly as written. */
enum route route_find(struct span path);
/* The path; "other" for ROUTE_NONE: the metric label. */
const char *route_path(enum route r);
/* True for the paths that run prefill and decode. */
bool route_generates(enum route r);
/* True if the method is allowed there; *ret_allow is the Allow header's value. */
bool route_method_ok(enum route r, enum http_method m, const char **ret_allow);
