/* Certificates for tests, made on the spot. */
#pragma once
#include <criterion/criterion.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>

struct pem {
	char cert[4096], key[1024];
	EVP_PKEY *pkey;
	X509 *x509;
};

static inline void
pem_text(BIO *bio, char *out, size_t size)
{
	int n = BIO_read(bio, out, (int)size - 1);

	cr_assert(n > 0);
	out[n] = '\0';
	BIO_free(bio);
}

/* For `name`, valid from a day ago until `days` from now, signed by `by` (NULL: by itself). */
static inline struct pem
pem_make(const char *name, int days, const struct pem *by)
{
	struct pem p = {.pkey = EVP_EC_gen("P-256"), .x509 = X509_new()};
	X509_NAME *subject = X509_get_subject_name(p.x509);
	static long serial;
	char alt[128];
	X509_EXTENSION *ext;
	BIO *bio;

	X509_set_version(p.x509, 2);
	ASN1_INTEGER_set(X509_get_serialNumber(p.x509), ++serial);
	X509_gmtime_adj(X509_getm_notBefore(p.x509), -86400L * (days < 0 ? 1 - days : 1));
	X509_gmtime_adj(X509_getm_notAfter(p.x509), 86400L * days);
	X509_set_pubkey(p.x509, p.pkey);
	X509_NAME_add_entry_by_txt(
		subject, "CN", MBSTRING_ASC, (const unsigned char *)name, -1, -1, 0);
	X509_set_issuer_name(p.x509, by != NULL ? X509_get_subject_name(by->x509) : subject);
	ext = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints,
		(char *)(uintptr_t)(by == NULL ? "CA:TRUE" : "CA:FALSE"));
	X509_add_ext(p.x509, ext, -1);
	X509_EXTENSION_free(ext);
	(void)snprintf(alt, sizeof(alt), "DNS:%s", name);
	ext = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, alt);
	X509_add_ext(p.x509, ext, -1);
	X509_EXTENSION_free(ext);
	cr_assert(X509_sign(p.x509, by != NULL ? by->pkey : p.pkey, EVP_sha256()) > 0);
	bio = BIO_new(BIO_s_mem());
	PEM_write_bio_X509(bio, p.x509);
	pem_text(bio, p.cert, sizeof(p.cert));
	bio = BIO_new(BIO_s_mem());
	PEM_write_bio_PrivateKey(bio, p.pkey, NULL, NULL, 0, NULL, NULL);
	pem_text(bio, p.key, sizeof(p.key));
	return p;
}

static inline void
pem_free(struct pem *p)
{
	EVP_PKEY_free(p->pkey);
	X509_free(p->x509);
}
