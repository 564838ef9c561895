#include "tests/engine/responses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "tests/engine/conn.h"
#include "tests/engine/sim.h"

#define TOKENS 3 /* of each answer, as its usage says */

struct response {
	LIST_ENTRY(response) link;
	char id[RESPONSE_ID];
	uint64_t done_us;
	bool background, cancelled;
	struct response_texts texts;
};

static LIST_HEAD(, response) kept = LIST_HEAD_INITIALIZER(kept);

/* vLLM keeps responses with VLLM_ENABLE_RESPONSES_API_STORE=1 alone, SGLang always. */
static bool
stores(const struct conn *c)
{
	return c->sim->o.store || c->sim->o.engine == FLAVOUR_SGLANG;
}

bool
responses_in_background(struct jv doc)
{
	return json_true(json_get(doc, "background"));
}

static bool
wants_store(struct jv doc)
{
	const struct jv store = json_get(doc, "store");

	return store.p == NULL || json_true(store);
}

static struct response *
find(const char *id)
{
	struct response *r;

	LIST_FOREACH(r, &kept, link)
	if (strcmp(r->id, id) == 0)
		return r;
	return NULL;
}

static void
refuse(struct conn *c, int status, const char *param, const char *text)
{
	struct buf b = {0};

	BUF_LIT(&b, "{\"error\":{\"message\":");
	buf_json(&b, text, strlen(text));
	buf_fmt(&b, ",\"type\":\"invalid_request_error\",\"param\":\"%s\",\"code\":%d}}", param,
		status);
	conn_reply(c, status, "application/json", NULL, b.p, b.len);
	buf_free(&b);
}

/* The response of that id; NULL: there is none, which has been answered. */
static struct response *
look(struct conn *c, const char *id)
{
	struct response *r = find(id);
	char text[2 * RESPONSE_ID];

	if (c->sim->o.engine == FLAVOUR_SGLANG && strncmp(id, "resp_", 5) != 0) {
		(void)snprintf(text, sizeof(text),
			"Invalid 'response_id': '%s'. Expected an ID that begins with 'resp'.", id);
		refuse(c, 400, "response_id", text);
		return NULL;
	}
	if (r == NULL) {
		(void)snprintf(text, sizeof(text), "Response with id '%s' not found.", id);
		refuse(c, 404, "response_id", text);
	}
	return r;
}

static void
copy(struct jv text, char id[RESPONSE_ID])
{
	struct buf b = {0};

	json_text_buf(text, &b);
	(void)snprintf(id, RESPONSE_ID, "%s", buf_cstr(&b));
	buf_free(&b);
}

static bool
take_id(struct conn *c, struct jv doc, char id[RESPONSE_ID])
{
	const struct jv given = json_get(doc, "request_id");

	if (given.p == NULL) {
		(void)snprintf(id, RESPONSE_ID, "resp_%016llx%016llx",
			(unsigned long long)sim_random(c->sim),
			(unsigned long long)sim_random(c->sim));
		return true;
	}
	if (json_kind(given) != '"') {
		conn_error(c, 400, "BadRequestError", "request_id is not a string");
		return false;
	}
	copy(given, id);
	if (find(id) != NULL) { /* a router's mistake: vLLM would forget the former response */
		count_twice(c->sim, CTR_duplicate_request_ids, id, strlen(id));
		conn_error(c, 400, "BadRequestError", "request id %s was used before", id);
		return false;
	}
	return true;
}

bool
responses_begin(struct conn *c, struct jv doc, char id[RESPONSE_ID])
{
	const struct jv previous = json_get(doc, "previous_response_id");
	char text[RESPONSE_ID];

	if (!take_id(c, doc, id))
		return false;
	if (responses_in_background(doc) && !wants_store(doc)) {
		conn_error(c, 400, "BadRequestError",
			"background can only be used when `store` is true");
		return false;
	}
	if (responses_in_background(doc) && !stores(c)) {
		refuse(c, 400, "background",
			"This vLLM engine does not support `store=True` and therefore does not support the "
			"background mode. To enable these features, set the environment variable "
			"`VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server.");
		return false;
	}
	if (json_null(previous))
		return true;
	copy(previous, text);
	return look(c, text) != NULL;
}

void
responses_keep(struct conn *c, struct jv doc, const char *id, struct response_texts *t)
{
	struct response *r;

	if (!stores(c) || !wants_store(doc)) {
		buf_free(&t->waits);
		buf_free(&t->cancelled);
		buf_free(&t->whole);
		return;
	}
	r = calloc(1, sizeof(*r));
	if (r == NULL)
		abort();
	(void)snprintf(r->id, sizeof(r->id), "%s", id);
	r->background = responses_in_background(doc);
	r->done_us = sim_now_us();
	if (r->background)
		r->done_us += (uint64_t)(TOKENS * c->sim->o.token_delay_ms * 1000);
	r->texts = *t;
	LIST_INSERT_HEAD(&kept, r, link);
}

static const struct buf *
text_of(const struct response *r)
{
	if (r->cancelled)
		return &r->texts.cancelled;
	return sim_now_us() >= r->done_us ? &r->texts.whole : &r->texts.waits;
}

/* The id of the path, which goes on with `end`. */
static void
id_of_path(struct conn *c, const char *end, char id[RESPONSE_ID])
{
	const char *from = buf_cstr(&c->url) + strlen("/v1/responses/");
	const size_t n = strcspn(from, "?"), rest = strlen(end);

	(void)snprintf(id, RESPONSE_ID, "%.*s", (int)(n - rest), from);
}

static void
reply(struct conn *c, const struct response *r)
{
	const struct buf *b = text_of(r);

	conn_reply(c, 200, "application/json", NULL, b->p, b->len);
}

void
responses_get(struct conn *c)
{
	char id[RESPONSE_ID];
	const struct response *r;

	id_of_path(c, "", id);
	r = look(c, id);
	if (r != NULL)
		reply(c, r);
}

void
responses_cancel(struct conn *c)
{
	char id[RESPONSE_ID];
	struct response *r;

	id_of_path(c, "/cancel", id);
	r = look(c, id);
	if (r == NULL)
		return;
	if (r->cancelled || sim_now_us() >= r->done_us) {
		refuse(c, 400, "response_id", "Cannot cancel a synchronous response.");
		return;
	}
	r->cancelled = true;
	reply(c, r);
}

void
responses_clear(void)
{
	struct response *r;

	while ((r = LIST_FIRST(&kept)) != NULL) {
		LIST_REMOVE(r, link);
		buf_free(&r->texts.waits);
		buf_free(&r->texts.cancelled);
		buf_free(&r->texts.whole);
		free(r);
	}
}
