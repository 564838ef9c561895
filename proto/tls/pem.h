/* For both sides of TLS: the modes of OpenSSL's contexts, PEM text into them, and what is wrong with it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct ssl_ctx_st;
struct x509_st;

/* What a context does whichever side it is of; the groups are those of Mozilla's intermediate profile. */
void tls_set_modes(struct ssl_ctx_st *ctx);

/* Which key of the configuration is at fault; `at`: the entry of tls.certificates. */
enum tls_part { TLS_PART_CERT, TLS_PART_KEY, TLS_PART_CA, TLS_PART_CIPHERS };
struct tls_fault {
	enum tls_part part;
	size_t at;
	char text[200]; /* never a byte of a file */
};

/* Write the fault, the second one with OpenSSL's own reason.  Always -1. */
int tls_fail(struct tls_fault *fault, enum tls_part part, size_t at, const char *text);
int tls_fail_why(struct tls_fault *fault, enum tls_part part, size_t at, const char *text);

/* These return 0, or -1 with *fault.  The first certificate of a text is the own one, the others are its chain. */
int tls_use_cert(struct ssl_ctx_st *ctx, const char *pem, size_t at, struct tls_fault *fault);
int tls_use_key(struct ssl_ctx_st *ctx, const char *pem, size_t at, struct tls_fault *fault);
/* Whether the peer gets the names of the authorities: a server asks for a certificate of them. */
enum tls_named { TLS_UNNAMED, TLS_NAMED };
/* Authorities, and lists of revoked certificates: with one list each issuer needs one. */
int tls_use_authorities(
	struct ssl_ctx_st *ctx, const char *pem, enum tls_named named, struct tls_fault *fault);

/* From when to when a certificate is valid, as Unix time. */
struct tls_validity {
	int64_t from, until;
};
struct tls_validity tls_validity_of(const struct x509_st *cert);
