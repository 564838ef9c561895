#include "worker/request/models.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/request/table_copy.h"

void
page_add_quoted(struct evbuffer *out, const char *s)
{
	char buf[1600]; /* 256 bytes, every one escaped as \u00xx */

	if (json_quote(buf, sizeof(buf), s, strlen(s), 256) != -1)
		(void)evbuffer_add_printf(out, "%s", buf);
}

static void
add_model(struct evbuffer *out, uint64_t created_s, const char *name)
{
	(void)evbuffer_add_printf(out, "{\"id\":");
	page_add_quoted(out, name);
	(void)evbuffer_add_printf(out,
		",\"object\":\"model\",\"created\":%llu,\"owned_by\":\"pdrouter\",\"root\":",
		(unsigned long long)created_s);
	page_add_quoted(out, name);
	(void)evbuffer_add_printf(out, ",\"parent\":null}");
}

int
model_page(struct worker *w, struct evbuffer *out, const char *name)
{
	const struct table *t = rcu_enter(w->seg, w->slot);
	uint32_t number;
	const bool known = t != NULL && table_pool_by_model(t, name, &number) != NULL;
	const uint64_t created_s = known ? t->created_s : 0;
	char message[300];

	rcu_leave(w->seg, w->slot);
	if (known) {
		add_model(out, created_s, name);
		return 200;
	}
	(void)snprintf(message, sizeof(message), "The model `%s` does not exist.", name);
	(void)evbuffer_add_printf(out, "{\"error\":{\"message\":");
	page_add_quoted(out, message);
	(void)evbuffer_add_printf(
		out, ",\"type\":\"NotFoundError\",\"param\":\"model\",\"code\":404}}");
	return 404;
}

void
models_page(struct worker *w, struct evbuffer *out)
{
	struct table_models m;

	(void)evbuffer_add_printf(out, "{\"object\":\"list\",\"data\":[");
	(void)table_copy_models(w->seg, w->slot, &m);
	for (size_t at = 0; at < m.names.n; at += strlen(m.names.p + at) + 1) {
		if (at > 0)
			(void)evbuffer_add_printf(out, ",");
		add_model(out, m.created_s, m.names.p + at);
	}
	membuf_free(&m.names);
	(void)evbuffer_add_printf(out, "]}");
}
