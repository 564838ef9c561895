#include "master/config/conf_tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "master/config/conf_api_key.h"
#include "proto/tls/context.h"
#include "shm/base/mem.h"

#define DAY_S (24 * 3600)
#define EXPIRES_SOON_S (14 * DAY_S)
#define PEM_MAX ((size_t)CONF_MIB) /* the authorities of a whole system are a quarter of it */

int
conf_certificates_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	struct conf_tls *t = &((struct conf *)base)->tls;
	const size_t cert_row = (size_t)(conf_key_row(&conf_certificate_keys, "cert") -
					 conf_certificate_keys.key),
		     key_row = (size_t)(conf_key_row(&conf_certificate_keys, "key") -
					conf_certificate_keys.key);
	int lines[CONF_ENTRY_KEYS];
	yaml_node_t *item;
	size_t n, mark;

	if (conf_is_list(r, k, list, &n) != 0)
		return -1;
	t->certificates = mem_array(n + 1, sizeof(*t->certificates));
	for (size_t i = 0; (item = conf_item(r, list, i)) != NULL; i++) {
		struct conf_certificate *c = &t->certificates[t->ncertificates++];

		mark = conf_enter_entry(r, i);
		memset(lines, 0, sizeof(lines));
		if (conf_walk(r, &conf_certificate_keys, c, item, lines) != 0)
			return -1;
		c->cert_line = lines[cert_row];
		c->key_line = lines[key_row];
		conf_leave(r, mark);
	}
	return 0;
}

/* --- files ------------------------------------------------------------------------------------ */

char *
conf_read_pem(struct conf_read *r, const char *name, int line, const char *key)
{
	char *path = conf_beside(r->file, name), *text = mem_zero(PEM_MAX + 1), *kept = NULL;
	const ssize_t n = conf_read_small(path, text, PEM_MAX + 1);

	(void)conf_enter(r, "%s", key);
	if (n < 0)
		(void)conf_fail(r, line, "%.150s cannot be read: %s", path, strerror(errno));
	else if ((size_t)n > PEM_MAX)
		(void)conf_fail(r, line, "%.150s holds more than 1 MiB", path);
	else if (memchr(text, '\0', (size_t)n) != NULL)
		(void)conf_fail(r, line, "%.150s is not text: PEM form is needed", path);
	else
		kept = mem_strndup(text, (size_t)n);
	explicit_bzero(text, n > 0 ? (size_t)n : 0);
	free(text);
	free(path);
	if (kept != NULL)
		conf_leave(r, 0);
	return kept;
}

static char *
entry_key(size_t i, const char *member)
{
	return mem_printf("tls.certificates[%zu].%s", i, member);
}

static int
read_certificate(struct conf_read *r, struct conf_certificate *c, size_t i)
{
	char *cert = entry_key(i, "cert"), *key = entry_key(i, "key");

	c->cert_pem = conf_read_pem(r, c->cert, c->cert_line, cert);
	if (c->cert_pem != NULL)
		c->key_pem = conf_read_pem(r, c->key, c->key_line, key);
	free(cert);
	free(key);
	return c->key_pem != NULL ? 0 : -1;
}

/* The same text is read again, and its files do not count: they are as they were. */
static void
take_before(struct conf_tls *t, const struct conf_tls *was)
{
	for (size_t i = 0; i < t->ncertificates; i++) {
		t->certificates[i].cert_pem = mem_strdup(was->certificates[i].cert_pem);
		t->certificates[i].key_pem = mem_strdup(was->certificates[i].key_pem);
	}
	t->client_ca_pem = mem_strdup(was->client_ca_pem);
}

static int
read_files(struct conf_read *r, int ca_line)
{
	struct conf_tls *t = &r->conf->tls;

	for (size_t i = 0; i < t->ncertificates; i++)
		if (read_certificate(r, &t->certificates[i], i) != 0)
			return -1;
	if (t->client_ca == NULL)
		return 0;
	t->client_ca_pem = conf_read_pem(r, t->client_ca, ca_line, "tls.client_ca");
	return t->client_ca_pem != NULL ? 0 : -1;
}

