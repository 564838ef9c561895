/* libyaml's tree into structs, by the rows of conf_keys.h. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_read.h"

// clang-format off
#define ROW(path, type, off, noff, min, max, def, class, doc) \
	{ path, CONF_T_##type, off, noff, min, max, def, CONF_##class, doc, NULL },
#define ROOT(path, type, m, ...) ROW(path, type, offsetof(struct conf, m), 0, __VA_ARGS__)
#define ROOT_L(path, type, m, nm, ...) \
	ROW(path, type, offsetof(struct conf, m), offsetof(struct conf, nm), __VA_ARGS__)
#define POOL(path, type, m, ...) ROW(path, type, offsetof(struct conf_pool, m), 0, __VA_ARGS__)
#define POOL_L(path, type, m, nm, ...) \
	ROW(path, type, offsetof(struct conf_pool, m), offsetof(struct conf_pool, nm), __VA_ARGS__)
#define DNS(path, type, m, ...) ROW(path, type, offsetof(struct conf_dns, m), 0, __VA_ARGS__)
#define CLIENT_KEY(path, type, m, ...) \
	ROW(path, type, offsetof(struct conf_api_key, m), 0, __VA_ARGS__)
#define CLIENT_KEY_L(path, type, m, nm, ...) \
	ROW(path, type, offsetof(struct conf_api_key, m), offsetof(struct conf_api_key, nm), __VA_ARGS__)
#define EP(path, type, m, ...) ROW(path, type, offsetof(struct conf_endpoint, m), 0, __VA_ARGS__)
#define CERT(path, type, m, ...) ROW(path, type, offsetof(struct conf_certificate, m), 0, __VA_ARGS__)
// clang-format on

static const struct conf_key root_rows[] = {CONF_KEYS(ROOT, ROOT_L)};
static const struct conf_key pool_rows[] = {
	CONF_POOL_KEYS(POOL, POOL_L) CONNECTOR_LIST(CONF_CONNECTOR_MAP)};
static const struct conf_key connector_rows[] = {CONF_CONNECTOR_KEYS(POOL)};
static const struct conf_key endpoint_rows[] = {CONF_ENDPOINT_KEYS(EP, )};
static const struct conf_key dns_rows[] = {CONF_DNS_KEYS(DNS, )};
static const struct conf_key certificate_rows[] = {CONF_CERTIFICATE_KEYS(CERT)};
static const struct conf_key file_rows[] = {CONF_FILE_KEYS(EP, )};
static const struct conf_key client_key_rows[] = {CONF_CLIENT_KEY_KEYS(CLIENT_KEY, CLIENT_KEY_L)};
static const struct conf_key admin_key_rows[] = {CONF_ADMIN_KEY_KEYS(CLIENT_KEY, )};

_Static_assert(
	sizeof(pool_rows) / sizeof(pool_rows[0]) <= CONF_ENTRY_KEYS, "lines[] of a list's entry");
_Static_assert(
	sizeof(file_rows) / sizeof(file_rows[0]) <= CONF_ENTRY_KEYS, "lines[] of a list's entry");

#define ROWS(v)                                                                                    \
	{                                                                                          \
		v, sizeof(v) / sizeof((v)[0])                                                      \
	}
const struct conf_keys conf_root_keys = ROWS(root_rows);
const struct conf_keys conf_pool_keys = ROWS(pool_rows);
const struct conf_keys conf_connector_keys = ROWS(connector_rows);
const struct conf_keys conf_endpoint_keys = ROWS(endpoint_rows);
const struct conf_keys conf_file_keys = ROWS(file_rows);
const struct conf_keys conf_dns_keys = ROWS(dns_rows);
const struct conf_keys conf_client_key_keys = ROWS(client_key_rows);
const struct conf_keys conf_admin_key_keys = ROWS(admin_key_rows);
const struct conf_keys conf_certificate_keys = ROWS(certificate_rows);

void
conf_blunt(char *s)
{
	for (; *s != '\0'; s++)
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			*s = '?';
}

int
conf_fail(struct conf_read *r, int line, const char *fmt, ...)
{
	va_list ap;

	(void)snprintf(r->err->file, sizeof(r->err->file), "%s", r->file != NULL ? r->file : "");
	(void)snprintf(r->err->key, sizeof(r->err->key), "%s", r->flag != NULL ? r->flag : r->path);
	r->err->line = line;
	va_start(ap, fmt);
	(void)vsnprintf(r->err->what, sizeof(r->err->what), fmt, ap);
	va_end(ap);
	conf_blunt(r->err->key);
	conf_blunt(r->err->what);
	return -1;
}

size_t
conf_enter(struct conf_read *r, const char *fmt, ...)
{
	size_t mark = strlen(r->path);
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(r->path + mark, sizeof(r->path) - mark, fmt, ap);
	va_end(ap);
	return mark;
}

/* Formats by hand: snprintf() cost more than the rest of reading an entry of a long list. */
size_t
conf_enter_entry(struct conf_read *r, size_t i)
{
	size_t mark = strlen(r->path), at = mark, n = 0;
	char digits[24];

	do
		digits[n++] = (char)('0' + i % 10);
	while ((i /= 10) > 0);
	if (mark + n + sizeof("[]") > sizeof(r->path))
		return mark;
	r->path[at++] = '[';
	while (n > 0)
		r->path[at++] = digits[--n];
	r->path[at++] = ']';
	r->path[at] = '\0';
	return mark;
}

