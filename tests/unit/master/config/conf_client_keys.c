/* The api_keys_file: what a row may say, what is refused and where the message points, what a reload sees. */
#include "master/config/conf.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/config/conf_date.h"
#include "shm/base/conf.h"

#define A "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"
#define B "10112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define NELEMS(v) (sizeof(v) / sizeof((v)[0]))

static char dir[] = "/tmp/pdr-keys-XXXXXX", path[64], keys_path[64];

static void
put(const char *to, const char *text)
{
	FILE *f = fopen(to, "w");

	cr_assert_not_null(f);
	cr_assert_geq(fputs(text, f), 0);
	cr_assert_eq(fclose(f), 0);
}

static void
begin(void)
{
	cr_assert_not_null(mkdtemp(dir));
	(void)snprintf(path, sizeof(path), "%s/router.yaml", dir);
	(void)snprintf(keys_path, sizeof(keys_path), "%s/keys.yaml", dir);
	put(path, "api_keys_file: keys.yaml\npools:\n- {name: a, connector: nixl, "
		  "prefill: [{url: http://p}], decode: [{url: http://d}]}\n");
}

static void
end(void)
{
	(void)unlink(path);
	(void)unlink(keys_path);
	(void)rmdir(dir);
}

TestSuite(conf_client_keys, .init = begin, .fini = end);

static struct conf *
load(const char *keys)
{
	struct conf_error err;
	struct conf *c = NULL;
	char text[600];

	put(keys_path, keys);
	cr_assert_eq(conf_load(path, &c, &err), 0, "%s", conf_error_text(&err, text, sizeof(text)));
	return c;
}

Test(conf_client_keys, all_that_a_row_may_say)
{
	struct conf *c = load(
		"- {name: alice, sha256: " A ", models: [llama, 'qwen*'], pools: [a], rate: 30/m,\n"
		"   max_inflight: 4, tokens_per_minute: 9000, priority_max: -5, expires: 2027-01-31}\n"
		"- {name: bob@example.org, sha256: " B "}\n");
	const struct conf_api_key *k = c->api_keys;

	cr_assert_eq(c->napi_keys, 2);
	cr_assert_str_eq(k->name, "alice");
	cr_assert_eq(strncmp(k->sha256 + 52, "aabbccddeeff", 13), 0, "in lower case");
	cr_assert(k->nmodels == 2 && k->npools == 1 && strcmp(k->models[1], "qwen*") == 0);
	cr_assert(k->terms.rate.n == 30 && k->terms.rate.per_s == 60 && k->terms.max_inflight == 4);
	cr_assert(k->terms.tokens_per_minute == 9000 && k->terms.priority_max == -5);
	cr_assert_eq(k->terms.expires_s, 1801353600);
	k++;
	cr_assert(k->nmodels == 0 && k->npools == 0 && k->terms.rate.n == 0);
	cr_assert(k->terms.priority_max == INT32_MIN && k->terms.expires_s == 0);
	conf_free(&c);
}

Test(conf_client_keys, no_key_is_written_as_an_empty_list)
{
	struct conf *c = load("[]\n");

	cr_assert(c->api_keys_file[DOOR_CLIENTS] != NULL && c->napi_keys == 0);
	conf_free(&c);
}

/* Each: the file, and the end of the message behind the file's name. */
Test(conf_client_keys, what_is_refused)
{
	static const char *const wrong[][2] = {
		{"", ": the file is empty: for no keys write []"},
		{"alice: " A "\n",
			":1: is a mapping: a list of keys such as [{name: alice, sha256: ...}] is needed"},
		{"- {sha256: " A "}\n", ":1: [0].name: is missing"},
		{"- {name: a}\n", ":1: [0].sha256: is missing"},
		{"- {name: '', sha256: " A "}\n", ":1: [0].name: is empty"},
		{"- {name: a b, sha256: " A "}\n", ":1: [0].name: a b cannot be a name"},
		{"- {name: a\"b, sha256: " A "}\n", ":1: [0].name: a\"b cannot be a name"},
		{"- name: a\n  sha256: pdr-secret\n", ":2: [0].sha256: is not 64 hex digits"},
		{"- {name: a, sha256: " A "}\n- {name: a, sha256: " B "}\n",
			":2: [1].name: a is already the name of the key in line 1"},
		{"- {name: a, sha256: " A "}\n- {name: b, sha256: " A "}\n",
			":2: [1].sha256: this is already the key of a in line 1"},
		{"- {name: a, sha256: " A ",\n   pools: [b]}\n",
			":2: [0].pools[0]: no pool has the name b"},
		{"- {name: a, sha256: " A ", expires: 2027-02-30}\n",
			":1: [0].expires: 2027-02-30 is not a date such as"},
		{"- {name: a, sha256: " A ", priority_max: 2147483648}\n",
			":1: [0].priority_max: 2147483648"},
		{"- {name: a, sha256: " A ", colour: red}\n", ":1: [0].colour: unknown key"},
		{"- {name: a, sha256: " A ", tokens_per_minut: 5}\n",
			":1: [0].tokens_per_minut: unknown key; did you mean tokens_per_minute?"},
	};
	struct conf_error err;
	struct conf *c = NULL;
	char text[600], want[300];

	for (size_t i = 0; i < NELEMS(wrong); i++) {
		put(keys_path, wrong[i][0]);
		cr_assert_eq(conf_load(path, &c, &err), -1, "%s", wrong[i][0]);
		(void)conf_error_text(&err, text, sizeof(text));
		(void)snprintf(want, sizeof(want), "%s%s", keys_path, wrong[i][1]);
		cr_expect_eq(strncmp(text, want, strlen(want)), 0, "%s", text);
		cr_expect_null(strstr(text, "secret"), "%s", text);
	}
}

