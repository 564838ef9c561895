#include "master/config/conf_engine_tls.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "master/config/conf_endpoints.h"
#include "master/config/conf_tls.h"
#include "proto/http/http.h"
#include "proto/tls/client.h"
#include "shm/base/mem.h"
#include "shm/base/sip.h"

/* Where Debian's package ca-certificates has the authorities of the system. */
#define SYSTEM_CA "/etc/ssl/certs/ca-certificates.crt"

void
conf_engine_tls_lines(struct conf_pool *p, const int *lines)
{
	p->tls.ca_line = conf_line_of(p, lines, "tls.ca");
	p->tls.cert_line = conf_line_of(p, lines, "tls.cert");
	p->tls.key_line = conf_line_of(p, lines, "tls.key");
}

static bool
is_wanted(const struct conf_pool *p)
{
	const struct conf_engine_tls *t = &p->tls;

	if (t->ca != NULL || t->cert != NULL || t->key != NULL || t->server_name != NULL ||
		t->verify == 0)
		return true;
	for (size_t i = 0; i < p->nendpoints; i++)
		if (http_url_is_tls(p->endpoints[i].url))
			return true;
	for (size_t i = 0; i < p->ndns; i++)
		if (p->dns[i].scheme == SCHEME_HTTPS)
			return true;
	return false;
}

/* --- files ------------------------------------------------------------------------------------ */

static const char *
ca_file(const struct conf_engine_tls *t)
{
	return t->ca != NULL ? t->ca : SYSTEM_CA;
}

static char *
key_of(const struct conf_read *r, const struct conf_pool *p, const char *member)
{
	return mem_printf("pools[%zu].tls.%s", (size_t)(p - r->conf->pools), member);
}

static int
read_file(struct conf_read *r, const struct conf_pool *p, const char *member, const char *name,
	int line, char **ret)
{
	char *key = key_of(r, p, member);

	*ret = conf_read_pem(r, name, line, key);
	free(key);
	return *ret != NULL ? 0 : -1;
}

static int
read_files(struct conf_read *r, struct conf_pool *p)
{
	struct conf_engine_tls *t = &p->tls;

	if (t->verify != 0 && read_file(r, p, "ca", ca_file(t), t->ca_line, &t->ca_pem) != 0)
		return -1;
	if (t->cert != NULL &&
		(read_file(r, p, "cert", t->cert, t->cert_line, &t->cert_pem) != 0 ||
			read_file(r, p, "key", t->key, t->key_line, &t->key_pem) != 0))
		return -1;
	return 0;
}

/* The same text is read again, and its files do not count: they are as they were. */
static bool
take_before(const struct conf_read *r, struct conf_pool *p)
{
	const struct conf_pool *was = conf_pool_before(r, p);

	if (was == NULL || r->conf->tls.watch != 0 || was->tls.client == NULL)
		return false;
	p->tls.ca_pem = mem_strdup(was->tls.ca_pem);
	p->tls.cert_pem = mem_strdup(was->tls.cert_pem);
	p->tls.key_pem = mem_strdup(was->tls.key_pem);
	return true;
}

/* --- checks ----------------------------------------------------------------------------------- */

static int
fail_fault(struct conf_read *r, const struct conf_pool *p, const struct tls_fault *f)
{
	const struct conf_engine_tls *t = &p->tls;
	static const char *const members[] = {
		[TLS_PART_CERT] = "cert", [TLS_PART_KEY] = "key", [TLS_PART_CA] = "ca"};
	const char *const file[] = {
		[TLS_PART_CERT] = t->cert, [TLS_PART_KEY] = t->key, [TLS_PART_CA] = ca_file(t)};
	const int line[] = {[TLS_PART_CERT] = t->cert_line,
		[TLS_PART_KEY] = t->key_line,
		[TLS_PART_CA] = t->ca_line};
	char *key = key_of(r, p, members[f->part]);

	(void)conf_enter(r, "%s", key);
	(void)conf_fail(r, line[f->part], "%.120s %s", file[f->part], f->text);
	free(key);
	return -1;
}

/* The texts may be those in force: what expires while it serves is no reason to refuse something else. */
static int
check_dates(struct conf_read *r, struct conf_pool *p)
{
	struct conf_engine_tls *t = &p->tls;
	const struct conf_pool *was = conf_pool_before(r, p);
	const struct conf_engine_tls *before = was != NULL ? &was->tls : NULL;
	char *key = key_of(r, p, "cert");
	int rc = 0;

	if (t->cert_pem != NULL) {
		struct tls_validity v = tls_client_validity(t->client);

		t->cert_until = v.until;
		if (before == NULL || !mem_text_equal(before->cert_pem, t->cert_pem))
			rc = conf_check_dates(r, t->cert_line, key, t->cert, v);
	}
	free(key);
	if (rc != 0 || t->ca == NULL || t->ca_pem == NULL)
		return rc;
	t->ca_until = tls_client_ca_until(t->client, (int64_t)time(NULL));
	if (t->ca_until != 0 || (before != NULL && mem_text_equal(before->ca_pem, t->ca_pem)))
		return 0;
	return fail_fault(r, p,
		&(struct tls_fault){
			.part = TLS_PART_CA, .text = "holds no authority that is valid now"});
}

