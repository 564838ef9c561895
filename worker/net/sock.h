/*
 * The transport: a non-blocking stream socket on the worker's loop, plain TCP or TLS.
 *
 * Process: worker.
 * Ownership: embedded in its user (a client connection, an engine connection); sock_close()
 * ends it and frees the queued bytes.  Callbacks get the user's pointer and may call
 * sock_close().
 */
#pragma once
#include <event2/event_struct.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct evbuffer;
struct event_base;
struct tls;
struct tls_client;
struct tls_engines;
struct tls_memory;
struct tls_server;
struct worker;

struct sock {
	struct worker *w;
	int fd; /* -1 when closed */
	bool reading;
	bool connecting;
	/* reset: unlike an orderly close, a reset does not show how much the peer's kernel had
	 * taken */
	bool reset;
	struct event ev_read;
	struct event *ev_write; /* NULL: the socket's room is not waited for */
	struct tls *tls;        /* NULL: plain */
	struct evbuffer *out;   /* bytes that the kernel did not take; NULL when empty */
	void *arg;
	void (*on_read)(void *arg);    /* readable, or the peer closed */
	void (*on_drained)(void *arg); /* all queued bytes are written; also: connected, shaken */
	void (*on_error)(void *arg, int err); /* a write or the connect failed (errno) */
};

/* Takes a non-blocking fd over and starts reading (with `connecting`: waits for the end of the
 * connect). */
void sock_init(struct sock *s, struct worker *w, int fd, bool connecting, void *arg);
/*
 * A host that has vanished: the kernel probes a quiet connection, and ends it when the peer has answered nothing for
 * `ms`; 0: never.  Bytes that the peer does not acknowledge end it only with `unsent`, since the kernel then ends a
 * connection whose peer answers and has no room for them, too.
 */
void sock_watch_peer(const struct sock *s, uint64_t ms, bool unsent);
/* Returns true if the peer acknowledges nothing, although the kernel has sent to it again and again; *ret_ms: the time
 * since its last acknowledgement.  A peer that has no room acknowledges the kernel's probes.  *ret_acked: it has
 * acknowledged all that was written. */
bool sock_peer_silent(const struct sock *s, uint64_t *ret_ms, bool *ret_acked);
/* Bytes from here on are TLS, whose handshake the peer begins; on_drained() says that it is over.  False: too many
 * handshakes are in progress, the socket is of no use. */
bool sock_start_tls(struct sock *s, struct tls_server *server);
/* The same of a socket that connects to an engine, from before the connect has ended: on_drained() says that the handshake
 * is over, and on_error() that it failed.  `host`: as in its URL.  False: out of memory. */
bool sock_connect_tls(struct sock *s, struct tls_engines *engines, const struct tls_client *client,
	const char *host, struct tls_memory *memory);
/* OpenSSL's words for what has failed, which live as long as the worker; NULL: there are none. */
const char *sock_tls_why(const struct sock *s);
/* True until the handshake is over. */
bool sock_is_shaking(const struct sock *s);
/* Writes nothing more: the peer's reads end.  What is queued is lost. */
void sock_end_writing(struct sock *s);
/* Reads n bytes at most, and leaves them to be read again; of a socket that is plain still.  As sock_read(). */
ssize_t sock_peek(struct sock *s, void *buf, size_t n);
/* Returns true if the connection is open and the peer has sent nothing that a read would return.  Over TLS such bytes are
 * read and lost, and messages of TLS itself are none: the socket is not to be used if this is false. */
bool sock_is_quiet(struct sock *s);
/* Returns true if the loop has found the socket readable, and has not told its user so yet: its turn is to come. */
bool sock_is_due(const struct sock *s);
/* What was written lacks its end: a peer that speaks TLS sees that, when the socket ends. */
void sock_cut(struct sock *s);
/* Closes the fd and frees the queue.  Idempotent. */
void sock_close(struct sock *s);

/* Returns the bytes read, 0 at end of file, or -errno (-EAGAIN: no bytes now). */
ssize_t sock_read(struct sock *s, void *buf, size_t n);
/*
 * Writes what the kernel takes at once and queues the rest: the first ncopy pieces by copy,
 * the others by reference (they must live until on_drained() or sock_close()).  Returns 0, or
 * -errno if the connection is broken; on_error() is not called for an error returned here.
 */
int sock_writev(struct sock *s, const struct iovec *iov, int n, int ncopy);
int sock_write(struct sock *s, const void *p, size_t n);
/* Returns the number of queued bytes. */
size_t sock_queued(const struct sock *s);

/* Stops and resumes on_read(). */
void sock_read_stop(struct sock *s);
void sock_read_start(struct sock *s);
/* Handles what is ready now (the end of the connect, bytes, the end of the answer) as the loop
 * would.  Returns false if nothing was ready. */
bool sock_look(struct sock *s);
/* Returns true if the peer has closed or reset, according to the kernel: for a socket that is
 * not read at the moment. */
bool sock_hung_up(const struct sock *s);
