/* The keys `tls` of a pool: what each wrong file is told, which pools share a context, what a reload makes of changes. */
#include <criterion/criterion.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/tls/client.h"
#include "tests/unit/master/config_files.h"
#include "tests/unit/pem.h"

#define HEAD "pools:\n- name: x\n  connector: nixl\n"
#define ENGINES "  prefill: [{url: https://p}]\n  decode: [{url: http://d}]\n"
#define PLAIN "  prefill: [{url: http://p}]\n  decode: [{url: http://d}]\n"
#define TLS "  tls:\n    ca: ca.crt\n"

static struct pem ca, own;
static const char *const names[] = {
	"main.yaml", "ca.crt", "own.crt", "own.key", "old.crt", "old.key", "two.crt", "bad"};

static void
setup(void)
{
	struct pem old = pem_make("old.test", -1, NULL);
	char two[2 * sizeof(ca.cert)];

	folder_enter();
	ca = pem_make("ca.test", 9, NULL);
	own = pem_make("own.test", 20, &ca);
	put("ca.crt", ca.cert);
	put("own.crt", own.cert);
	put("own.key", own.key);
	put("old.crt", old.cert);
	put("old.key", old.key);
	(void)snprintf(two, sizeof(two), "%s%s", old.cert, ca.cert);
	put("two.crt", two);
	put("bad", "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n");
	pem_free(&old);
}

static void
teardown(void)
{
	folder_remove(names, NELEMS(names));
	pem_free(&ca);
	pem_free(&own);
}

TestSuite(conf_engine_tls, .init = setup, .fini = teardown);

static void
count_note(void *arg, const char *what, const char *why)
{
	cr_expect(strcmp(what, "ca.crt") == 0 || strcmp(what, "x") == 0, "%s: %s", what, why);
	++*(unsigned *)arg;
}

Test(conf_engine_tls, its_keys_and_their_files)
{
	struct conf *c = load(
		HEAD TLS "    cert: own.crt\n    key: own.key\n    server_name: e.test\n" ENGINES);
	const struct conf_engine_tls *t = &c->pools[0].tls;
	unsigned notes = 0;

	cr_expect_str_eq(t->ca_pem, ca.cert);
	cr_expect_str_eq(t->cert_pem, own.cert);
	cr_expect_str_eq(t->key_pem, own.key);
	cr_expect_str_eq(t->server_name, "e.test");
	cr_expect_eq(t->verify, 1);
	cr_expect_not_null(t->client);
	cr_expect_lt(llabs(t->ca_until - time(NULL) - 9 * 86400), 60);
	cr_expect_lt(llabs(t->cert_until - time(NULL) - 20 * 86400), 60);
	conf_tls_notes(c, count_note, &notes);
	cr_expect_eq(notes, 1, "the authority ends soon");
	conf_engine_tls_notes(c, NULL, count_note, &notes);
	cr_expect_eq(notes, 1);
	conf_wipe_certificates(c);
	cr_expect_eq(t->key_pem[0], '\0');
	conf_free(&c);
}

Test(conf_engine_tls, a_pool_without_https_reads_nothing)
{
	struct conf *c = load(HEAD PLAIN);

	cr_expect_null(c->pools[0].tls.client);
	cr_expect_null(c->pools[0].tls.ca_pem);
	conf_free(&c);
}

Test(conf_engine_tls, what_is_not_verified_is_said_once)
{
	struct conf *c = load(HEAD "  tls: {verify: false}\n" ENGINES), *d;
	unsigned notes = 0;

	cr_expect_null(c->pools[0].tls.ca_pem, "no authorities are needed");
	cr_expect_not_null(c->pools[0].tls.client);
	conf_engine_tls_notes(c, NULL, count_note, &notes);
	cr_expect_eq(notes, 1);
	conf_engine_tls_notes(c, c, count_note, &notes);
	cr_expect_eq(notes, 1, "it was so before");
	d = load(HEAD TLS ENGINES);
	conf_engine_tls_notes(c, d, count_note, &notes);
	cr_expect_eq(notes, 2);
	conf_free(&c);
	conf_free(&d);
}

/* A file of several authorities is of use while one of them is. */
Test(conf_engine_tls, the_first_end_of_a_valid_authority_counts)
{
	struct conf *c = load(HEAD "  tls: {ca: two.crt}\n" ENGINES);

	cr_expect_lt(llabs(c->pools[0].tls.ca_until - time(NULL) - 9 * 86400), 60);
	conf_free(&c);
}

