/*
 * The keys of `tls` as OpenSSL's contexts: one for each certificate, chosen by the name that the client asks for (SNI).
 * The master makes them to check a configuration, each worker makes its own from the same bytes.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct conf_tls;
struct ssl_ctx_st;
struct tls_context;

/* Which key of the configuration is at fault; `at`: the entry of tls.certificates. */
enum tls_part { TLS_PART_CERT, TLS_PART_KEY, TLS_PART_CLIENT_CA, TLS_PART_CIPHERS };
struct tls_fault {
	enum tls_part part;
	size_t at;
	char text[200]; /* never a byte of a file */
};

/* Returns 0 with *ret (tls_context_free()), or -1 with *fault.  Expired certificates are no fault here. */
int tls_context_new(const struct conf_tls *conf, struct tls_context **ret, struct tls_fault *fault);
void tls_context_free(struct tls_context **); /* NULL is fine */
/* The context that a session begins with: that of the first certificate.  It takes ticket callbacks. */
struct ssl_ctx_st *tls_context_first(const struct tls_context *c);

/* From when to when a certificate is valid, as Unix time; `at`: its index. */
struct tls_validity {
	int64_t from, until;
};
struct tls_validity tls_context_validity(const struct tls_context *c, size_t at);
