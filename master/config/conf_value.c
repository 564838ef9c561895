/* One text into one member: a row per type. */
#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_address.h"
#include "master/config/conf_date.h"
#include "master/config/conf_number.h"
#include "master/config/conf_read.h"
#include "proto/http/http.h"
#include "shm/base/mem.h"
#include "shm/base/net.h"

typedef int set_fn(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT]);
static set_fn set_count, set_multiple, set_rate, set_workers, set_size, set_duration, set_text,
	set_name, set_path;
static set_fn set_header, set_mode, set_notices, set_url, set_host, set_word, add_listen, add_text,
	add_network, add_announced, add_server, add_router, add_origin, add_field;
static set_fn set_count_or_auto, set_fraction, set_part, set_address_host, set_kv_addr,
	set_kv_events, set_first_token, add_port, set_key_name, set_sha256, set_priority, set_date;

static const char *
log_level_name(unsigned v)
{
	return log_level_word((enum log_level)v);
}

static const char *
log_format_name(unsigned v)
{
	static const char *const names[] = {"logfmt", "json", "off"};

	return names[v];
}

static const char *
log_to_name(unsigned v)
{
	static const char *const names[] = {"stderr", "journald"};

	return names[v];
}

static const char *
bool_name(unsigned v)
{
	static const char *const names[] = {"false", "true"};

	return names[v];
}

static const char *
tls_min_name(unsigned v)
{
	static const char *const names[] = {"1.2", "1.3"};

	return names[v];
}