Test(conf_client_keys, a_file_that_is_not_there)
{
	struct conf_error err;
	struct conf *c = NULL;

	cr_assert_eq(conf_load(path, &c, &err), -1);
	cr_assert_str_eq(err.key, "api_keys_file");
	cr_assert_eq(err.line, 1);
}

Test(conf_client_keys, more_than_there_is_room_for)
{
	struct conf_error err;
	struct conf *c = NULL;

	put(path, "api_keys_file: keys.yaml\nshared_memory: {max_api_keys: 1}\npools:\n- {name: a, "
		  "connector: nixl, prefill: [{url: http://p}], decode: [{url: http://d}]}\n");
	put(keys_path, "- {name: a, sha256: " A "}\n- {name: b, sha256: " B "}\n");
	cr_assert_eq(conf_load(path, &c, &err), -1);
	cr_assert_str_eq(err.key, "shared_memory.max_api_keys");
	cr_assert(err.line == 2 && strstr(err.what, "write 2 or more") != NULL, "%s", err.what);
}

/* The same text with other rows is a live change, each row by its name. */
Test(conf_client_keys, what_a_reload_sees)
{
	struct conf *old = load("- {name: a, sha256: " A "}\n- {name: b, sha256: " B "}\n");
	struct conf *next =
		load("- {name: c, sha256: " A "}\n- {name: b, sha256: " B ", rate: 5}\n");
	struct conf_error err;
	char *text;
	size_t n;
	FILE *out = open_memstream(&text, &n);

	cr_assert_not_null(out);
	cr_assert_eq(conf_changes(old, next, out).live, 3);
	(void)fclose(out);
	cr_assert_str_eq(text, "api_keys_file[c]: added (live)\napi_keys_file[b]: changed (live)\n"
			       "api_keys_file[a]: removed (live)\n");
	cr_assert_eq(conf_diff(old, next, NULL, NULL, &err), CONF_LIVE);
	free(text);
	conf_free(&next);
	next = load("- {name: a, sha256: " A "}\n- {name: b, sha256: " B "}\n");
	cr_assert_eq(conf_diff(old, next, NULL, NULL, &err), 0);
	conf_free(&next);
	conf_free(&old);
}

Test(conf_client_keys, dates)
{
	static const struct {
		const char *text;
		uint64_t s;
	} good[] = {{"1970-01-01", 0}, {"2024-02-29", 1709164800},
		{"2027-01-31T12:00:00Z", 1801396800}, {"2027-01-31t12:00:00.25+01:00", 1801393200},
		{"2027-01-31 12:00:00-00:30", 1801398600}};
	static const char *const bad[] = {"", "2027", "2027-1-31", "2027-13-01", "2023-02-29",
		"2027-01-31T", "2027-01-31T12:00:00", "2027-01-31T24:00:00Z",
		"2027-01-31T12:00:00Zx", "1969-12-31", "2027-01-31T12:00:00+1:00", "2027-01-31x"};
	uint64_t s;

	for (size_t i = 0; i < NELEMS(good); i++) {
		cr_expect(conf_date_parse(good[i].text, &s), "%s", good[i].text);
		cr_expect_eq(s, good[i].s, "%s: %llu", good[i].text, (unsigned long long)s);
	}
	for (size_t i = 0; i < NELEMS(bad); i++)
		cr_expect(!conf_date_parse(bad[i], &s), "%s", bad[i]);
}

/* Each with its file; one name and one key may be in both. */
Test(conf_client_keys, operators_have_a_file_of_their_own)
{
	struct conf *c, *next;
	struct conf_error err;
	char text[600];

	put(path,
		"admin: {listen: [\":1\"], api_keys_file: keys.yaml}\napi_keys_file: keys.yaml\n"
		"pools:\n- {name: a, connector: nixl, prefill: [{url: http://p}], decode: [{url: http://d}]}\n");
	c = load("- {name: grafana, sha256: " A ", expires: 2027-01-31}\n");
	cr_assert_eq(c->napi_keys, 2);
	cr_assert(c->api_keys[0].door == DOOR_CLIENTS && c->api_keys[1].door == DOOR_OPERATORS);
	cr_assert_eq(c->api_keys[1].terms.expires_s, 1801353600);
	next = load("- {name: grafana, sha256: " B ", expires: 2027-01-31}\n");
	cr_assert_eq(conf_diff(c, next, NULL, NULL, &err), CONF_LIVE);
	conf_free(&c);
	conf_free(&next);
	put(keys_path, "- {name: grafana, sha256: " A ", models: [m]}\n");
	put(path,
		"admin: {listen: [\":1\"], api_keys_file: keys.yaml}\n"
		"pools:\n- {name: a, connector: nixl, prefill: [{url: http://p}], decode: [{url: http://d}]}\n");
	cr_assert_eq(conf_load(path, &c, &err), -1);
	cr_assert_not_null(
		strstr(conf_error_text(&err, text, sizeof(text)), "[0].models: unknown key here"),
		"%s", text);
	put(keys_path, "[]\n");
	put(path,
		"admin: {api_keys_file: keys.yaml}\n"
		"pools:\n- {name: a, connector: nixl, prefill: [{url: http://p}], decode: [{url: http://d}]}\n");
	cr_assert_eq(conf_load(path, &c, &err), -1);
	cr_assert_not_null(
		strstr(conf_error_text(&err, text, sizeof(text)), "without admin.listen"), "%s",
		text);
}
