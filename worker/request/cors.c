#include "worker/request/cors.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "proto/http/http.h"
#include "shm/base/conf.h"
#include "shm/base/mem.h"
#include "worker/base/lines.h"
#include "worker/base/route.h"

#define HEADERS_MAX 512 /* bytes of the names that a preflight asks for */
#define MAX_AGE                                                                                    \
	"600" /* seconds that a browser remembers the answer to a preflight; as Starlette's middleware, so vLLM */

static const char *
allowed_origin(const struct conf *conf, struct span origin)
{
	for (size_t i = 0; i < conf->ncors_origins; i++)
		if (strcmp(conf->cors_origins[i], "*") == 0 ||
			span_eq(origin, conf->cors_origins[i]))
			return conf->cors_origins[i];
	return NULL;
}

/* The names in a header's value are all in the configured list, and names at all: they are sent back. */
static bool
all_allowed(const struct conf *conf, struct span names)
{
	struct span name;

	while (http_list_next(&names, &name)) {
		size_t i = 0;

		if (!http_is_name(name))
			return false;
		while (i < conf->ncors_headers && strcmp(conf->cors_headers[i], "*") != 0 &&
			(strlen(conf->cors_headers[i]) != name.n ||
				strncasecmp(conf->cors_headers[i], name.p, name.n) != 0))
			i++;
		if (i == conf->ncors_headers)
			return false;
	}
	return true;
}

bool
cors_take(struct cors *c, const struct conf *conf, enum door door, const struct http_head *h)
{
	const struct http_header *origin, *headers;
	enum route route;

	if (conf->ncors_origins == 0 || door != DOOR_CLIENTS ||
		(origin = http_header(h, "origin")) == NULL)
		return false;
	c->origin = allowed_origin(conf, origin->value);
	route = route_find(h->path);
	if (c->origin == NULL || h->method != HTTP_M_OPTIONS || !route_open(route, door, conf) ||
		http_header(h, "access-control-request-method") == NULL)
		return false;
	(void)route_method_ok(route, h->method, &c->methods);
	headers = http_header(h, "access-control-request-headers");
	if (headers != NULL && headers->value.n <= HEADERS_MAX && all_allowed(conf, headers->value))
		c->headers = mem_strndup(headers->value.p, headers->value.n);
	return true;
}

void
cors_lines(const struct cors *c, const struct conf *conf, struct lines *l)
{
	if (c->origin == NULL)
		return;
	lines_put(l, "\r\nAccess-Control-Allow-Origin: ");
	lines_put(l, c->origin);
	if (strcmp(c->origin, "*") != 0)
		lines_put(l, "\r\nVary: Origin");
	if (conf->cors_credentials != 0)
		lines_put(l, "\r\nAccess-Control-Allow-Credentials: true");
	if (c->methods == NULL)
		lines_put(l, "\r\nAccess-Control-Expose-Headers: X-Request-Id, Retry-After");
}

void
cors_preflight_lines(const struct cors *c, struct lines *l)
{
	static_assert(HEADERS_MAX + 256 <= CORS_LINES_MAX, "methods and names are short");
	lines_put(l, "Access-Control-Allow-Methods: ");
	lines_put(l, c->methods);
	if (c->headers != NULL) {
		lines_put(l, "\r\nAccess-Control-Allow-Headers: ");
		lines_put(l, c->headers);
	}
	lines_put(l, "\r\nAccess-Control-Max-Age: " MAX_AGE "\r\n");
}

void
cors_free(struct cors *c)
{
	free(c->headers);
	c->headers = NULL;
}