static const struct {
	const char *wants;
	enum conf_repr repr;
	set_fn *set;
	const char *(*word)(unsigned); /* the valid words of an enum, by value */
	unsigned nwords;
	bool number;
	unsigned step; /* of a count that must be a multiple */
} types[CONF_T_N] = {
	// clang-format off
	[CONF_T_COUNT] = { "a whole number", CONF_U32, set_count, .number = true },
	[CONF_T_COUNT_OR_AUTO] = { "`auto` or a whole number", CONF_U32, set_count_or_auto },
	[CONF_T_FRACTION] = { "a number above 0, at most 1, such as 0.8", CONF_SHORT, set_fraction },
	[CONF_T_PART] = { "a part from 0 to 1, such as 0.01", CONF_U32, set_part },
	[CONF_T_FLAGS] = { "a multiple of 64", CONF_U32, set_multiple, .number = true, .step = 64 },
	[CONF_T_CLIENTS] = { "a multiple of 8", CONF_U32, set_multiple, .number = true, .step = 8 },
	[CONF_T_WORKERS] = { "`auto` or a whole number", CONF_U32, set_workers },
	[CONF_T_RATE] = { "a rate such as 10, 30/m or 100/h", CONF_RATE, set_rate },
	[CONF_T_SIZE] = { "a size such as 64MiB", CONF_U64, set_size },
	[CONF_T_DURATION] = { "a duration such as 2s", CONF_U64, set_duration },
	[CONF_T_DURATION_OR_0] = { "0 or a duration such as 2s", CONF_U64, set_duration },
	[CONF_T_TEXT] = { "a text", CONF_STR, set_text },
	[CONF_T_FILE] = { "a text", CONF_STR, set_text },
	[CONF_T_NAME] = { "a name", CONF_STR, set_name },
	[CONF_T_LABEL] = { "a label", CONF_STR, set_text },
	[CONF_T_MODE] = { "permissions in octal such as 0660", CONF_U32, set_mode },
	[CONF_T_HEADER] = { "the name of a header", CONF_STR, set_header },
	[CONF_T_PATH] = { "a path such as /health", CONF_STR, set_path },
	[CONF_T_NOTICES] = { "an address such as tcp://*:7500", CONF_STR, set_notices },
	[CONF_T_URL] = { "a URL such as http://10.0.0.1:8100", CONF_STR, set_url },
	[CONF_T_LOG_LEVEL] = { "a log level", CONF_WORD, set_word, log_level_name, LOG_L_DEBUG + 1 },
	[CONF_T_LOG_FORMAT] = { "a log format", CONF_WORD, set_word, log_format_name, LOG_F_OFF + 1 },
	[CONF_T_LOG_TO] = { "a place for the log", CONF_WORD, set_word, log_to_name, LOG_TO_JOURNALD + 1 },
	[CONF_T_CONNECTOR] = { "a connector", CONF_WORD, set_word, connector_name, CONNECTOR_N },
	[CONF_T_POLICY] = { "a policy", CONF_WORD, set_word, policy_name, POLICY_N },
	[CONF_T_TLS_VERSION] = { "a version of TLS", CONF_WORD, set_word, tls_min_name, TLS_MIN_N },
	[CONF_T_LOAD] = { "a measure of load", CONF_WORD, set_word, load_name, LOAD_N },
	[CONF_T_PAIRING] = { "a pairing", CONF_WORD, set_word, pairing_name, PAIRING_N },
	[CONF_T_BOOL] = { "a truth value", CONF_WORD, set_word, bool_name, 2 },
	[CONF_T_HOST] = { "a host name", CONF_STR, set_host },
	[CONF_T_ADDRESS_HOST] = { "a host name or an address", CONF_STR, set_address_host },
	[CONF_T_KV_ADDR] = { "an address such as 10.0.0.1:21001 or :21001", CONF_STR, set_kv_addr },
	[CONF_T_KV_EVENTS] = { "an address such as tcp://*:5557", CONF_STR, set_kv_events },
	[CONF_T_ENGINE] = { "an engine", CONF_WORD, set_word, engine_name, ENGINE_N },
	[CONF_T_HANDOFF] = { "a handoff", CONF_WORD, set_word, handoff_name, HANDOFF_N },
	[CONF_T_REMOTE_HOST] = { "a remote_host", CONF_WORD, set_word, remote_host_name, REMOTE_HOST_N },
	[CONF_T_TRANSFER_MODE] = { "a transfer_mode", CONF_WORD, set_word, transfer_mode_name, TRANSFER_N },
	[CONF_T_BOOTSTRAP] = { "a bootstrap", CONF_WORD, set_word, bootstrap_name, BOOTSTRAP_N },
	[CONF_T_FIRST_TOKEN] = { "a role", CONF_WORD, set_first_token, role_name, ROLE_N },
	[CONF_T_FALLBACK] = { "a fallback", CONF_WORD, set_word, fallback_name, FALLBACK_N },
	[CONF_T_SINGLE_ROLE] = { "a role, or auto", CONF_WORD, set_word, single_role_name, SINGLE_ROLE_N },
	[CONF_T_SCHEME] = { "a scheme", CONF_WORD, set_word, scheme_name, SCHEME_N },
	[CONF_T_ROLE] = { "a role", CONF_WORD, set_word, role_name, ROLE_N },
	[CONF_T_KEY_NAME] = { "a name", CONF_STR, set_key_name },
	[CONF_T_SHA256] = { "64 hex digits", CONF_SHORT, set_sha256 },
	[CONF_T_PRIORITY] = { "an integer of 32 bits", CONF_U32, set_priority, .number = true },
	[CONF_T_DATE] = { "a date such as 2027-01-31 or 2027-01-31T12:00:00Z", CONF_U64, set_date },
	[CONF_T_LISTEN] = { "a list of addresses such as [\"0.0.0.0:8000\"]", CONF_LIST, add_listen },
	[CONF_T_MODELS] = { "a list of model names", CONF_STRS, add_text },
	[CONF_T_LABELS] = { "a list of labels", CONF_STRS, add_text },
	[CONF_T_ORIGINS] = { "a list of origins such as [\"https://chat.example.net\"]", CONF_STRS, add_origin },
	[CONF_T_FIELDS] = { "a list of header names", CONF_STRS, add_field },
	[CONF_T_NETWORKS] = { "a list of networks such as [\"10.1.0.0/16\"]", CONF_STRS, add_network },
	[CONF_T_ANNOUNCED] = { "a list of networks such as [\"10.1.0.0/16\"]", CONF_STRS, add_announced },
	[CONF_T_SERVERS] = { "a list of name servers such as [\"10.0.0.2\"]", CONF_STRS, add_server },
	[CONF_T_ROUTERS] = { "a list of addresses such as [\"tcp://10.0.0.2:9310\"]", CONF_STRS, add_router },
	[CONF_T_PORTS] = { "a port such as 7300, or a list such as [7300, 7301]", CONF_PORTS, add_port, .number = true },
	[CONF_T_CERTIFICATES] = { "a list such as [{cert: cert.pem, key: key.pem}]", CONF_LIST, NULL },
	[CONF_T_CONNECTOR_MAP] = { "a mapping of keys", CONF_LIST, NULL },
	[CONF_T_DNS] = { "a list such as [{name: prefill.example.net, port: 8100, role: prefill}]", CONF_LIST, NULL },
	[CONF_T_PREFILL] = { "a list of endpoints such as [{url: \"http://10.0.0.1:8100\"}]", CONF_LIST, NULL },
	[CONF_T_DECODE] = { "a list of endpoints such as [{url: \"http://10.0.1.1:8200\"}]", CONF_LIST, NULL },
	[CONF_T_POOLS] = { "a list of pools", CONF_LIST, NULL },
	[CONF_T_API_KEYS] = { "a list of keys such as [{name: alice, sha256: ...}]", CONF_LIST, NULL },
	[CONF_T_OWN] = { "a list or a mapping", CONF_LIST, NULL },
	// clang-format on
};

