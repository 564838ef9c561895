#include "worker/request/models.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <string.h>

#include "proto/json/json_string.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/request/key.h"
#include "worker/request/req.h"
#include "worker/request/table_copy.h"

void
page_add_quoted(struct evbuffer *out, const char *s)
{
	char buf[1600]; /* 256 bytes, every one escaped as \u00xx */

	if (json_quote(buf, sizeof(buf), s, strlen(s), 256) != -1)
		(void)evbuffer_add_printf(out, "%s", buf);
}

/* `card`: what the engines report of the model; "": nothing. */
static void
add_model(struct evbuffer *out, uint64_t created_s, const char *name, const char *card)
{
	(void)evbuffer_add_printf(out, "{\"id\":");
	page_add_quoted(out, name);
	(void)evbuffer_add_printf(
		out, ",\"object\":\"model\",\"created\":%llu,", (unsigned long long)created_s);
	if (card[0] != '\0') {
		(void)evbuffer_add_printf(out, "%s}", card);
		return;
	}
	(void)evbuffer_add_printf(out, "\"owned_by\":\"pdrouter\",\"root\":");
	page_add_quoted(out, name);
	(void)evbuffer_add_printf(out, ",\"parent\":null}");
}

int
model_page(const struct req *req, struct evbuffer *out, const char *name)
{
	const bool may = key_has_model(req, name);
	struct worker *w = req->w;
	const struct table *t = rcu_enter(w->seg, w->slot);
	char message[300], card[TABLE_CARD_MAX] = "";
	const struct table_pool *tp = NULL;
	uint64_t created_s = 0;
	uint32_t number;

	if (t != NULL)
		tp = table_pool_by_model(t, name, &number);
	if (tp != NULL) {
		created_s = t->created_s;
		if (tp->cards != NULL)
			memcpy(card, tp->cards[number], strlen(tp->cards[number]) + 1);
	}
	rcu_leave(w->seg, w->slot);
	if (tp != NULL && may) {
		add_model(out, created_s, name, card);
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
models_page(const struct req *req, struct evbuffer *out)
{
	struct worker *w = req->w;
	bool first = true;
	struct table_models m;
	const char *name, *card;

	(void)evbuffer_add_printf(out, "{\"object\":\"list\",\"data\":[");
	(void)table_copy_models(w->seg, w->slot, &m);
	for (size_t at = 0; at < m.text.n; at = (size_t)(card - m.text.p) + strlen(card) + 1) {
		name = m.text.p + at;
		card = name + strlen(name) + 1;
		if (!key_has_model(req, name))
			continue;
		if (!first)
			(void)evbuffer_add_printf(out, ",");
		first = false;
		add_model(out, m.created_s, name, card);
	}
	membuf_free(&m.text);
	(void)evbuffer_add_printf(out, "]}");
}
