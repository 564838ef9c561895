/*
 * TLS of one connection, behind sock.h: OpenSSL reads and writes the socket itself.
 *
 * Process: worker.  A tls_server is what all sessions with clients share, tls_engines what those with engines share.
 * A struct tls belongs to its socket.
 */
#pragma once
#include <event2/event_struct.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "proto/tls/meter.h"

struct conf_tls;
struct ssl_st;
struct tls_client;
struct tls_engines;
struct tls_memory;
struct tls_server;
struct tls_side;
struct worker;

#define TLS_RECORD 16384 /* bytes of the largest record */

enum tls_state {
	TLS_SHAKING,
	TLS_OPEN,
	TLS_ENDED,  /* this side writes no more; the peer may still be read */
	TLS_FAILED, /* OpenSSL is not called again */
};

/* What the session waits for, beside more bytes to read. */
enum tls_wants {
	TLS_WANTS_NOTHING,
	TLS_WANTS_ROOM, /* a step of the session, or a record, waits until the socket takes bytes */
	TLS_WANTS_BYTES, /* a write waits for bytes of the peer */
};

struct tls {
	struct tls_side *side;
	struct ssl_st *ssl;
	enum tls_state state;
	enum tls_wants wants;
	int error; /* in TLS_FAILED: -errno */
	struct tls_meter meter;
	/* fact: OpenSSL has bytes of the peer that no read returned, or a read ended before the socket was empty; the socket
	 * does not become readable for the former */
	bool ahead;
	struct event ev_ahead; /* of the socket: reads them in the next turn of the loop */
	const char *
		why; /* of a failure, for the log: lives as long as the worker; NULL: a plain reset */
	/* fact: what was written lacks its end, so no close_notify calls it whole */
	bool cut;
};

/* NULL: no session is possible, which the master has checked before. */
struct tls_server *tls_server_new(struct worker *w, const struct conf_tls *conf);
void tls_server_free(struct tls_server **); /* NULL is fine */

struct tls_engines *tls_engines_new(struct worker *w);
void tls_engines_free(struct tls_engines **); /* NULL is fine */

/* A session on a connected socket, to be begun by the peer.  NULL: too many handshakes are in progress. */
struct tls *tls_accept(struct tls_server *server, int fd);
/* A session on a socket that connects to an engine, to be begun by this side: proto/tls/client.h.  NULL: out of memory. */
struct tls *tls_connect(struct tls_engines *engines, const struct tls_client *client, int fd,
	const char *host, struct tls_memory *memory);
/* Continues the handshake.  Returns 0 when it is over, -EAGAIN, or -errno. */
int tls_shake(struct tls *t);
/* As read(2), in TLS_OPEN: bytes, 0 after the peer's close_notify, -ECONNRESET where the peer ended without one. */
ssize_t tls_read(struct tls *t, void *buf, size_t n);
/* Writes records, the pieces joined: small pieces become one record.  Returns the bytes that were taken, or -errno if
 * none.  After -EAGAIN the same bytes come first in the next call. */
ssize_t tls_writev(struct tls *t, const struct iovec *iov, int n);
/* Sends close_notify, unless the session is cut; the peer may still be read. */
void tls_end_writing(struct tls *t);
/* Frees the session; the peer sees an end without close_notify, unless tls_end_writing() came before. */
void tls_free(struct tls **);