enum conf_repr
conf_repr(const struct conf_key *k)
{
	return types[k->type].repr;
}

const char *
conf_wants(const struct conf_key *k)
{
	return types[k->type].wants;
}

const char *
conf_word(const struct conf_key *k, unsigned v)
{
	return types[k->type].word(v);
}

bool
conf_is_number(const struct conf_key *k)
{
	return types[k->type].number;
}

int
conf_value_set(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	return types[k->type].set(k, base, text, what);
}

static void *
member_at(const struct conf_key *k, void *base)
{
	return (char *)base + k->off;
}

static const void *
cmember(const struct conf_key *k, const void *base)
{
	return (const char *)base + k->off;
}

static int __attribute__((format(printf, 2, 3))) bad(char what[CONF_WHAT], const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, CONF_WHAT, fmt, ap);
	va_end(ap);
	return -1;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static int
parse_count(const struct conf_key *k, const char *text, char what[CONF_WHAT], uint64_t *ret)
{
	size_t n = conf_digits(text, ret);

	if (n == 0 || text[n] != '\0')
		return bad(what, "%.60s is not %s", text, conf_wants(k));
	if (*ret < k->min || *ret > k->max)
		return bad(what, "%.60s is out of bounds: %" PRIu64 " to %" PRIu64, text, k->min,
			k->max);
	return 0;
}

static int
set_count(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	uint64_t v;

	if (parse_count(k, text, what, &v) != 0)
		return -1;
	*(uint32_t *)member_at(k, base) = (uint32_t)v;
	return 0;
}

/* UINT32_MAX, which is THRESHOLD_AUTO and NOTICES_BY_PORTS, for `auto`. */
static int
set_count_or_auto(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	if (strcmp(text, "auto") != 0)
		return set_count(k, base, text, what);
	*(uint32_t *)member_at(k, base) = UINT32_MAX;
	return 0;
}

/* A JSON number, for that is where it goes as it is written: 0.8, not .8 nor 8e-1. */
static int
set_fraction(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	size_t n = strlen(text), after = n > 2 ? strspn(text + 2, "0123456789") : 0;
	bool one = strncmp(text, "1", 1) == 0, point = n > 2 && text[1] == '.' && n == 2 + after;
	bool zero = text[0] == '0', none = point && strspn(text + 2, "0") == after;

	if (n > k->max)
		return bad(what, "%.60s is longer than %d characters", text, (int)k->max);
	if (n > 0 && !(one && (n == 1 || none)) && !(zero && point && !none))
		return bad(what, "%.60s is not %s", text, conf_wants(k));
	memcpy(member_at(k, base), text, n + 1);
	return 0;
}

/* Digits behind the point are those of CONF_PART_ALL at most. */
static int
set_part(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	const size_t after = strlen(text) > 2 ? strlen(text) - 2 : 0;
	uint32_t v = 0, weight = CONF_PART_ALL / 10;
	bool ok = (text[0] == '0' || text[0] == '1') &&
		  (text[1] == '\0' || (text[1] == '.' && after > 0 && after <= 6 &&
					      strspn(text + 2, "0123456789") == after));

	for (size_t i = 2; ok && i < 2 + after; i++, weight /= 10)
		v += (uint32_t)(text[i] - '0') * weight;
	if (!ok || (text[0] == '1' && v > 0))
		return bad(what, "%.60s is not %s", text, conf_wants(k));
	*(uint32_t *)member_at(k, base) = text[0] == '1' ? CONF_PART_ALL : v;
	return 0;
}

