#include "master/config/conf_draft_put.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

#define DEFAULT_HOST "0.0.0.0"
#define PROMETHEUS_PORT "29000" /* sglang-router's */
#define RETRIES_MAX 10          /* of the key retries */
#define STACK_TRIES "5"         /* of --enable-retries, if --max-retries is not given */
#define NEVER "1000000000" /* the highest routing_threshold: more tokens than a body can hold */

typedef int put_fn(struct conf_draft *d, enum conf_flag f, const char *key);

const char *
draft_value(const struct conf_draft *d, enum conf_flag f)
{
	return d->args->flag[f];
}

int
draft_fail(struct conf_draft *d, enum conf_flag f, const char *fmt, ...)
{
	char what[CONF_WHAT];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return conf_flag_fail(d->err, f, what);
}

void
draft_note(struct conf_draft *d, enum conf_flag f, const char *why)
{
	char name[CONF_FLAG_NAME];

	if (d->note != NULL)
		d->note(d->note_arg, conf_flag_name(f, name), why);
}

void
draft_note_if_given(struct conf_draft *d, enum conf_flag f, const char *why)
{
	if (draft_value(d, f) != NULL)
		draft_note(d, f, why);
}

/* --- lines ------------------------------------------------------------------------------------ */

static void
remember(struct conf_draft *d, int from)
{
	if ((d->nlines & (d->nlines - 1)) == 0)
		d->from = mem_resize(d->from, d->nlines > 0 ? 2 * d->nlines : 1, sizeof(*d->from));
	d->from[d->nlines++] = from;
}

void
draft_put(struct conf_draft *d, int from, const char *fmt, ...)
{
	va_list ap;

	remember(d, from);
	va_start(ap, fmt);
	(void)vfprintf(d->out, fmt, ap);
	va_end(ap);
	(void)fputc('\n', d->out);
}

/* A line with one text in it, quoted. */
void
draft_put_text(
	struct conf_draft *d, int from, const char *before, const char *text, const char *after)
{
	remember(d, from);
	(void)fputs(before, d->out);
	conf_write_text(d->out, text);
	(void)fprintf(d->out, "%s\n", after);
}

bool
draft_is_number(const char *s)
{
	return s[0] != '\0' && s[strspn(s, "0123456789")] == '\0';
}

int
draft_put_number(struct conf_draft *d, enum conf_flag f, const char *key)
{
	if (!draft_is_number(draft_value(d, f)))
		return draft_fail(d, f, "%.60s is not a number", draft_value(d, f));
	draft_put(d, (int)f, "%s: %s", key, draft_value(d, f));
	return 0;
}

/* "30" or "0.25", as Python's int and float take them. */
static int
put_seconds(struct conf_draft *d, enum conf_flag f, const char *key)
{
	const char *s = draft_value(d, f);
	size_t whole = strspn(s, "0123456789"), part = 0;

	if (s[whole] == '.')
		part = strspn(s + whole + 1, "0123456789");
	if (whole == 0 || whole > 9 || part > 3 || s[whole + (part > 0) + part] != '\0')
		return draft_fail(d, f, "%.60s is not a number of seconds such as 30 or 0.25", s);
	if (part == 0)
		draft_put(d, (int)f, "%s: %lus", key, strtoul(s, NULL, 10));
	else
		draft_put(d, (int)f, "%s: %.0fms", key, strtod(s, NULL) * 1000);
	return 0;
}

static int
put_bytes(struct conf_draft *d, enum conf_flag f, const char *key)
{
	if (!draft_is_number(draft_value(d, f)))
		return draft_fail(d, f, "%.60s is not a number of bytes", draft_value(d, f));
	draft_put(d, (int)f, "%s: {max_body: %sB}", key, draft_value(d, f));
	return 0;
}

int
draft_find_word(struct conf_draft *d, enum conf_flag f, const struct flag_word *words, size_t n,
	const struct flag_word **ret)
{
	char known[CONF_WHAT] = "";
	size_t at = 0;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(words[i].theirs, draft_value(d, f)) == 0) {
			*ret = &words[i];
			return words[i].ours != NULL
				       ? 0
				       : draft_fail(d, f, "%s is not known here: use %s",
						 words[i].theirs, words[i].instead);
		}
		if (words[i].ours != NULL && at < sizeof(known))
			at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s",
				at > 0 ? ", " : "", words[i].theirs);
	}
	return draft_fail(d, f, "%.60s is not known here: %s", draft_value(d, f), known);
}
static int
put_log_level(struct conf_draft *d, enum conf_flag f, const char *key)
{
	static const struct flag_word levels[] = {{"critical", "error", NULL},
		{"error", "error", NULL}, {"warning", "warn", NULL}, {"warn", "warn", NULL},
		{"info", "info", NULL}, {"debug", "debug", NULL}, {"trace", "debug", NULL}};
	const struct flag_word *w;

	if (FIND(d, f, levels, &w) != 0)
		return -1;
	draft_put(d, (int)f, "%s: %s", key, w->ours);
	return 0;
}