void
conf_leave(struct conf_read *r, size_t mark)
{
	r->path[mark] = '\0';
}

/* By hand: what formatting its keys costs, 1,000 endpoints would feel. */
static size_t
enter_key(struct conf_read *r, const char *name)
{
	size_t mark = strlen(r->path), at = mark, n = strlen(name);

	if (at > 0 && at + 1 < sizeof(r->path))
		r->path[at++] = '.';
	n = n < sizeof(r->path) - at ? n : sizeof(r->path) - at - 1;
	memcpy(r->path + at, name, n);
	r->path[at + n] = '\0';
	return mark;
}

static const char *
kind(const yaml_node_t *node)
{
	if (node->type == YAML_MAPPING_NODE)
		return "a mapping";
	return node->type == YAML_SEQUENCE_NODE ? "a list" : "a single value";
}

static const char *
text_of(const yaml_node_t *node)
{
	return (const char *)node->data.scalar.value;
}

static bool
is_plain(const yaml_node_t *node)
{
	return node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static bool
one_of(const char *s, const char *const *words)
{
	for (; *words != NULL; words++)
		if (strcasecmp(s, *words) == 0)
			return true;
	return false;
}

static bool
is_null(const yaml_node_t *node)
{
	static const char *const nulls[] = {"", "~", "null", NULL};

	/* lists have up to 65,536 texts: most differ in the length alone */
	return node->type == YAML_SCALAR_NODE && node->data.scalar.length <= strlen("null") &&
	       is_plain(node) && one_of(text_of(node), nulls);
}

/* The type other than text that YAML gives this plain word; NULL: it is text. */
static const char *
not_text(const char *s)
{
	static const char *const bools[] = {"true", "false", "yes", "no", "on", "off", NULL};
	char *end;

	if (strchr("tTfFyYnNoO", s[0]) != NULL && one_of(s, bools))
		return "boolean";
	if (strchr("+-.0123456789", s[0]) == NULL)
		return NULL;
	(void)strtod(s, &end);
	return *end == '\0' ? "number" : NULL;
}

int
conf_scalar(struct conf_read *r, yaml_node_t *node, const char *wants, const char **ret)
{
	int line = conf_line(node);
	const char *s;

	if (node->type != YAML_SCALAR_NODE)
		return conf_fail(r, line, "is %s: %s is needed", kind(node), wants);
	if (is_null(node))
		return conf_fail(r, line, "has no value: give it %s, or leave the key out", wants);
	s = text_of(node);
	for (size_t i = 0; i < node->data.scalar.length; i++)
		if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
			return conf_fail(
				r, line, "holds the control byte 0x%02x", (unsigned char)s[i]);
	*ret = s;
	return 0;
}

static int
check_scalar(struct conf_read *r, const struct conf_key *k, yaml_node_t *node)
{
	int line = conf_line(node);
	const char *s = "", *other;

	if (conf_scalar(r, node, conf_wants(k), &s) != 0)
		return -1;
	if (conf_is_number(k) && !is_plain(node))
		return conf_fail(r, line, "\"%.60s\" is text because of its quotes: %s is needed",
			s, conf_wants(k));
	if (conf_repr(k) < CONF_STR || !is_plain(node))
		return 0;
	other = not_text(s);
	if (other != NULL)
		return conf_fail(r, line, "%.60s is a %s: quote it to mean text", s, other);
	return 0;
}

static int
set_scalar(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	char what[CONF_WHAT];

	if (check_scalar(r, k, node) != 0)
		return -1;
	if (conf_value_set(k, base, text_of(node), what) != 0)
		return conf_fail(r, conf_line(node), "%s", what);
	return 0;
}

yaml_node_t *
conf_item(struct conf_read *r, yaml_node_t *list, size_t i)
{
	yaml_node_item_t *item = list->data.sequence.items.start + i;

	return item < list->data.sequence.items.top ? yaml_document_get_node(&r->doc, *item) : NULL;
}

int
conf_is_list(struct conf_read *r, const struct conf_key *k, yaml_node_t *node, size_t *ret_n)
{
	size_t n;

	if (node->type != YAML_SEQUENCE_NODE)
		return conf_fail(r, conf_line(node), "%s %s: %s is needed",
			is_null(node) ? "has" : "is", is_null(node) ? "no value" : kind(node),
			conf_wants(k));
	n = (size_t)(node->data.sequence.items.top - node->data.sequence.items.start);
	if (n < k->min)
		return conf_fail(r, conf_line(node), "is empty: it needs at least %d", (int)k->min);
	if (n > k->max)
		return conf_fail(r, conf_line(node), "has %zu entries, at most %d are allowed", n,
			(int)k->max);
	*ret_n = n;
	return 0;
}

static int
set_texts(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	yaml_node_t *item;
	size_t n, mark;

	if (conf_is_list(r, k, list, &n) != 0)
		return -1;
	for (size_t i = 0; (item = conf_item(r, list, i)) != NULL; i++) {
		mark = conf_enter_entry(r, i);
		if (set_scalar(r, k, base, item) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

/* A list, or one alone. */
static int
set_ports(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	return (node->type == YAML_SEQUENCE_NODE ? set_texts : set_scalar)(r, k, base, node);
}

static int
set_member(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *node)
{
	static conf_reader *const set[CONF_T_N] = {
		[CONF_T_LISTEN] = set_texts,
		[CONF_T_MODELS] = set_texts,
		[CONF_T_LABELS] = set_texts,
		[CONF_T_NETWORKS] = set_texts,
		[CONF_T_ANNOUNCED] = set_texts,
		[CONF_T_SERVERS] = set_texts,
		[CONF_T_ROUTERS] = set_texts,
		[CONF_T_ORIGINS] = set_texts,
		[CONF_T_FIELDS] = set_texts,
		[CONF_T_PORTS] = set_ports,
	};

	if (k->read != NULL)
		return k->read(r, k, base, node);
	if (r->readers != NULL && r->readers[k->type] != NULL)
		return r->readers[k->type](r, k, base, node);
	return (set[k->type] != NULL ? set[k->type] : set_scalar)(r, k, base, node);
}

static const struct conf_key *
find(const struct conf_keys *keys, const char *prefix, const char *name)
{
	size_t n = strlen(prefix);

	for (size_t i = 0; i < keys->n; i++)
		if (strncmp(keys->key[i].path, prefix, n) == 0 &&
			strcmp(keys->key[i].path + n, name) == 0)
			return &keys->key[i];
	return NULL;
}

const struct conf_key *
conf_key_row(const struct conf_keys *keys, const char *path)
{
	return find(keys, "", path);
}

/* True if some key lies below prefix + name: `limits` of limits.max_body. */
static bool
is_section(const struct conf_keys *keys, const char *prefix, const char *name)
{
	size_t n = strlen(prefix), m = strlen(name);

	for (size_t i = 0; i < keys->n; i++)
		if (strncmp(keys->key[i].path, prefix, n) == 0 &&
			strncmp(keys->key[i].path + n, name, m) == 0 &&
			keys->key[i].path[n + m] == '.')
			return true;
	return false;
}

/* Number of characters to insert, drop or replace to make b of a; both short. */
static unsigned
distance(const char *a, const char *b)
{
	unsigned row[64], left, diagonal, cost;
	size_t n = strlen(b);

	if (n >= 63 || strlen(a) >= 63)
		return 63;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (; *a != '\0'; a++) {
		diagonal = row[0]++;
		for (size_t j = 1; j <= n; j++) {
			left = row[j - 1] + 1;
			cost = diagonal + (*a != b[j - 1]);
			diagonal = row[j];
			row[j] = row[j] + 1 < left ? row[j] + 1 : left;
			row[j] = cost < row[j] ? cost : row[j];
		}
	}
	return row[n];
}

/* A key that the user may have meant: the lower `cost`, the likelier. */
struct guess {
	const char *path;
	size_t n; /* of it */
	unsigned cost;
};

/* True if `w` has the words of `name` between underscores or at an end: api_key in engine_api_key_file. */
static bool
is_part(const char *name, const char *w)
{
	const char *at = name[0] != '\0' ? strstr(w, name) : NULL;
	const char *end = at != NULL ? at + strlen(name) : NULL;

	return at != NULL && (at == w || at[-1] == '_') && (*end == '\0' || *end == '_');
}

/* `word` lies in `path`, up to the next dot; `far` breaks ties. */
static void
consider(struct guess *g, const char *name, const char *path, const char *word, bool far)
{
	char w[64];
	size_t n = strcspn(word, ".");
	unsigned d;

	if (n >= sizeof(w))
		return;
	memcpy(w, word, n);
	w[n] = '\0';
	d = distance(name, w);
	if (d > 2 && is_part(name, w))
		d = 2; /* api_key: engine_api_key_file */
	if (2 * d + far < g->cost)
		*g = (struct guess){path, (size_t)(word - path) + n, 2 * d + far};
}

/* True if the name is the path in one word: outlier_factor for outlier.factor. */
static bool
is_joined(const char *name, const char *path)
{
	while (*name != '\0' && (*name == *path || (*name == '_' && *path == '.'))) {
		name++;
		path++;
	}
	return *name == '\0' && *path == '\0';
}

/* The other mapping with a key of exactly this name, or NULL. */
static const char *
home_of(const struct conf_keys *keys, const char *name)
{
	static const struct {
		const struct conf_keys *keys;
		const char *name;
	} homes[] = {
		{&conf_root_keys, "the top level"},
		{&conf_pool_keys, "a pool"},
		{&conf_connector_keys, "the map of a connector in a pool, such as lmcache: {...}"},
		{&conf_endpoint_keys, "an entry of prefill or decode"},
		{&conf_certificate_keys, "an entry of tls.certificates"},
		{&conf_file_keys, "an entry of an endpoints_file"},
		{&conf_client_key_keys, "an entry of the api_keys_file"},
		{&conf_admin_key_keys, "an entry of the admin.api_keys_file"},
	};

	for (size_t i = 0; i < sizeof(homes) / sizeof(homes[0]); i++)
		if (homes[i].keys != keys && (find(homes[i].keys, "", name) != NULL ||
						     is_section(homes[i].keys, "", name)))
			return homes[i].name;
	return NULL;
}

/* What other routers call it: the first whose word is part of the name, or NULL. */
static const char *
other_word(const char *name)
{
	static const struct {
		const char *part, *ours;
	} words[] = {
		{"retr", "retries of a pool"},
		{"breaker", "eject_failures of a pool"},
		{"outlier_detect", "eject_failures of a pool"},
		{"outlier", "outlier: {factor: ...} of a pool"},
		{"eject", "eject_failures, eject_time or max_ejected of a pool"},
		{"queue", "queue_size or queue_timeout of a pool"},
		{"concurren", "max_inflight of an engine"},
		{"rate", "client.rate"},
		{"rps", "client.rate"},
		{"request_timeout", "timeouts: {request: ...} of a pool"},
		{"timeout", "timeouts of a pool"},
		{"memory", "limits.max_buffered"},
	};

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strstr(name, words[i].part) != NULL)
			return words[i].ours;
	return NULL;
}

/* What a key that is gone has become, or NULL (etc/CHANGELOG.md has all). */
static const char *
successors(const char *prefix, const char *name)
{
	static const struct {
		const char *prefix, *name, *now;
	} gone[] = {
		{"timeouts.", "decode", "first_byte, stream_idle and whole_answer"},
	};

	for (size_t i = 0; i < sizeof(gone) / sizeof(gone[0]); i++)
		if (strcmp(gone[i].prefix, prefix) == 0 && strcmp(gone[i].name, name) == 0)
			return gone[i].now;
	return NULL;
}

/* A misspelt key gets the nearest one named, of its own section if there are equals; a key of another
 * section gets its full name, one of another kind of mapping that. */
static int
fail_unknown(struct conf_read *r, const struct conf_keys *keys, const char *prefix,
	const char *name, int line)
{
	struct guess g = {.cost = 6};
	bool ours = r->conf != NULL; /* the hints below are about pdrouter's keys */
	const char *home = ours ? home_of(keys, name) : NULL;
	const char *other = ours ? other_word(name) : NULL;
	const char *now = ours ? successors(prefix, name) : NULL;

	if (now != NULL)
		return conf_fail(r, line, "unknown key; it has become %s", now);
	for (size_t i = 0; i < keys->n; i++) {
		const char *path = keys->key[i].path, *dot = strrchr(path, '.');

		if (is_joined(name, path))
			g = (struct guess){path, strlen(path), 0};
		consider(&g, name, path, dot != NULL ? dot + 1 : path, true);
		if (strncmp(path, prefix, strlen(prefix)) == 0)
			consider(&g, name, path, path + strlen(prefix), false);
	}
	if (strcmp(name, "port") == 0 && find(keys, prefix, "listen") != NULL)
		return conf_fail(r, line, "unknown key; did you mean listen?");
	if (home != NULL && g.cost > 1)
		return conf_fail(r, line, "unknown key here: it belongs to %s", home);
	if (g.path != NULL)
		return conf_fail(r, line, "unknown key; did you mean %.*s?", (int)g.n, g.path);
	if (other != NULL)
		return conf_fail(r, line, "unknown key; did you mean %s?", other);
	return conf_fail(r, line, "unknown key");
}

static int
check_key(
	struct conf_read *r, const yaml_node_t *map, const yaml_node_pair_t *pair, const char **ret)
{
	yaml_node_t *node = yaml_document_get_node(&r->doc, pair->key), *other;

	if (node->type != YAML_SCALAR_NODE)
		return conf_fail(r, conf_line(node), "a key must be a word, not %s", kind(node));
	*ret = text_of(node);
	if (strlen(*ret) != node->data.scalar.length)
		return conf_fail(r, conf_line(node), "a key with a NUL byte");
	for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < pair; p++) {
		other = yaml_document_get_node(&r->doc, p->key);
		if (strcmp(text_of(other), *ret) == 0) {
			(void)enter_key(r, *ret);
			return conf_fail(r, conf_line(node), "given twice, first in line %d",
				conf_line(other));
		}
	}
	return 0;
}

int
conf_entry(struct conf_read *r, yaml_node_t *map, size_t i, const char **name, yaml_node_t **value)
{
	yaml_node_pair_t *p;

	if (map->type != YAML_MAPPING_NODE)
		return conf_fail(r, conf_line(map), "%s %s: a mapping is needed",
			is_null(map) ? "has" : "is", is_null(map) ? "no value" : kind(map));
	p = map->data.mapping.pairs.start + i;
	if (p >= map->data.mapping.pairs.top)
		return 0;
	if (check_key(r, map, p, name) != 0)
		return -1;
	*value = yaml_document_get_node(&r->doc, p->value);
	return 1;
}

/* The keys of one mapping; `prefix` is "" or the section's name with its dot. */
static int
walk_keys(struct conf_read *r, const struct conf_keys *keys, void *base, const char *prefix,
	yaml_node_t *map, int *lines)
{
	const struct conf_key *k;
	const char *name = "";
	char inner[64];
	size_t mark;
	int rc;

	if (map->type != YAML_MAPPING_NODE)
		return conf_fail(r, conf_line(map), "%s %s: a mapping of keys is needed",
			is_null(map) ? "has" : "is", is_null(map) ? "no value" : kind(map));
	for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top;
		p++) {
		yaml_node_t *value = yaml_document_get_node(&r->doc, p->value);
		int line = conf_line(yaml_document_get_node(&r->doc, p->key));

		if (check_key(r, map, p, &name) != 0)
			return -1;
		mark = enter_key(r, name);
		k = strchr(name, '.') == NULL ? find(keys, prefix, name)
					      : NULL; /* paths are ours, not YAML's */
		if (k != NULL) {
			lines[k - keys->key] = line;
			rc = set_member(r, k, base, value);
		} else if (is_section(keys, prefix, name)) {
			(void)snprintf(inner, sizeof(inner), "%s%s.", prefix, name);
			rc = walk_keys(r, keys, base, inner, value, lines);
		} else {
			rc = fail_unknown(r, keys, prefix, name, line);
		}
		if (rc != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

int
conf_defaults(
	struct conf_read *r, const struct conf_keys *keys, void *base, const int *lines, int line)
{
	char what[CONF_WHAT];

	for (size_t i = 0; i < keys->n; i++) {
		const struct conf_key *k = &keys->key[i];
		const char *def = conf_key_default(k);

		if (lines[i] != 0)
			continue;
		if (k->def == NULL) {
			(void)enter_key(r, k->path);
			return conf_fail(r, line, "is missing: %s", k->doc);
		}
		if (def == NULL || strcmp(def, "[]") == 0 ||
			conf_value_set(k, base, def, what) == 0)
			continue;
		(void)enter_key(r, k->path); /* an address that another key has, too */
		return conf_fail(r, line, "the default %s: %s", def, what);
	}
	return 0;
}

int
conf_walk_given(
	struct conf_read *r, const struct conf_keys *keys, void *base, yaml_node_t *map, int *lines)
{
	return walk_keys(r, keys, base, "", map, lines);
}

int
conf_walk(
	struct conf_read *r, const struct conf_keys *keys, void *base, yaml_node_t *map, int *lines)
{
	if (walk_keys(r, keys, base, "", map, lines) != 0)
		return -1;
	return conf_defaults(r, keys, base, lines, conf_line(map));
}

/* --- keys of a pool --------------------------------------------------------------------------- */

int
conf_given(const int *lines, const char *key)
{
	return lines != NULL ? lines[conf_key_row(&conf_pool_keys, key) - conf_pool_keys.key] : 0;
}

int
conf_line_of(const struct conf_pool *p, const int *lines, const char *key)
{
	int line = conf_given(lines, key);

	return line != 0 ? line : p->line;
}

int
conf_fail_key(struct conf_read *r, const struct conf_pool *p, const int *lines, const char *key,
	const char *fmt, ...)
{
	char what[CONF_WHAT];
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	(void)conf_enter(r, ".%s", key);
	return conf_fail(r, conf_line_of(p, lines, key), "%s", what);
}