static int
add_port(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct conf_ports *ports = member_at(k, base);
	uint16_t port = conf_port_of(text);

	if (port == 0)
		return bad(what, "%.60s is not a port from 1 to 65535", text);
	for (uint32_t i = 0; i < ports->n; i++)
		if (ports->port[i] == port)
			return bad(what, "%u is in the list twice", (unsigned)port);
	assert(ports->n < CONF_PORTS_MAX); /* conf_is_list() has counted them */
	ports->port[ports->n++] = port;
	return 0;
}

static int
set_multiple(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	uint64_t v;

	if (parse_count(k, text, what, &v) != 0)
		return -1;
	if (v % types[k->type].step != 0)
		return bad(what, "%.60s is not %s", text, conf_wants(k));
	*(uint32_t *)member_at(k, base) = (uint32_t)v;
	return 0;
}

static int
set_rate(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct conf_rate *rate = member_at(k, base);
	uint64_t v;
	size_t n = conf_digits(text, &v), i = 0;

	while (n > 0 && i < CONF_NPERIODS && strcmp(text + n, conf_periods[i].name) != 0)
		i++;
	if (n == 0 || i == CONF_NPERIODS)
		return bad(what, "%.60s is not %s", text, conf_wants(k));
	if (v < k->min || v > k->max)
		return bad(what, "%.60s is out of bounds: %" PRIu64 " to %" PRIu64, text, k->min,
			k->max);
	*rate = (struct conf_rate){(uint32_t)v, conf_periods[i].seconds};
	return 0;
}

static int
set_workers(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct conf *c = base;

	c->workers_auto = strcmp(text, "auto") == 0; /* resolved by conf_finish() */
	return c->workers_auto ? 0 : set_count(k, base, text, what);
}

static int
set_units(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT],
	const struct conf_unit u[CONF_NUNITS])
{
	char lo[32], hi[32];
	uint64_t v, scale = 0;
	size_t n = conf_digits(text, &v);
	bool or_0;

	for (size_t i = 0; n > 0 && i < CONF_NUNITS; i++)
		if (strcmp(text + n, u[i].name) == 0)
			scale = u[i].scale;
	if (n > 0 && text[n] == '\0' && v == 0)
		scale = 1; /* zero of anything */
	else if (n > 0 && text[n] == '\0')
		return bad(what, "%.60s has no unit: write %.40s%s, %.40s%s, %.40s%s or %.40s%s",
			text, text, u[0].name, text, u[1].name, text, u[2].name, text, u[3].name);
	if (scale == 0)
		return bad(what, "%.60s is not %s: a whole number and one of %s, %s, %s, %s", text,
			conf_wants(k), u[0].name, u[1].name, u[2].name, u[3].name);
	v = v > UINT64_MAX / scale ? UINT64_MAX : v * scale;
	or_0 = k->type == CONF_T_DURATION_OR_0;
	if ((v < k->min && !(or_0 && v == 0)) || v > k->max)
		return bad(what, "%.60s is out of bounds: %s%s to %s", text, or_0 ? "0, or " : "",
			conf_units_show(k->min, u, lo), conf_units_show(k->max, u, hi));
	*(uint64_t *)member_at(k, base) = v;
	return 0;
}

static int
set_size(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	return set_units(k, base, text, what, conf_sizes);
}

static int
set_duration(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	return set_units(k, base, text, what, conf_durations);
}

/* --- words and texts -------------------------------------------------------------------------- */

static int
set_word(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	size_t at;

	for (unsigned v = 0; v < types[k->type].nwords; v++)
		if (strcmp(text, types[k->type].word(v)) == 0) {
			*(unsigned *)member_at(k, base) = v;
			return 0;
		}
	(void)bad(what, "%.60s is not %s:", text, conf_wants(k));
	for (unsigned v = 0; v < types[k->type].nwords; v++) {
		at = strlen(what);
		(void)snprintf(what + at, CONF_WHAT - at, "%s %s", v > 0 ? "," : "",
			types[k->type].word(v));
	}
	return -1;
}

static int
check_length(const struct conf_key *k, const char *text, char what[CONF_WHAT])
{
	size_t n = strlen(text);

	if (n == 0 && k->min > 0)
		return bad(what, "is empty: %s is needed", conf_wants(k));
	if (n > k->max)
		return bad(what, "is %zu bytes long, at most %d are allowed", n, (int)k->max);
	return 0;
}

