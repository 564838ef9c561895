#include "master/fleet/wanted.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/keep.h"

#define NEAR_MAX 5 /* similar endpoints in the answer to an unknown one */

static int
refuse(struct evbuffer *out, const char *why, const char *word)
{
	(void)evbuffer_drain(out, evbuffer_get_length(out));
	(void)evbuffer_add_printf(out, "%s%.200s", why, word);
	return -1;
}

/* As the configuration takes it, "http://h:1/" is "http://h:1". */
static void
take_endpoint(struct wanted *w, const char *word)
{
	const char *why;
	size_t n = strlen(word);

	memcpy(w->endpoint, word, n + 1);
	if (n > 0 && word[n - 1] == '/')
		w->endpoint[n - 1] = '\0';
	w->parsed = http_url_parse(w->endpoint, &w->at, &why) == 0;
}

/* True if the word is NAME=VALUE with a value. */
static bool
take_value(char value[static WANTED_MAX], const char *name, const char *word)
{
	const size_t n = strlen(name);

	if (strncmp(word, name, n) != 0 || word[n] == '\0')
		return false;
	memcpy(value, word + n, strlen(word + n) + 1);
	return true;
}

/* An IPv6 literal may have brackets, as in a URL. */
static void
drop_brackets(char *host)
{
	const size_t n = strlen(host);

	if (n > 2 && host[0] == '[' && host[n - 1] == ']') {
		memmove(host, host + 1, n - 2);
		host[n - 2] = '\0';
	}
}

static bool
names_any(const struct wanted *w)
{
	return w->endpoint[0] != '\0' || w->host[0] != '\0' || w->group[0] != '\0';
}

static bool
take_word(struct wanted *w, const char *word)
{
	if (!names_any(w)) {
		if (!take_value(w->host, "host=", word) && !take_value(w->group, "group=", word))
			take_endpoint(w, word);
		drop_brackets(w->host);
		return names_any(w);
	}
	if (take_value(w->pool, "pool=", word))
		return true;
	for (enum role role = 0; role < ROLE_N; role++)
		if (strncmp(word, "role=", 5) == 0 && strcmp(word + 5, role_name(role)) == 0) {
			w->role = (int)role;
			return true;
		}
	return false;
}

int
wanted_parse(const char *words, struct wanted *ret, struct evbuffer *out)
{
	char word[WANTED_MAX];

	*ret = (struct wanted){.role = -1};
	while (*words != '\0') {
		size_t n = strcspn(words, " ");

		if (n >= sizeof(word))
			return refuse(out, "too long: ", words);
		memcpy(word, words, n);
		word[n] = '\0';
		if (n > 0 && !take_word(ret, word))
			return refuse(
				out, "neither role=prefill, role=decode nor pool=NAME: ", word);
		words += n;
		words += *words == ' ';
	}
	return names_any(ret) ? 0 : refuse(out, "an endpoint is needed", "");
}

/* However the URL is written. */
static bool
same_address(const struct http_url *a, const struct http_url *b)
{
	return strcasecmp(a->host, b->host) == 0 && a->port == b->port &&
	       strcmp(a->prefix, b->prefix) == 0;
}

/* `group` NULL: none. */
static bool
names(const struct wanted *w, const struct http_url *at, const char *authority, const char *group)
{
	if (w->host[0] != '\0')
		return strcasecmp(w->host, at->host) == 0;
	if (w->group[0] != '\0')
		return group != NULL && strcmp(w->group, group) == 0;
	return w->parsed ? same_address(&w->at, at) : strcasecmp(w->endpoint, authority) == 0;
}

static bool
takes(const struct wanted *w, enum role role, const char *pool)
{
	return (w->role == -1 || (enum role)w->role == role) &&
	       (w->pool[0] == '\0' || strcmp(w->pool, pool) == 0);
}

static bool
is_named(const struct wanted *w, const struct endpoint *ep)
{
	const struct conf_endpoint *conf = ep->engine.conf;

	return names(w, &ep->engine.at, ep->engine.authority, conf != NULL ? conf->group : NULL);
}

bool
wanted_is(const struct wanted *w, const struct endpoint *ep)
{
	return is_named(w, ep) && takes(w, ep->engine.role, ep->engine.pool_name);
}

