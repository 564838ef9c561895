/*
 * TLS towards engines: the keys `tls` of a pool as a context of OpenSSL, and sessions on it.
 *
 * The master makes the context when it reads a configuration.  Its children inherit the context by fork: they read no
 * file, and share the memory of the authorities.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/tls/pem.h"

struct conf_engine_tls;
struct ssl_ctx_st;
struct ssl_session_st;
struct ssl_st;
struct tls_client;

/*
 * Reads the texts of `conf`.  Returns 0 with *ret (tls_client_free()), or -1 with *fault.  Certificates that have expired
 * are no fault here.
 */
int tls_client_new(
	const struct conf_engine_tls *conf, struct tls_client **ret, struct tls_fault *fault);
/* The same where the texts are those of `like`: the authorities are in memory once. */
struct tls_client *tls_client_like(
	const struct tls_client *like, const struct conf_engine_tls *conf);
/* Returns a further reference, which tls_client_free() gives back. */
struct tls_client *tls_client_ref(struct tls_client *c);
void tls_client_free(struct tls_client **); /* NULL is fine */
/* Gives up the context with its private key, in a process that asks no engine.  Only tls_client_free() may follow. */
void tls_client_wipe(struct tls_client *c);

/* Of the router's own certificate, if there is one. */
struct tls_validity tls_client_validity(const struct tls_client *c);
/* Unix time of the first end of an authority that is valid at `now`; 0: none is valid. */
int64_t tls_client_ca_until(const struct tls_client *c, int64_t now);

/* What is kept of an engine's sessions; zeroed: nothing.  It must outlive the sessions that fill it. */
struct tls_memory {
	/* the latest one that can be resumed, or NULL */
	struct ssl_session_st *session;
	struct ssl_ctx_st
		*of;     /* it is resumed in the same context alone: another one may trust others */
	bool wants_cert; /* fact: the engine has asked for a certificate, and tls.cert names none */
};
void tls_memory_clear(struct tls_memory *m);

/*
 * A session on a connected socket, for SSL_do_handshake().  The engine must have a certificate for `host` (a name or an
 * address), or for tls.server_name in place of that.  NULL: out of memory.
 */
struct ssl_st *tls_client_session(
	const struct tls_client *c, int fd, const char *host, struct tls_memory *memory);

/* Whether a session is one of this context. */
bool tls_client_is_of(const struct tls_client *c, const struct ssl_st *ssl);

/* Why a call has just failed, from OpenSSL's queue of errors, which is empty afterwards: "tls: certificate verify
 * failed: unable to get local issuer certificate".  `error`: of SSL_get_error(); `err`: errno of the call. */
#define TLS_WHY 160
void tls_client_why(const struct ssl_st *ssl, int error, int err, char buf[TLS_WHY]);