/* --- checks ----------------------------------------------------------------------------------- */

static int
line_of(const int *lines, const char *path)
{
	return lines[conf_key_row(&conf_root_keys, path) - conf_root_keys.key];
}

static int
fail_fault(struct conf_read *r, const struct tls_fault *f, const int *lines)
{
	const struct conf_certificate *c = &r->conf->tls.certificates[f->at];
	char *key = entry_key(f->at, f->part == TLS_PART_CERT ? "cert" : "key");
	const char *const name[] = {[TLS_PART_CERT] = key,
		[TLS_PART_KEY] = key,
		[TLS_PART_CA] = "tls.client_ca",
		[TLS_PART_CIPHERS] = "tls.ciphers"};
	const char *const file[] = {[TLS_PART_CERT] = c->cert,
		[TLS_PART_KEY] = c->key,
		[TLS_PART_CA] = r->conf->tls.client_ca,
		[TLS_PART_CIPHERS] = ""};
	int line = f->part == TLS_PART_CERT ? c->cert_line : c->key_line;

	if (f->part >= TLS_PART_CA)
		line = line_of(lines, name[f->part]);
	(void)conf_enter(r, "%s", name[f->part]);
	(void)conf_fail(r, line, "%.120s%s%s", file[f->part],
		f->part == TLS_PART_CIPHERS ? "" : " ", f->text);
	free(key);
	return -1;
}

static int
fail_date(struct conf_read *r, int line, const char *key, const char *file, const char *what,
	int64_t at)
{
	const time_t t = (time_t)at;
	char day[32] = "";
	struct tm tm;

	if (gmtime_r(&t, &tm) != NULL)
		(void)strftime(day, sizeof(day), "%Y-%m-%d %H:%M UTC", &tm);
	(void)conf_enter(r, "%s", key);
	return conf_fail(r, line, "%.120s %s %s", file, what, day);
}

int
conf_check_dates(
	struct conf_read *r, int line, const char *key, const char *file, struct tls_validity v)
{
	const int64_t now = (int64_t)time(NULL);

	if (v.until <= now)
		return fail_date(r, line, key, file, "expired", v.until);
	return v.from > now ? fail_date(r, line, key, file, "is not valid before", v.from) : 0;
}

/* One that was in force stays: the reading that finds it expired may be about something else. */
static bool
was_in_force(const struct conf_read *r, size_t i)
{
	return r->was != NULL && mem_text_equal(r->conf->tls.certificates[i].cert_pem,
					 r->was->tls.certificates[i].cert_pem);
}

static int
check_dates(struct conf_read *r, const struct tls_context *context)
{
	struct conf_tls *t = &r->conf->tls;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < t->ncertificates; i++) {
		struct tls_validity v = tls_context_validity(context, i);
		char *key = entry_key(i, "cert");

		t->certificates[i].until = v.until;
		if (!was_in_force(r, i))
			rc = conf_check_dates(
				r, t->certificates[i].cert_line, key, t->certificates[i].cert, v);
		free(key);
	}
	return rc;
}

int
conf_tls_finish(struct conf_read *r, const int *lines)
{
	struct conf_tls *t = &r->conf->tls;
	struct tls_context *context = NULL;
	struct tls_fault fault;
	int rc;

	if (t->ncertificates == 0) {
		if (t->nlisten == 0)
			return 0;
		(void)conf_enter(r, "tls.listen");
		return conf_fail(r, line_of(lines, "tls.listen"), "needs tls.certificates");
	}
	if (r->engines != NULL)
		return 0; /* the files are on the hosts of the routers */
	if (r->was != NULL && t->watch == 0)
		take_before(t, &r->was->tls);
	else if (read_files(r, line_of(lines, "tls.client_ca")) != 0)
		return -1;
	if (tls_context_new(t, &context, &fault) != 0)
		return fail_fault(r, &fault, lines);
	rc = check_dates(r, context);
	tls_context_free(&context);
	return rc;
}