/* The one context for equal texts: a system has many authorities. */
static const struct tls_client *
of_earlier_pool(const struct conf_read *r, const struct conf_pool *p)
{
	for (const struct conf_pool *q = r->conf->pools; q < p; q++)
		if (q->tls.client != NULL && q->tls.verify == p->tls.verify &&
			mem_text_equal(q->tls.ca_pem, p->tls.ca_pem) &&
			mem_text_equal(q->tls.cert_pem, p->tls.cert_pem) &&
			mem_text_equal(q->tls.key_pem, p->tls.key_pem))
			return q->tls.client;
	return NULL;
}

static void
add_text(struct sip *s, const char *text)
{
	const size_t n = text != NULL ? strlen(text) : 0;

	sip_add(s, &n, sizeof(n));
	sip_add(s, text, n);
}

/* Not of the key: another one has another certificate.  The hash has no secret: it only tells keys apart. */
static uint64_t
id_of(const struct conf_engine_tls *t)
{
	static const uint64_t seed[2] = {0, 0};
	struct sip s;
	uint64_t id;

	sip_begin(&s, seed);
	sip_add(&s, &t->verify, sizeof(t->verify));
	add_text(&s, t->server_name);
	add_text(&s, t->ca_pem);
	add_text(&s, t->cert_pem);
	id = sip_end(&s);
	return id != 0 ? id : 1;
}

static int
make_client(struct conf_read *r, struct conf_pool *p)
{
	const struct tls_client *like = of_earlier_pool(r, p);
	struct tls_fault fault;

	if (like != NULL)
		p->tls.client = tls_client_like(like, &p->tls);
	else if (tls_client_new(&p->tls, &p->tls.client, &fault) != 0)
		return fail_fault(r, p, &fault);
	p->tls.id = id_of(&p->tls);
	return check_dates(r, p);
}

static int
finish_pool(struct conf_read *r, struct conf_pool *p)
{
	struct conf_engine_tls *t = &p->tls;
	const char *missing = t->cert == NULL ? "cert" : "key";

	if ((t->cert == NULL) != (t->key == NULL)) {
		(void)conf_enter(r, "pools[%zu].tls.%s", (size_t)(p - r->conf->pools), missing);
		return conf_fail(r, t->cert == NULL ? t->key_line : t->cert_line,
			"a certificate and its key need each other: %s is missing", missing);
	}
	if (!is_wanted(p) || r->engines != NULL) /* the files are on the hosts of the routers */
		return 0;
	if (!take_before(r, p) && read_files(r, p) != 0)
		return -1;
	return make_client(r, p);
}

int
conf_engine_tls_finish(struct conf_read *r)
{
	for (size_t i = 0; i < r->conf->npools; i++)
		if (finish_pool(r, &r->conf->pools[i]) != 0)
			return -1;
	return 0;
}

void
conf_engine_tls_notes(
	const struct conf *conf, const struct conf *before, conf_note_fn *note, void *arg)
{
	for (size_t i = 0; i < conf->npools; i++) {
		const struct conf_pool *p = &conf->pools[i],
				       *was = before != NULL ? conf_pool_named(before, p->name)
							     : NULL;

		if (p->tls.verify == 0 && (was == NULL || was->tls.verify != 0))
			note(arg, p->name, "tls.verify is false: another host may be its engine");
	}
}

/* --- comparing, freeing ----------------------------------------------------------------------- */

bool
conf_engine_tls_texts_equal(const struct conf_engine_tls *a, const struct conf_engine_tls *b)
{
	return (a->client != NULL) == (b->client != NULL) && mem_text_equal(a->ca_pem, b->ca_pem) &&
	       mem_text_equal(a->cert_pem, b->cert_pem) && mem_text_equal(a->key_pem, b->key_pem);
}

static bool
equal(const struct conf_engine_tls *a, const struct conf_engine_tls *b)
{
	return a->verify == b->verify && mem_text_equal(a->server_name, b->server_name) &&
	       conf_engine_tls_texts_equal(a, b);
}

bool
conf_engine_tls_equal(const struct conf *a, const struct conf *b)
{
	for (size_t i = 0; i < b->npools; i++) {
		const struct conf_pool *next = &b->pools[i], *was = conf_pool_named(a, next->name);

		if (was != NULL ? !equal(&was->tls, &next->tls) : next->tls.client != NULL)
			return false;
	}
	return true;
}

void
conf_engine_tls_free(struct conf_engine_tls *t)
{
	free(t->ca_pem);
	free(t->cert_pem);
	mem_free_secret(t->key_pem);
	tls_client_free(&t->client);
}