bool
wanted_is_away(const struct wanted *w, const struct away *a)
{
	struct http_url at;
	const char *why;
	char *authority;
	bool yes;

	if (http_url_parse(a->key.url, &at, &why) != 0)
		return false;
	authority = engine_authority(&at);
	yes = names(w, &at, authority, NULL) && takes(w, a->key.role, a->key.pool);
	free(authority);
	return yes;
}

/* Edit distance: letters to change, add or leave out to turn one text into the other. */
static size_t
distance(const char *a, const char *b)
{
	size_t row[WANTED_MAX + 1], n = strlen(b), diagonal, up;

	n = n < WANTED_MAX ? n : WANTED_MAX;
	for (size_t k = 0; k <= n; k++)
		row[k] = k;
	for (size_t i = 0; a[i] != '\0'; i++) {
		diagonal = row[0];
		row[0] = i + 1;
		for (size_t k = 0; k < n; k++) {
			up = row[k + 1];
			row[k + 1] = diagonal + (a[i] != b[k]);
			if (up + 1 < row[k + 1])
				row[k + 1] = up + 1;
			if (row[k] + 1 < row[k + 1])
				row[k + 1] = row[k] + 1;
			diagonal = up;
		}
	}
	return row[n];
}

struct near {
	size_t distance;
	const char *url;
};

static bool
is_in(const struct near *near, size_t n, const char *url)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(near[i].url, url) == 0)
			return true;
	return false;
}

/* Names the NEAR_MAX most similar endpoints, the nearest first. */
static int
refuse_unknown(const struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	struct near near[NEAR_MAX + 1];
	size_t n = 0;

	(void)refuse(out, "no such endpoint: ", w->endpoint);
	for (size_t i = 0; i < f->norder; i++) {
		const struct endpoint *ep = f->order[i];
		const bool bare = strstr(w->endpoint, "://") == NULL;
		const size_t d =
			distance(w->endpoint, bare ? ep->engine.authority : ep->engine.url);
		size_t at = n;

		if (is_in(near, n, ep->engine.url))
			continue;
		for (; at > 0 && near[at - 1].distance > d; at--)
			near[at] = near[at - 1];
		near[at] = (struct near){d, ep->engine.url};
		n += n < NEAR_MAX;
	}
	for (size_t i = 0; i < n; i++)
		(void)evbuffer_add_printf(out, "%s%s", i == 0 ? "; there is " : ", ", near[i].url);
	return -1;
}

/* The endpoint exists, but not in the given pool or role. */
static int
refuse_pool(const struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	const char *sep = " is not there, it is ";

	(void)refuse(out, "", w->endpoint);
	for (size_t i = 0; i < f->norder; i++)
		if (is_named(w, f->order[i])) {
			(void)evbuffer_add_printf(out, "%s%s of pool %s", sep,
				role_name(f->order[i]->engine.role), f->order[i]->engine.pool_name);
			sep = ", ";
		}
	return -1;
}

/* host:port is not enough where two URLs differ in their paths. */
static int
refuse_ambiguous(const struct endpoint *a, const struct endpoint *b, struct evbuffer *out)
{
	(void)refuse(out, "which one? ", a->engine.url);
	(void)evbuffer_add_printf(out, " or %.200s", b->engine.url);
	return -1;
}

static int
refuse_many(const struct wanted *w, struct evbuffer *out)
{
	const char *what = w->host[0] != '\0' ? "host" : "group",
		   *name = w->host[0] != '\0' ? w->host : w->group;

	(void)refuse(out, "no endpoint of ", what);
	(void)evbuffer_add_printf(out, " %s", name);
	return -1;
}

int
wanted_resolve(const struct fleet *f, const struct wanted *w, struct evbuffer *out)
{
	const struct endpoint *first = NULL;
	bool named = false;

	for (size_t i = 0; i < f->norder; i++) {
		const struct endpoint *ep = f->order[i];

		named = named || is_named(w, ep);
		if (!wanted_is(w, ep))
			continue;
		if (first != NULL && w->endpoint[0] != '\0' &&
			!same_address(&first->engine.at, &ep->engine.at))
			return refuse_ambiguous(first, ep, out);
		first = first != NULL ? first : ep;
	}
	if (first != NULL)
		return 0;
	if (w->endpoint[0] == '\0')
		return refuse_many(w, out);
	return named ? refuse_pool(f, w, out) : refuse_unknown(f, w, out);
}
