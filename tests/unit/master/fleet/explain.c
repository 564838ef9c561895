/* What `pdctl explain` says of a fleet, and of one with many engines. */
#include "tests/unit/master/fleet.h"

#include <event2/buffer.h>
#include <json-c/json.h>
#include <stdio.h>

#include "master/fleet/explain.h"
#include "master/fleet/state.h"

#define ENGINES 1500
#define GONE 500 /* of them, no longer configured: slots are in another order than the list */

static void
setup(void)
{
	fleet_setup(2 * ENGINES, 2);
}

TestSuite(explain, .init = setup, .fini = fleet_teardown, .timeout = 60);

/* The engines `from` to `until`, the last one first. */
static void
configure(unsigned from, unsigned until)
{
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");
	char url[64];

	c->health_interval_ms = 3600000;
	for (unsigned i = until; i-- > from;) {
		(void)snprintf(url, sizeof(url), "http://127.0.0.1:%u", 20000 + i);
		conf_endpoint(p, ROLE_DECODE, url);
	}
	apply(c);
}

static struct json_object *
decode_engines(struct json_object *answer)
{
	struct json_object *roles, *decode, *engines;

	cr_assert(json_object_object_get_ex(answer, "roles", &roles));
	cr_assert(json_object_object_get_ex(roles, "decode", &decode));
	cr_assert(json_object_object_get_ex(decode, "engines", &engines));
	return engines;
}

static const char *
text(struct json_object *o, const char *key)
{
	struct json_object *v = NULL;

	cr_assert(json_object_object_get_ex(o, key, &v), "%s", key);
	return v != NULL ? json_object_get_string(v) : "";
}

static struct json_object *
ask(void)
{
	struct evbuffer *out = evbuffer_new();
	struct json_object *answer;

	cr_assert_eq(explain(fleet, "json m", NULL, 0, out), 0);
	cr_assert_eq(evbuffer_add(out, "", 1), 0);
	answer = json_tokener_parse((const char *)evbuffer_pullup(out, -1));
	cr_assert_not_null(answer);
	evbuffer_free(out);
	return answer;
}

/* Each third engine is drained: the word beside each engine is that of its own endpoint. */
Test(explain, each_of_many_engines_has_its_own_reason)
{
	struct json_object *answer, *engines;

	configure(0, ENGINES);
	configure(GONE, ENGINES + GONE);
	for (size_t i = 0; i < fleet->norder; i++) {
		state_set(fleet->order[i], EP_UP, false);
		if (i % 3 == 0)
			state_drain(fleet->order[i]);
	}
	answer = ask();
	engines = decode_engines(answer);
	cr_assert_eq(json_object_array_length(engines), ENGINES);
	cr_assert_eq(fleet->norder, ENGINES);
	for (size_t i = 0; i < fleet->norder; i++) {
		struct json_object *o = json_object_array_get_idx(engines, i);

		cr_assert_str_eq(text(o, "url"), fleet->order[i]->engine.url);
		cr_assert_str_eq(text(o, "why"), i % 3 == 0 ? "drained" : "");
	}
	(void)json_object_put(answer);
}