static int
put_log_format(struct conf_draft *d, enum conf_flag f, const char *key)
{
	static const struct flag_word formats[] = {
		{"text", "logfmt", NULL}, {"json", "json", NULL}};
	const struct flag_word *w = NULL;

	if (FIND(d, f, formats, &w) != 0 || w == NULL)
		return -1;
	draft_put(d, (int)f, "%s: %s", key, w->ours);
	return 0;
}

/* Of a port and a host, of which either may be missing. */
static int
put_operators(struct conf_draft *d, enum conf_flag f, const char *key)
{
	const char *host = draft_value(d, FLAG_PROMETHEUS_HOST);
	const char *port = draft_value(d, FLAG_PROMETHEUS_PORT);
	char *listen;

	if (f == FLAG_PROMETHEUS_HOST && port != NULL)
		return 0;
	listen = conf_host_port(
		host != NULL ? host : DEFAULT_HOST, port != NULL ? port : PROMETHEUS_PORT);
	draft_put(d, (int)f, "%s:", key);
	draft_put_text(d, (int)f, "  listen: [", listen, "]");
	free(listen);
	return 0;
}

static const struct {
	enum conf_flag flag;
	const char *key;
	put_fn *put;
} root_keys[] = {
	{FLAG_LOG_LEVEL, "log_level", put_log_level},
	{FLAG_LOG_FORMAT, "log_format", put_log_format},
	{FLAG_ENGINE_STATS_INTERVAL, "stats_interval", put_seconds},
	{FLAG_STATIC_BACKEND_HEALTH_CHECK_INTERVAL, "health_interval", put_seconds},
	{FLAG_HEALTH_CHECK_INTERVAL_SECS, "health_interval", put_seconds},
	{FLAG_STATIC_BACKEND_HEALTH_CHECK_TIMEOUT, "health_timeout", put_seconds},
	{FLAG_BACKEND_HEALTH_CHECK_TIMEOUT, "health_timeout", put_seconds},
	{FLAG_HEALTH_CHECK_TIMEOUT_SECS, "health_timeout", put_seconds},
	{FLAG_HEALTH_FAILURE_THRESHOLD, "fall", draft_put_number},
	{FLAG_HEALTH_SUCCESS_THRESHOLD, "rise", draft_put_number},
	{FLAG_SHUTDOWN_GRACE_PERIOD_SECS, "drain_timeout", put_seconds},
	{FLAG_MAX_PAYLOAD_SIZE, "limits", put_bytes},
	{FLAG_PROMETHEUS_PORT, "admin", put_operators},
	{FLAG_PROMETHEUS_HOST, "admin", put_operators},
};

/* As much of shared memory as the pools need, where that is more than the default. */
static void
put_memory(struct conf_draft *d, int from, const char *key, size_t need)
{
	char path[64];
	const char *def;

	(void)snprintf(path, sizeof(path), "shared_memory.%s", key);
	def = conf_key_default(conf_key_row(&conf_root_keys, path));
	draft_put(d, from, "  %s: %zu", key,
		need > strtoul(def, NULL, 10) ? need : (size_t)strtoul(def, NULL, 10));
}

int
draft_put_root(struct conf_draft *d, int from, const char *port, size_t npools, size_t nendpoints)
{
	const struct conf_args *a = d->args;
	char *listen = conf_host_port(
		a->host != NULL ? a->host : DEFAULT_HOST, a->port != NULL ? a->port : port);

	draft_put_text(d, a->port != NULL ? FROM_PORT : FROM_HOST, "listen: [", listen, "]");
	free(listen);
	for (size_t i = 0; i < sizeof(root_keys) / sizeof(root_keys[0]); i++)
		if (draft_value(d, root_keys[i].flag) != NULL &&
			root_keys[i].put(d, root_keys[i].flag, root_keys[i].key) != 0)
			return -1;
	draft_put(d, from, "shared_memory:");
	put_memory(d, from, "max_pools", npools);
	put_memory(d, from, "max_endpoints", nendpoints);
	if (draft_value(d, FLAG_QUEUE_SIZE) != NULL) /* which put_rescue() checks */
		put_memory(d, FLAG_QUEUE_SIZE, "queue",
			strtoul(draft_value(d, FLAG_QUEUE_SIZE), NULL, 10));
	return 0;
}

/* --- keys of every pool ----------------------------------------------------------------------- */

/* `tries` includes the first one. */
static int
put_tries(struct conf_draft *d, enum conf_flag f, const char *number, bool tries)
{
	unsigned long n = strtoul(number, NULL, 10);

	if (!draft_is_number(number))
		return draft_fail(d, f, "%.60s is not a number", number);
	n -= tries && n > 0;
	if (n > RETRIES_MAX)
		draft_note(d, f, "retries is 10, the maximum");
	draft_put(d, (int)f, "  retries: %lu", n > RETRIES_MAX ? RETRIES_MAX : n);
	return 0;
}

