/*
 * The keys of `tls` as OpenSSL's contexts: one for each certificate, chosen by the name that the client asks for (SNI).
 * The master makes them to check a configuration, each worker makes its own from the same bytes.
 */
#pragma once
#include <stddef.h>

#include "proto/tls/pem.h"

struct conf_tls;
struct ssl_ctx_st;
struct tls_context;

/* Returns 0 with *ret (tls_context_free()), or -1 with *fault.  Expired certificates are no fault here. */
int tls_context_new(const struct conf_tls *conf, struct tls_context **ret, struct tls_fault *fault);
void tls_context_free(struct tls_context **); /* NULL is fine */
/* The context that a session begins with: that of the first certificate.  It takes ticket callbacks. */
struct ssl_ctx_st *tls_context_first(const struct tls_context *c);

/* `at`: its index. */
struct tls_validity tls_context_validity(const struct tls_context *c, size_t at);