/* `decoder` is what LMCache's own proxies call it. */
static int
set_first_token(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	return set_word(k, base, strcmp(text, "decoder") == 0 ? "decode" : text, what);
}

/* An empty text, where one is allowed, means "none": NULL. */
static int
set_text(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	if (check_length(k, text, what) != 0)
		return -1;
	*(char **)member_at(k, base) = text[0] == '\0' ? NULL : mem_strdup(text);
	return 0;
}

#define ALNUM "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

static int
set_name(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	if (strlen(text) > k->max || text[strspn(text, ALNUM "._:/-")] != '\0')
		return bad(what, "%.80s cannot be a name: 1 to %d of letters, digits and ._:/-",
			text, (int)k->max);
	return set_text(k, base, text, what);
}

/* A token of RFC 9110, of a header that passes: any other would never be found in a request. */
static int
set_header(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	const struct span name = {text, strlen(text)};

	if (text[0] != '\0' && !http_is_name(name))
		return bad(what, "%.80s is not the name of a header: no blanks, no colon", text);
	if (http_is_hop(name) || http_is_ours(name))
		return bad(what, "the router does not pass %.80s to engines: name another header",
			text);
	return set_text(k, base, text, what);
}

/* A number that is always octal, with quotes or without. */
static int
set_mode(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	const size_t n = strlen(text);

	if (n < 3 || n > 4 || text[strspn(text, "01234567")] != '\0' || (n == 4 && text[0] != '0'))
		return bad(what, "%.20s is not a mode in octal such as 0660", text);
	*(uint32_t *)member_at(k, base) = (uint32_t)strtoul(text, NULL, 8);
	return 0;
}

static int
set_path(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	if (text[0] != '/')
		return bad(what, "%.60s does not start with /", text);
	for (const char *p = text; *p != '\0'; p++)
		if (*p <= ' ' || *p >= 0x7f || *p == '#')
			return bad(what,
				"%.60s holds a blank, a # or a byte that must be percent-encoded",
				text);
	return set_text(k, base, text, what);
}

static int
set_url(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct http_url url;
	const char *why;

	if (check_length(k, text, what) != 0)
		return -1;
	if (http_url_parse(text, &url, &why) != 0)
		return bad(what, "%.80s: %s", text, why);
	return set_text(k, base, text, what);
}

bool
conf_strs_has(char *const *v, size_t n, const char *s)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(v[i], s) == 0)
			return true;
	return false;
}

static int
add_text(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	char ***v = member_at(k, base);
	size_t *n = (size_t *)((char *)base + k->noff), len = strlen(text);

	if (len == 0 || len > 255)
		return bad(what, "is %zu bytes long: 1 to 255 are needed", len);
	/* models may be many: check_others() (conf_pools.c) finds one that is there twice */
	if (k->type != CONF_T_MODELS && conf_strs_has(*v, *n, text))
		return bad(what, "%.80s is in the list twice", text);
	if ((*n & (*n - 1)) == 0)
		*v = mem_resize(*v, *n > 0 ? 2 * *n : 1, sizeof(**v));
	(*v)[(*n)++] = mem_strdup(text);
	return 0;
}

/* --- keys of clients -------------------------------------------------------------------------- */

/* The name stands in log lines and in labels as it is. */
static int
set_key_name(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	for (const char *p = text; *p != '\0'; p++)
		if (*p <= ' ' || *p >= 0x7f || strchr("\"'`\\", *p) != NULL)
			return bad(what,
				"%.80s cannot be a name: no blank, no quote, no backslash, ASCII only",
				text);
	return set_text(k, base, text, what);
}

static int
set_sha256(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	char *to = member_at(k, base);

	/* what stands here may be a key by mistake: no message shows it */
	if (strlen(text) != 2 * CONF_SHA256 || text[strspn(text, "0123456789abcdefABCDEF")] != '\0')
		return bad(what, "is not %s: write the SHA-256 of the key, not the key",
			conf_wants(k));
	for (size_t i = 0; i <= 2 * CONF_SHA256; i++)
		to[i] = (char)tolower((unsigned char)text[i]);
	return 0;
}

static int
set_priority(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	const bool minus = text[0] == '-';
	uint64_t v;
	size_t n = conf_digits(text + minus, &v);

	if (n == 0 || text[minus + n] != '\0' || v > (uint64_t)INT32_MAX + minus)
		return bad(what, "%.60s is not %s", text, conf_wants(k));
	*(int32_t *)member_at(k, base) = (int32_t)(minus ? -(int64_t)v : (int64_t)v);
	return 0;
}

