/*
 * The table of configuration keys as text, for tests/lint/conf_doc.py.
 *   conf_dump keys        a line per key: table, path, default, class, doc, separated by tabs
 *   conf_dump flags       a line per flag of other routers: kind, name, argument, doc
 *   conf_dump check FILE  reads it; prints the error and exits 1 if it is wrong
 *   conf_dump same A B    reads both; exits 1 and names what a reload would see if they differ
 */
#include <stdio.h>
#include <string.h>

#include "master/config/conf_flags.h"
#include "master/config/conf_keys.h"

static const char *
class_name(enum conf_class c)
{
	return c == CONF_LIVE ? "live" : c == CONF_GENERATION ? "generation" : "restart";
}

static void
print_keys(const char *table, const struct conf_keys *keys)
{
	for (size_t i = 0; i < keys->n; i++)
		if (keys->key[i].type != CONF_T_CONNECTOR_MAP)
			(void)printf("%s\t%s\t%s\t%s\t%s\n", table, keys->key[i].path,
				keys->key[i].def != NULL ? keys->key[i].def : "(required)",
				class_name(keys->key[i].class), keys->key[i].doc);
}

static void
print_flags(void)
{
#define ROW(kind, name, arg, doc)                                                                  \
	{                                                                                          \
		kind, name, arg, doc                                                               \
	}
#define USED(id, ...) ROW("used", __VA_ARGS__),
#define IDLE(id, ...) ROW("idle", __VA_ARGS__),
#define GONE(id, ...) ROW("gone", __VA_ARGS__),
	static const char *const rows[FLAG_N][4] = {CONF_FLAGS(USED, IDLE, GONE)};

	for (size_t i = 0; i < FLAG_N; i++)
		(void)printf("%s\t%s\t%s\t%s\n", rows[i][0], rows[i][1],
			rows[i][2] != NULL ? rows[i][2] : "", rows[i][3]);
}

static struct conf *
load(const char *path)
{
	struct conf_error err;
	struct conf *c = NULL;
	char text[1024];

	if (conf_load(path, &c, &err) != 0)
		(void)fprintf(stderr, "%s\n", conf_error_text(&err, text, sizeof(text)));
	return c;
}

static int
same(const char *a, const char *b)
{
	struct conf *ca = load(a), *cb = load(b);
	struct conf_error err;
	int rc = ca == NULL || cb == NULL ? -1 : conf_diff(ca, cb, NULL, NULL, &err);

	conf_free(&ca);
	conf_free(&cb);
	if (rc != 0)
		(void)fprintf(stderr, "classes changed: %d\n", rc);
	return rc != 0;
}

int
main(int argc, char **argv)
{
	struct conf *c;
	int bad;

	if (argc == 2 && strcmp(argv[1], "keys") == 0) {
		print_keys("root", &conf_root_keys);
		print_keys("pool", &conf_pool_keys);
		print_keys("connector", &conf_connector_keys);
		print_keys("endpoint", &conf_endpoint_keys);
		print_keys("endpoints_file", &conf_file_keys);
		return 0;
	}
	if (argc == 2 && strcmp(argv[1], "flags") == 0) {
		print_flags();
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "check") == 0) {
		c = load(argv[2]);
		bad = c == NULL;
		conf_free(&c);
		return bad;
	}
	if (argc == 4 && strcmp(argv[1], "same") == 0)
		return same(argv[2], argv[3]);
	(void)fprintf(stderr, "usage: conf_dump keys | flags | check FILE | same A B\n");
	return 2;
}
