#include "worker/request/key.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/http/http.h"
#include "shm/api_keys.h"
#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/request/client.h"
#include "worker/request/key_seen.h"
#include "worker/request/req.h"
#include "worker/schedule/way.h"

static const char no_key[] = "the request has none: send Authorization: Bearer, or x-api-key";
static const char unknown_key[] = "no such key";
static const char expired_key[] = "the key has expired";

/* Returns false if the header has no credentials of that scheme, which ends with a space. */
static bool
has_scheme(const struct http_header *f, const char *scheme, struct span *ret)
{
	const size_t n = strlen(scheme);

	if (f == NULL || f->value.n < n || !span_is((struct span){f->value.p, n}, scheme))
		return false;
	*ret = (struct span){f->value.p + n, f->value.n - n};
	while (ret->n > 0 && *ret->p == ' ') {
		ret->p++;
		ret->n--;
	}
	return true;
}

/* The value of a letter of base64 (RFC 4648, section 4); 64: it is none. */
static uint32_t
sextet(char c)
{
	static const char letters[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = memchr(letters, c, 64);

	return at != NULL ? (uint32_t)(at - letters) : 64;
}

#define BASIC_MAX 512 /* bytes of user and password */

/* The password in credentials of Basic (RFC 7617), as browsers send them; no bytes: there is none. */
static struct span
password_of(struct span coded, char buf[BASIC_MAX])
{
	uint32_t bits = 0;
	size_t n = 0;
	const char *colon;

	for (size_t i = 0; i < coded.n && coded.p[i] != '='; i++) {
		const uint32_t six = sextet(coded.p[i]);

		if (six == 64 || n == BASIC_MAX)
			return (struct span){NULL, 0};
		bits = bits << 6 | six;
		if (i % 4 != 0)
			buf[n++] = (char)(bits >> (6 - 2 * (i % 4)));
	}
	colon = memchr(buf, ':', n);
	return colon == NULL ? (struct span){NULL, 0}
			     : (struct span){colon + 1, (size_t)(buf + n - colon) - 1};
}

/* Returns the credentials of Authorization: Bearer, as OpenAI's clients send them, else the password of a browser, which only
 * operators use, else those of x-api-key, as Anthropic's clients send them. */
static struct span
key_of(const struct http_head *h, enum door door, char buf[BASIC_MAX])
{
	const struct http_header *f = http_header(h, "authorization");
	struct span key;

	if (has_scheme(f, "bearer ", &key))
		return key;
	if (door == DOOR_OPERATORS && has_scheme(f, "basic ", &key))
		return password_of(key, buf);
	f = http_header(h, "x-api-key");
	return f != NULL ? f->value : (struct span){NULL, 0};
}

/* In the read section: the table, if who comes through this door needs a key; else NULL. */
static const struct api_keys *
keys_of(const struct worker *w, enum door door)
{
	const struct api_keys *keys = rcu_keys(w->seg);

	return keys != NULL && keys->needed[door] ? keys : NULL;
}

static enum req_end
refuse(const char *why, const char **ret_detail)
{
	*ret_detail = why;
	return END_API_KEY;
}

/* In the read section. */
static enum req_end
check(const struct api_key *k, const char **ret_detail)
{
	if (k == NULL)
		return refuse(unknown_key, ret_detail);
	if (k->terms.expires_s != 0 && (uint64_t)time(NULL) >= k->terms.expires_s)
		return refuse(expired_key, ret_detail);
	return END_OK;
}

/* Clients may need a key and operators none, or the other way round. */
static bool
needs_key(const struct worker *w, enum door door)
{
	bool needed;

	(void)rcu_enter(w->seg, w->slot);
	needed = keys_of(w, door) != NULL;
	rcu_leave(w->seg, w->slot);
	return needed;
}

enum req_end
key_take(struct req *req, const struct http_head *h, const char **ret_detail)
{
	const struct worker *w = req->w;
	const enum door door = req->client->from.door;
	struct client_key key = {.door = door};
	const struct api_keys *keys;
	const struct api_key *k;
	struct span text;
	enum req_end end = END_OK;
	char password[BASIC_MAX];

	if (!rcu_has_keys(w->seg) || !needs_key(w, door))
		return END_OK;
	text = key_of(h, door, password);
	if (text.n == 0)
		return refuse(no_key, ret_detail);
	key_seen_digest(&req->client->key_seen, text, key.sha256);
	explicit_bzero(password, sizeof(password));
	(void)rcu_enter(w->seg, w->slot);
	keys = keys_of(w, door);
	if (keys != NULL) { /* else it has just been removed */
		k = api_keys_find(keys, door, key.sha256);
		end = check(k, ret_detail);
		if (end == END_OK) {
			memcpy(key.name, k->name, sizeof(key.name));
			key.terms = k->terms;
		}
	}
	rcu_leave(w->seg, w->slot);
	if (key.name[0] != '\0')
		req->key = mem_dup(&key, sizeof(key));
	return end;
}

bool
key_is_good(const struct req *req)
{
	const struct worker *w = req->w;
	const enum door door = req->client->from.door;
	const struct api_keys *keys;
	const char *why;
	bool good;

	if (!rcu_has_keys(w->seg))
		return true;
	(void)rcu_enter(w->seg, w->slot);
	keys = keys_of(w, door);
	good = keys == NULL ||
	       (req->key != NULL &&
		       check(api_keys_find(keys, door, req->key->sha256), &why) == END_OK);
	rcu_leave(w->seg, w->slot);
	return good;
}

void
key_free(struct req *req)
{
	if (req->key != NULL)
		free(req->key->tail);
	free(req->key);
}

/* Of a request that names no model, any model of the pool may be the answer's. */
static bool
has_all_models(const struct api_key *k, const struct table_pool *tp)
{
	for (uint32_t i = 0; i < tp->nmodels && k->nmodels > 0; i++)
		if (!api_key_has_model(k, tp->models[i]))
			return false;
	return k->nmodels == 0 || tp->nmodels > 0;
}

/* SGLang serves an adapter by this member too, also where `model` names another. */
static bool
names_adapter(const struct text *text)
{
	const struct splice_member *m =
		text->doc != NULL ? splice_find(text->doc, SK_LORA_PATH) : NULL;

	return m != NULL && m->type != ST_NULL;
}

/* SGLang's own paths do not read `model`. */
static bool
model_counts(const struct facts *facts)
{
	return facts->model[0] != '\0' && facts->route != ROUTE_GENERATE &&
	       facts->route != ROUTE_ENCODE;
}

static bool
may_use(const struct api_key *k, const struct job *job, const struct table *t)
{
	const struct facts *facts = &job->facts;
	uint32_t model;
	const struct table_pool *tp = way_pool(facts, t, &model);

	if (tp != NULL && !api_key_has_pool(k, tp->name))
		return false;
	if (k->nmodels > 0 && names_adapter(job->text))
		return false;
	if (model_counts(facts))
		return api_key_has_model(k, facts->model);
	return tp == NULL || has_all_models(k, tp); /* without a pool it will be refused anyway */
}

enum req_end
key_admit(struct req *req, const char **ret_detail)
{
	const struct worker *w = req->w;
	const struct api_keys *keys;
	const struct api_key *k;
	const struct table *t;
	enum req_end end;

	if (req->key == NULL)
		return END_OK;
	t = rcu_enter(w->seg, w->slot);
	keys = keys_of(w, DOOR_CLIENTS);
	k = keys != NULL ? api_keys_find(keys, DOOR_CLIENTS, req->key->sha256) : NULL;
	end = keys != NULL ? check(k, ret_detail) : END_OK;
	if (end == END_OK && k != NULL) {
		req->priority_max = k->terms.priority_max;
		if (!may_use(k, &req->job, t))
			end = END_MODEL_NOT_ALLOWED;
	}
	rcu_leave(w->seg, w->slot);
	return end;
}

bool
key_has_model(const struct req *req, const char *model)
{
	const struct worker *w = req->w;
	const struct table *t;
	const struct table_pool *tp;
	const struct api_keys *keys;
	const struct api_key *k;
	uint32_t number;
	bool may;

	if (req->key == NULL)
		return true;
	t = rcu_enter(w->seg, w->slot);
	keys = keys_of(w, DOOR_CLIENTS);
	k = keys != NULL ? api_keys_find(keys, DOOR_CLIENTS, req->key->sha256) : NULL;
	tp = t != NULL ? table_pool_by_model(t, model, &number) : NULL;
	may = keys == NULL || (k != NULL && tp != NULL && api_key_has_pool(k, tp->name) &&
				      api_key_has_model(k, model));
	rcu_leave(w->seg, w->slot);
	return may;
}
