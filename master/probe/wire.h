/*
 * The bytes of a probe's connection: plain, or TLS.
 *
 * Process: master.
 * Ownership: embedded in its probe.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proto/tls/client.h"
#include "proto/tls/meter.h"

struct wire {
	int fd;             /* -1: none */
	struct ssl_st *ssl; /* NULL: plain */
	struct tls_meter meter;
	bool ahead; /* fact: the latest wire_read() has left bytes, which the socket may not become readable for */
	/* what the handshake, or a call that returned -EAGAIN, waits for */
	enum wire_wants { WIRE_WANTS_BYTES, WIRE_WANTS_ROOM } wants;
	char why[TLS_WHY]; /* of a failure of TLS; "": none */
};

/* Bytes are TLS from here on, with an engine that is `host`.  False: out of memory. */
bool wire_begin_tls(struct wire *w, const struct tls_client *client, const char *host,
	struct tls_memory *memory);
/* Continues the handshake.  Returns 0 when it is over, -EAGAIN, or -errno. */
int wire_shake(struct wire *w);
/* Returns the bytes written or read, 0 at the end of what can be read, or -errno. */
ssize_t wire_send(struct wire *w, const void *p, size_t n);
ssize_t wire_read(struct wire *w, void *buf, size_t n);
/* Whether the latest wire_read() is to be repeated without waiting for the socket, in the next turn of the loop. */
bool wire_is_ahead(const struct wire *w);
/* Whether an idle connection is open, with nothing to read but messages of TLS itself. */
bool wire_is_quiet(struct wire *w);
/* Whether the connection was verified as `client` would do it; NULL: plain. */
bool wire_is_of(const struct wire *w, const struct tls_client *client);
/* Ends TLS, so that its session can be resumed, and gives up the descriptor, which the caller closes. */
int wire_release(struct wire *w);
