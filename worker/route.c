#include "worker/route.h"

/* clang-format off */
static const struct {
	const char *path;
	bool generates;
} routes[ROUTE_N] = {
	[ROUTE_NONE] = { "other", false },
	[ROUTE_CHAT] = { "/v1/chat/completions", true },
	[ROUTE_COMPLETIONS] = { "/v1/completions", true },
	[ROUTE_MODELS] = { "/v1/models", false },
	[ROUTE_LIVE] = { "/live", false },
	[ROUTE_HEALTH] = { "/health", false },
	[ROUTE_READY] = { "/ready", false },
	[ROUTE_METRICS] = { "/metrics", false },
	[ROUTE_VERSION] = { "/version", false },
};
/* clang-format on */

enum route
route_find(struct span path)
{
	for (enum route r = ROUTE_NONE + 1; r < ROUTE_N; r++)
		if (span_eq(path, routes[r].path))
			return r;
	return ROUTE_NONE;
}

const char *
route_path(enum route r)
{
	return routes[r].path;
}

bool
route_generates(enum route r)
{
	return routes[r].generates;
}

bool
route_method_ok(enum route r, enum http_method m, const char **ret_allow)
{
	*ret_allow = routes[r].generates ? "POST" : "GET, HEAD";
	return routes[r].generates ? m == HTTP_M_POST : m == HTTP_M_GET || m == HTTP_M_HEAD;
}