static const struct wrong_text wrong[] = {
	{HEAD "  tls:\n    ca: none\n" ENGINES, 5, "pools[0].tls.ca", "No such file"},
	{HEAD "  tls:\n    ca: none\n" PLAIN, 5, "pools[0].tls.ca", "No such file"},
	{HEAD "  tls:\n    ca: bad\n" ENGINES, 5, "pools[0].tls.ca", "bad is not valid PEM"},
	{HEAD "  tls:\n    ca: own.key\n" ENGINES, 5, "pools[0].tls.ca", "holds no certificate"},
	{HEAD "  tls:\n    ca: old.crt\n" ENGINES, 5, "pools[0].tls.ca",
		"old.crt holds no authority that is valid now"},
	{HEAD TLS "    cert: own.crt\n" ENGINES, 6, "pools[0].tls.key", "is missing"},
	{HEAD TLS "    key: own.key\n" ENGINES, 6, "pools[0].tls.cert", "is missing"},
	{HEAD TLS "    cert: none\n    key: own.key\n" ENGINES, 6, "pools[0].tls.cert", "No such"},
	{HEAD TLS "    cert: own.crt\n    key: own.crt\n" ENGINES, 7, "pools[0].tls.key",
		"holds no private key"},
	{HEAD TLS "    cert: own.crt\n    key: old.key\n" ENGINES, 7, "pools[0].tls.key",
		"old.key does not belong to the certificate"},
	{HEAD TLS "    cert: old.crt\n    key: old.key\n" ENGINES, 6, "pools[0].tls.cert",
		"old.crt expired 20"},
	{HEAD TLS "    server_name: \"a b\"\n" ENGINES, 6, "pools[0].tls.server_name",
		"not a host name"},
	{HEAD TLS "    verify: maybe\n" ENGINES, 6, "pools[0].tls.verify", "true"},
};

Test(conf_engine_tls, every_mistake_is_named_with_its_line)
{
	expect_refused(wrong, NELEMS(wrong));
}

static int
classes(const char *old_text, const char *text, char **ret_changes)
{
	struct conf *old = load(old_text);
	int got;

	put("ca.crt", strstr(text, "other") != NULL ? own.cert : ca.cert);
	got = changes_to(old, text, ret_changes);
	conf_free(&old);
	put("ca.crt", ca.cert);
	return got;
}

Test(conf_engine_tls, what_workers_inherit_is_a_new_generation)
{
	static const struct {
		const char *old, *next;
		int classes;
		const char *changes; /* how they begin */
	} cases[] = {
		{HEAD TLS ENGINES, HEAD TLS ENGINES, 0, ""},
		{HEAD TLS ENGINES, HEAD TLS "#other\n" ENGINES, CONF_GENERATION,
			"pools[x].tls: other files, or one that has changed (new generation)\n"},
		{HEAD TLS ENGINES, HEAD TLS "    server_name: e\n" ENGINES,
			CONF_LIVE | CONF_GENERATION, "pools[x].tls.server_name: "},
		{HEAD PLAIN, HEAD TLS ENGINES, CONF_LIVE | CONF_GENERATION, "pools[x].tls.ca: "},
		{HEAD TLS PLAIN, HEAD TLS ENGINES, CONF_LIVE, "pools[x].prefill[http://p]: "},
		{HEAD TLS ENGINES, HEAD PLAIN, CONF_LIVE | CONF_GENERATION, "pools[x].tls.ca: "},
	};
	char *changes;

	for (size_t i = 0; i < NELEMS(cases); i++) {
		cr_expect_eq(classes(cases[i].old, cases[i].next, &changes), cases[i].classes,
			"%s%s", cases[i].old, cases[i].next);
		cr_expect(strncmp(changes, cases[i].changes, strlen(cases[i].changes)) == 0 &&
				  (cases[i].changes[0] != '\0' || changes[0] == '\0'),
			"%s", changes);
		cr_expect_null(strstr(changes, "-----"));
		free(changes);
	}
}

Test(conf_engine_tls, files_count_without_sighup_where_they_are_watched)
{
	for (int watch = 0; watch < 2; watch++) {
		struct conf *c = load(watch ? "tls: {watch: true}\n" HEAD TLS ENGINES
					    : HEAD TLS ENGINES),
			    *next;
		char *paths[9];

		cr_assert_leq(conf_tls_paths_max(c), NELEMS(paths));
		cr_assert_eq(conf_tls_paths(c, paths), 1);
		cr_expect_str_eq(paths[0], "ca.crt");
		free(paths[0]);
		put("ca.crt", own.cert);
		next = again(c);
		cr_expect_str_eq(next->pools[0].tls.ca_pem, watch ? own.cert : ca.cert);
		conf_free(&next);
		conf_free(&c);
		put("ca.crt", ca.cert);
	}
}

Test(conf_engine_tls, equal_pools_have_the_authorities_once)
{
	struct conf *c = load(HEAD TLS ENGINES
		"- {name: y, models: [y], connector: nixl, tls: {ca: ca.crt, server_name: s},\n"
		"   prefill: [{url: https://p2}], decode: [{url: https://d2}]}\n"
		"- {name: z, models: [z], connector: nixl, tls: {ca: ca.crt, cert: own.crt, key: own.key},\n"
		"   prefill: [{url: https://p3}], decode: [{url: https://d3}]}\n");
	struct tls_memory none = {.session = NULL};
	struct ssl_st *s = tls_client_session(c->pools[0].tls.client, 0, "h", &none);

	cr_assert_not_null(s);
	cr_expect(tls_client_is_of(c->pools[1].tls.client, s));
	cr_expect(!tls_client_is_of(c->pools[2].tls.client, s));
	SSL_free(s);
	conf_free(&c);
}