/* 0 for `never`. */
static int
set_date(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	uint64_t s = 0;

	if (strcmp(text, "never") != 0 && !conf_date_parse(text, &s))
		return bad(what, "%.60s is not %s", text, conf_wants(k));
	*(uint64_t *)member_at(k, base) = s;
	return 0;
}

/* --- addresses -------------------------------------------------------------------------------- */

/* ZMQ's forms of an address to bind (zmq_tcp(7), zmq_ipc(7)); zmq_bind() checks the rest. */
static int
set_notices(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	const char *colon = strrchr(text, ':');

	if (text[0] != '\0' && (strncmp(text, "ipc://", 6) != 0 || text[6] == '\0') &&
		(strncmp(text, "tcp://", 6) != 0 || colon < text + 7 ||
			conf_port_of(colon + 1) == 0))
		return bad(what,
			"%.80s is not an address such as tcp://*:7500 or ipc:///run/kv.sock", text);
	return set_text(k, base, text, what);
}

static int
add_listen(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct conf_listen **list = member_at(k, base);
	size_t *n = (size_t *)(void *)((char *)base + k->noff);
	const struct conf_listen *other;
	struct conf_listen l = {.text = NULL};
	const char *why = conf_listen_parse(text, &l);
	enum listen_list where;

	if (why == NULL && conf_listen_path(&l) != NULL && strcmp(k->path, "admin.listen") != 0)
		why = "a unix socket is for admin.listen alone";
	if (why != NULL)
		return bad(what, "%.80s: %s", text, why);
	for (size_t i = 0; (other = conf_listen_at(base, i, &where)) != NULL; i++)
		if (conf_listen_same(&l, other))
			return bad(what, "%.80s is there twice", text);
	*list = mem_resize(*list, *n + 1, sizeof(**list));
	l.text = mem_strdup(text);
	(*list)[(*n)++] = l;
	return 0;
}

/* A name to look up: a literal has no records. */
static int
set_host(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	const char *why = conf_host_check(text);
	struct in_addr a;

	if (why != NULL)
		return bad(what, "%.80s: %s", text, why);
	if (inet_pton(AF_INET, text, &a) == 1)
		return bad(what, "%.80s is an address: list it as an endpoint", text);
	return set_text(k, base, text, what);
}

/* What engines put in front of a port: an IPv6 literal gets brackets if it comes without. */
static int
set_address_host(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	bool bare = strchr(text, ':') != NULL && text[0] != '[';
	char *full = mem_printf("%s%s%s:1", bare ? "[" : "", text, bare ? "]" : "");
	struct conf_listen l = {.text = NULL};
	const char *why = text[0] != '\0' ? conf_address_parse(full, &l) : NULL;
	int rc;

	full[strlen(full) - strlen(":1")] = '\0';
	rc = why != NULL ? bad(what, "%.80s: %s", text, why) : set_text(k, base, full, what);
	free(full);
	return rc;
}

static int
set_kv_addr(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct conf_listen l = {.text = NULL};
	const char *why = text[0] != '\0' ? conf_address_parse(text, &l) : NULL;

	if (why != NULL)
		return bad(what, "%.80s: %s", text, why);
	return set_text(k, base, text, what);
}

/* An address to connect to: libzmq looks up no name, since the notifier may open no file. */
/* An IP literal and a port: the notifier looks no name up. */
static bool
is_tcp_address(const char *text)
{
	static const char scheme[] = "tcp://";
	struct conf_listen l = {.text = NULL};
	unsigned char ip[16];

	return strncmp(text, scheme, strlen(scheme)) == 0 &&
	       conf_address_parse(text + strlen(scheme), &l) == NULL &&
	       inet_pton(strchr(l.host, ':') != NULL ? AF_INET6 : AF_INET, l.host, ip) == 1;
}

static int
set_kv_events(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	static const char own[] = "tcp://*:";
	const size_t n = strlen(own);

	if (text[0] != '\0' &&
		(strncmp(text, own, n) == 0 ? conf_port_of(text + n) == 0 : !is_tcp_address(text)))
		return bad(what,
			"%.80s is not an address such as tcp://*:5557 or tcp://10.0.0.1:5557",
			text);
	return set_text(k, base, text, what);
}

