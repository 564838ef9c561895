/* The keys of `tls`: what each wrong file is told, what a reload makes of changed files. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/master/config_files.h"
#include "tests/unit/pem.h"

#define POOLS "pools: [{connector: nixl, prefill: [{url: http://p}], decode: [{url: http://d}]}]\n"
#define FILES "  certificates:\n  - cert: a.crt\n    key: a.key\n"
#define TLS "tls:\n  listen: [\":8443\"]\n"

static struct pem a, b;
static const char *const names[] = {
	"main.yaml", "a.crt", "a.key", "b.crt", "b.key", "old.crt", "old.key", "bad", "both"};

static void
setup(void)
{
	struct pem old = pem_make("old.test", -1, NULL);

	folder_enter();
	a = pem_make("a.test", 9, NULL);
	b = pem_make("b.test", 9, NULL);
	put("a.crt", a.cert);
	put("a.key", a.key);
	put("b.crt", b.cert);
	put("b.key", b.key);
	put("old.crt", old.cert);
	put("old.key", old.key);
	put("bad", "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n");
	pem_free(&old);
}

static void
teardown(void)
{
	folder_remove(names, NELEMS(names));
	pem_free(&a);
	pem_free(&b);
}

TestSuite(conf_tls, .init = setup, .fini = teardown);

Test(conf_tls, its_keys_and_their_files)
{
	struct conf *c = load(TLS FILES "  client_ca: b.crt\n  min_version: \"1.3\"\n" POOLS);
	enum listen_list list;

	cr_expect_eq(c->nlisten, 0, "no plain address that nobody asked for");
	cr_assert_not_null(conf_listen_at(c, 0, &list));
	cr_expect(list == LISTEN_TLS && listen_list_door(list) == DOOR_CLIENTS);
	cr_expect_str_eq(c->tls.certificates[0].cert_pem, a.cert);
	cr_expect_str_eq(c->tls.certificates[0].key_pem, a.key);
	cr_expect_str_eq(c->tls.client_ca_pem, b.cert);
	cr_expect_eq(c->tls.min_version, TLS_MIN_1_3);
	cr_expect_lt(llabs(c->tls.certificates[0].until - time(NULL) - 9 * 86400), 60);
	conf_free(&c);
	c = load("listen: [\":80\"]\n" TLS FILES POOLS);
	cr_expect_eq(c->nlisten, 1, "side by side");
	conf_free(&c);
}

static void
count_note(void *arg, const char *file, const char *why)
{
	cr_expect_str_eq(file, "a.crt");
	cr_expect_eq(strncmp(why, "this certificate expires in ", 28), 0);
	++*(unsigned *)arg;
}

Test(conf_tls, a_certificate_that_expires_soon_is_noted)
{
	struct pem later = pem_make("a.test", 15, NULL);
	unsigned notes = 0;
	struct conf *c = load(TLS FILES POOLS);

	conf_tls_notes(c, count_note, &notes);
	cr_expect_eq(notes, 1);
	conf_free(&c);
	put("a.crt", later.cert);
	put("a.key", later.key);
	c = load(TLS FILES POOLS);
	conf_tls_notes(c, count_note, &notes);
	cr_expect_eq(notes, 1);
	conf_free(&c);
	pem_free(&later);
}

static const struct wrong_text wrong[] = {
	{TLS POOLS, 2, "tls.listen", "needs tls.certificates"},
	{TLS "  certificates: [{cert: a.crt}]\n" POOLS, 3, "tls.certificates[0].key", "is missing"},
	{TLS "  certificates:\n  - cert: none\n    key: a.key\n" POOLS, 4,
		"tls.certificates[0].cert", "No such file"},
	{TLS "  certificates:\n  - cert: a.crt\n    key: none\n" POOLS, 5,
		"tls.certificates[0].key", "No such file"},
	{TLS "  certificates:\n  - cert: .\n    key: a.key\n" POOLS, 4, "tls.certificates[0].cert",
		"Is a directory"},
	{TLS "  certificates:\n  - cert: bad\n    key: a.key\n" POOLS, 4,
		"tls.certificates[0].cert", "bad is not valid PEM"},
	{TLS "  certificates:\n  - cert: a.key\n    key: a.key\n" POOLS, 4,
		"tls.certificates[0].cert", "holds no certificate"},
	{TLS "  certificates:\n  - cert: a.crt\n    key: a.crt\n" POOLS, 5,
		"tls.certificates[0].key", "holds no private key"},
	{TLS FILES "  - cert: b.crt\n    key: a.key\n" POOLS, 7, "tls.certificates[1].key",
		"a.key does not belong to the certificate"},
	{TLS "  certificates:\n  - cert: old.crt\n    key: old.key\n" POOLS, 4,
		"tls.certificates[0].cert", "old.crt expired 20"},
	{TLS FILES "  client_ca: a.key\n" POOLS, 6, "tls.client_ca", "holds no certificate"},
	{TLS FILES "  client_ca: none\n" POOLS, 6, "tls.client_ca", "No such file"},
	{TLS FILES "  ciphers: FROBNICATE\n" POOLS, 6, "tls.ciphers", "names no cipher"},
	{TLS FILES "  min_version: \"1.1\"\n" POOLS, 6, "tls.min_version", "1.2, 1.3"},
	{"listen: [\":8443\"]\n" TLS FILES POOLS, 3, "tls.listen[0]", "is there twice"},
};

Test(conf_tls, every_mistake_is_named_with_its_line)
{
	expect_refused(wrong, NELEMS(wrong));
}

Test(conf_tls, other_bytes_in_a_file_are_a_new_generation)
{
	const char *text = TLS FILES "  client_ca: b.crt\n" POOLS;
	struct conf *c = load(text);
	char *changes;

	cr_expect_eq(changes_to(c, text, &changes), 0);
	cr_expect_str_eq(changes, "");
	free(changes);
	put("b.crt", a.cert);
	cr_expect_eq(changes_to(c, text, &changes), CONF_GENERATION);
	cr_expect_str_eq(changes, "tls.certificates: a file of tls has changed (new generation)\n");
	free(changes);
	put("b.crt", b.cert);
	put("a.crt", b.cert);
	put("a.key", b.key);
	cr_expect_eq(changes_to(c, text, &changes), CONF_GENERATION);
	cr_expect_null(strstr(changes, "PRIVATE"));
	free(changes);
	conf_free(&c);
}

Test(conf_tls, files_count_without_sighup_where_they_are_watched)
{
	for (int watch = 0; watch < 2; watch++) {
		struct conf *c = load(watch ? TLS FILES "  watch: true\n" POOLS : TLS FILES POOLS);
		struct conf *next;

		put("a.crt", b.cert);
		put("a.key", b.key);
		next = again(c);
		cr_expect_str_eq(next->tls.certificates[0].key_pem, watch ? b.key : a.key);
		conf_free(&next);
		conf_free(&c);
		put("a.crt", a.cert);
		put("a.key", a.key);
	}
}

Test(conf_tls, its_files_in_the_order_of_the_keys)
{
	struct conf *c = load(TLS FILES "  client_ca: b.crt\n" POOLS);
	const char *const want[] = {"a.crt", "a.key", "b.crt"};
	char *paths[9];

	cr_assert_leq(conf_tls_paths_max(c), NELEMS(paths));
	cr_assert_eq(conf_tls_paths(c, paths), NELEMS(want));
	for (size_t i = 0; i < NELEMS(want); i++) {
		cr_expect_str_eq(paths[i], want[i]);
		free(paths[i]);
	}
	conf_free(&c);
}

Test(conf_tls, it_is_written_as_it_was_read)
{
	struct conf *c = load(TLS FILES "  client_ca: b.crt\n  ciphers: AES128-SHA\n" POOLS), *d;
	struct conf_error err;
	char *text;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	conf_write(c, f);
	(void)fclose(f);
	cr_expect_null(strstr(text, "PRIVATE"));
	d = load(text);
	cr_expect_eq(conf_diff(c, d, NULL, NULL, &err) & ~CONF_GENERATION, 0);
	cr_expect(d->nlisten == 0 && d->tls.nlisten == 1 && d->tls.client_ca[0] == '/');
	cr_expect_str_eq(d->tls.certificates[0].key_pem, a.key);
	free(text);
	conf_free(&c);
	conf_free(&d);
}