static void
note_end(const char *file, int64_t until, conf_note_fn *note, void *arg)
{
	const int64_t left = until - (int64_t)time(NULL);
	char why[64];

	if (file == NULL || left >= EXPIRES_SOON_S)
		return;
	(void)snprintf(
		why, sizeof(why), "this certificate expires in %d days", (int)(left / DAY_S));
	note(arg, file, why);
}

void
conf_tls_notes(const struct conf *conf, conf_note_fn *note, void *arg)
{
	for (size_t i = 0; i < conf->tls.ncertificates; i++)
		note_end(
			conf->tls.certificates[i].cert, conf->tls.certificates[i].until, note, arg);
	for (size_t i = 0; i < conf->npools; i++) {
		const struct conf_engine_tls *t = &conf->pools[i].tls;

		if (t->ca_until != 0)
			note_end(t->ca, t->ca_until, note, arg);
		if (t->cert_until != 0)
			note_end(t->cert, t->cert_until, note, arg);
	}
}

/* The i-th of the names, which may be missing: NULL if there are no more. */
static char *const *
name_at(const struct conf *conf, size_t i)
{
	const struct conf_tls *t = &conf->tls;
	const struct conf_pool *p;

	if (i < 2 * t->ncertificates)
		return i % 2 == 0 ? &t->certificates[i / 2].cert : &t->certificates[i / 2].key;
	i -= 2 * t->ncertificates;
	if (i == 0)
		return &t->client_ca;
	i--;
	if (i >= 3 * conf->npools)
		return NULL;
	p = &conf->pools[i / 3];
	return i % 3 == 0 ? &p->tls.ca : i % 3 == 1 ? &p->tls.cert : &p->tls.key;
}

size_t
conf_tls_paths(const struct conf *conf, char **ret)
{
	char *const *name;
	size_t n = 0;

	for (size_t i = 0; (name = name_at(conf, i)) != NULL; i++)
		if (*name != NULL)
			ret[n++] = conf_beside(conf->path, *name);
	return n;
}

size_t
conf_tls_paths_max(const struct conf *conf)
{
	return 2 * conf->tls.ncertificates + 1 + 3 * conf->npools;
}

/* --- comparing and freeing -------------------------------------------------------------------- */

bool
conf_tls_names_equal(const struct conf_tls *a, const struct conf_tls *b)
{
	if (a->ncertificates != b->ncertificates)
		return false;
	for (size_t i = 0; i < a->ncertificates; i++)
		if (strcmp(a->certificates[i].cert, b->certificates[i].cert) != 0 ||
			strcmp(a->certificates[i].key, b->certificates[i].key) != 0)
			return false;
	return true;
}

bool
conf_tls_files_equal(const struct conf_tls *a, const struct conf_tls *b)
{
	if (a->ncertificates != b->ncertificates)
		return false;
	for (size_t i = 0; i < a->ncertificates; i++)
		if (!mem_text_equal(a->certificates[i].cert_pem, b->certificates[i].cert_pem) ||
			!mem_text_equal(a->certificates[i].key_pem, b->certificates[i].key_pem))
			return false;
	/* another name is a difference of that key */
	return !mem_text_equal(a->client_ca, b->client_ca) ||
	       mem_text_equal(a->client_ca_pem, b->client_ca_pem);
}

void
conf_tls_free(struct conf_tls *t)
{
	for (size_t i = 0; i < t->nlisten; i++)
		free(t->listen[i].text);
	free(t->listen);
	for (size_t i = 0; i < t->ncertificates; i++) {
		mem_free_secret(t->certificates[i].cert_pem);
		mem_free_secret(t->certificates[i].key_pem);
		conf_values_free(&conf_certificate_keys, &t->certificates[i]);
	}
	free(t->certificates);
	free(t->client_ca_pem);
}