static int
add_router(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	if (!is_tcp_address(text))
		return bad(what, "%.80s is not an address such as tcp://10.0.0.2:9310", text);
	return add_text(k, base, text, what);
}

static int
add_network(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct net net;

	if (!net_parse(text, &net))
		return bad(
			what, "%.80s is not a network such as 10.1.0.0/16 or 2001:db8::/32", text);
	return add_text(k, base, text, what);
}

static int
add_announced(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	struct net_announced a;

	if (!net_announced_parse(text, &a))
		return bad(what,
			"%.80s is neither a network such as 10.1.0.0/16 nor 10.1.0.0/16 from 10.9.0.0/24",
			text);
	return add_text(k, base, text, what);
}

/* As a browser writes it (HTML Standard, "serialization of an origin"): in lower case, without the scheme's own port. */
static const char *
origin_check(const char *text)
{
	const char *host = strstr(text, "://");
	struct conf_listen l;
	char *full;
	const char *why;

	if (host == NULL || host == text || strpbrk(host + 3, "/?#@") != NULL ||
		text[strcspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ ")] != '\0')
		return "write https://host or https://host:port, in lower case";
	if ((strncmp(text, "https://", 8) == 0 && strcmp(strrchr(text, ':'), ":443") == 0) ||
		(strncmp(text, "http://", 7) == 0 && strcmp(strrchr(text, ':'), ":80") == 0))
		return "browsers leave the scheme's own port out";
	host += 3;
	full = mem_printf("%s%s", host,
		strchr(host, ':') == NULL || host[strlen(host) - 1] == ']' ? ":1" : "");
	why = host[0] == '\0' ? "no host" : conf_address_parse(full, &l);
	free(full);
	return why;
}

static int
add_origin(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	const char *why = strcmp(text, "*") == 0 ? NULL : origin_check(text);

	if (why != NULL)
		return bad(what, "%.80s is not an origin: %s", text, why);
	return add_text(k, base, text, what);
}

static int
add_field(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	if (text[0] != '\0' && !http_is_name((struct span){text, strlen(text)}))
		return bad(what, "%.80s is not the name of a header: no blanks, no colon", text);
	return add_text(k, base, text, what);
}

/* An address, because no name server is known to look up a name; with a port or without. */
static int
add_server(const struct conf_key *k, void *base, const char *text, char what[CONF_WHAT])
{
	bool bare = strchr(text, ':') == NULL || text[strlen(text) - 1] == ']';
	char *full = mem_printf("%s%s", text, bare ? ":53" : "");
	struct conf_listen l = {.text = NULL};
	const char *why = conf_address_parse(full, &l);
	uint8_t ip[16];

	free(full);
	if (why != NULL ||
		(inet_pton(AF_INET, l.host, ip) != 1 && inet_pton(AF_INET6, l.host, ip) != 1))
		return bad(
			what, "%.80s is not an address such as 10.0.0.2 or [fd00::2]:5353", text);
	return add_text(k, base, text, what);
}

/* --- copying, freeing ------------------------------------------------------------------------- */

void
conf_value_copy(const struct conf_key *k, const void *from, void *to)
{
	switch (types[k->type].repr) {
	case CONF_U32:
	case CONF_WORD:
		*(uint32_t *)member_at(k, to) = *(const uint32_t *)cmember(k, from);
		return;
	case CONF_U64:
		*(uint64_t *)member_at(k, to) = *(const uint64_t *)cmember(k, from);
		return;
	case CONF_STR:
		free(*(char **)member_at(k, to));
		*(char **)member_at(k, to) = mem_strdup(*(char *const *)cmember(k, from));
		return;
	case CONF_RATE:
	case CONF_SHORT:
	case CONF_PORTS:
	case CONF_STRS:
	case CONF_LIST:
		assert(!"none of these is of class restart");
	}
}

void
conf_values_free(const struct conf_keys *keys, void *base)
{
	for (size_t i = 0; i < keys->n; i++) {
		const struct conf_key *k = &keys->key[i];
		char ***v = member_at(k, base);

		if (conf_repr(k) == CONF_STR)
			free(*(char **)member_at(k, base));
		if (conf_repr(k) != CONF_STRS)
			continue;
		for (size_t n = *(size_t *)((char *)base + k->noff); n > 0; n--)
			free((*v)[n - 1]);
		free(*v);
	}
}
