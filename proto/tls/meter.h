/*
 * How much one call of OpenSSL may read from its socket.
 *
 * A call returns when it has bytes of the peer, and handles messages of TLS itself (new keys, tickets) before: a peer that
 * sends nothing else would have one SSL_read() for as long as it sends.  The meter refuses to read on.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct ssl_st;

struct tls_meter {
	size_t left; /* bytes; the last read may take a record more */
	/* fact: the latest call would have read on: the socket may have more, whatever SSL_get_error() says */
	bool refused;
};

/* Watches a session that has its socket; the meter must outlive the session. */
void tls_meter_watch(struct tls_meter *m, struct ssl_st *ssl);
/* The calls from here on may read `n` bytes together, and a record at least. */
void tls_meter_allow(struct tls_meter *m, size_t n);