static int
put_retries(struct conf_draft *d)
{
	const char *tries = draft_value(d, FLAG_MAX_RETRIES);

	if (draft_value(d, FLAG_ENABLE_RETRIES) == NULL)
		draft_note_if_given(d, FLAG_MAX_RETRIES, "it belongs to --enable-retries");
	if (draft_value(d, FLAG_DISABLE_RETRIES) != NULL)
		return put_tries(d, FLAG_DISABLE_RETRIES, "0", false);
	if (draft_value(d, FLAG_RETRY_MAX_RETRIES) != NULL)
		return put_tries(
			d, FLAG_RETRY_MAX_RETRIES, draft_value(d, FLAG_RETRY_MAX_RETRIES), true);
	if (draft_value(d, FLAG_ENABLE_RETRIES) != NULL)
		return put_tries(d, tries != NULL ? FLAG_MAX_RETRIES : FLAG_ENABLE_RETRIES,
			tries != NULL ? tries : STACK_TRIES, true);
	if (draft_value(d, FLAG_FAILOVER_ATTEMPTS) != NULL)
		return put_tries(
			d, FLAG_FAILOVER_ATTEMPTS, draft_value(d, FLAG_FAILOVER_ATTEMPTS), false);
	return 0;
}

static int
put_failures(struct conf_draft *d, enum conf_flag f, const char *key)
{
	return draft_value(d, FLAG_DISABLE_CIRCUIT_BREAKER) != NULL ? 0
								    : draft_put_number(d, f, key);
}

static int
put_no_ejection(struct conf_draft *d, enum conf_flag f, const char *key)
{
	draft_put(d, (int)f, "%s: 0", key);
	draft_put(d, (int)f, "  eject_rate: 0");
	return 0;
}

static int
put_request_timeout(struct conf_draft *d, enum conf_flag f, const char *key)
{
	draft_put(d, (int)f, "  timeouts:");
	return put_seconds(d, f, key);
}

/* What happens when engines fail or are full. */
static int
put_rescue(struct conf_draft *d)
{
	static const struct {
		enum conf_flag flag;
		const char *key;
		put_fn *put;
	} keys[] = {
		{FLAG_CB_FAILURE_THRESHOLD, "  eject_failures", put_failures},
		{FLAG_DISABLE_CIRCUIT_BREAKER, "  eject_failures", put_no_ejection},
		{FLAG_CB_TIMEOUT_DURATION_SECS, "  eject_time", put_seconds},
		{FLAG_QUEUE_SIZE, "  queue_size", draft_put_number},
		{FLAG_QUEUE_TIMEOUT_SECS, "  queue_timeout", put_seconds},
		{FLAG_REQUEST_TIMEOUT_SECS, "    request", put_request_timeout},
	};

	if (put_retries(d) != 0)
		return -1;
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		if (draft_value(d, keys[i].flag) != NULL &&
			keys[i].put(d, keys[i].flag, keys[i].key) != 0)
			return -1;
	return 0;
}

static void
put_whole(struct conf_draft *d, enum conf_flag from)
{
	draft_put(d, (int)from, "  routing_threshold: " NEVER);
	draft_put(d, (int)from, "  single_engine_role: decode");
}

int
draft_put_routes(struct conf_draft *d, enum conf_flag from, bool whole)
{
	if (whole)
		put_whole(d, from);
	else if (draft_value(d, FLAG_ROUTING_THRESHOLD) != NULL &&
		 draft_put_number(d, FLAG_ROUTING_THRESHOLD, "  routing_threshold") != 0)
		return -1;
	if (draft_value(d, FLAG_HEALTH_CHECK_ENDPOINT) != NULL)
		draft_put_text(d, FLAG_HEALTH_CHECK_ENDPOINT,
			"  health_path: ", draft_value(d, FLAG_HEALTH_CHECK_ENDPOINT), "");
	return put_rescue(d);
}

/* --- lists ------------------------------------------------------------------------------------ */

void
draft_words_free(struct words *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->v[i]);
	free(w->v);
}

/* "a, b,c" without the blanks; an empty one stays, as "". */
struct words
draft_split(const char *list)
{
	struct words w = {NULL, 0};
	size_t n;

	for (;;) {
		list += strspn(list, " \t");
		n = strcspn(list, ",");
		w.v = mem_resize(w.v, w.n + 1, sizeof(*w.v));
		w.v[w.n] = mem_strndup(list, n);
		for (size_t k = n; k > 0 && (list[k - 1] == ' ' || list[k - 1] == '\t'); k--)
			w.v[w.n][k - 1] = '\0';
		w.n++;
		if (list[n] == '\0')
			return w;
		list += n + 1;
	}
}

/* "      key: [7300, 7301]" of "7300,7301". */
int
draft_put_ports(struct conf_draft *d, enum conf_flag f, const char *key, const char *ports)
{
	struct words w = draft_split(ports);
	int rc = 0;

	for (size_t i = 0; i < w.n && rc == 0; i++)
		if (!draft_is_number(w.v[i]))
			rc = draft_fail(
				d, f, "%.60s is not a port or a list such as 7300,7301", ports);
	if (rc == 0) {
		remember(d, (int)f);
		(void)fprintf(d->out, "      %s: [", key);
		for (size_t i = 0; i < w.n; i++)
			(void)fprintf(d->out, "%s%s", i > 0 ? ", " : "", w.v[i]);
		(void)fputs("]\n", d->out);
	}
	draft_words_free(&w);
	return rc;
}
