/*
 * A small HTTP client for the master's requests to engines: one GET at a time on one connection, never
 * blocking, bounded in time, in bytes of one answer and in bytes of all answers together.
 *
 * Process: master.
 * Ownership: a probe belongs to its creator.  Its fn may start the next GET on the same probe, but must
 * not free it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ep_addr;
struct event_base;
struct probe;
struct probe_env;
struct tls_client;
struct tls_memory;

/* What all probes share: the read buffer, and the limit of all answers' bytes together, `max_held`. */
struct probe_env *probe_env_new(struct event_base *base, size_t max_held);
void probe_env_free(struct probe_env **);

/* A real vLLM metrics page is some 100 KiB; a model list with 10k adapters is under 4 MiB. */
#define PROBE_BODY_MAX (8u << 20)

struct probe_answer {
	int error; /* 0, or -errno: -ETIMEDOUT, -ECONNREFUSED, -EPROTO (not HTTP), -EMSGSIZE, ... */
	bool local;       /* this machine is at fault (out of descriptors, ...), not the peer */
	const char *why;  /* of the error, one English phrase; "" without */
	int status;       /* of the HTTP answer; 0 with an error before it */
	bool keyed;       /* the request carried a key */
	const char *body; /* NULL unless want_body; valid until fn returns */
	size_t len;
};
typedef void probe_fn(const struct probe_answer *a, void *arg);
/* A piece of the body of a 200, as it was read: 64 KiB at most. */
typedef void probe_piece_fn(const char *data, size_t n, void *arg);

struct probe_request {
	const struct ep_addr *addr;
	const char *authority; /* Host header */
	const char *prefix, *path;
	uint64_t timeout_ms; /* to the answer's last byte */
	uint64_t
		spent_ms; /* of timeout_ms, before this GET; 0: it is all left, which costs least */
	size_t max_body;  /* more is -EMSGSIZE */
	bool https;       /* the connection must be TLS: without `tls` the GET fails with ENOKEY */
	struct tls_client *tls; /* the connection is TLS; NULL: plain */
	const char *host;       /* with tls: that the engine must be; lives as long as the probe */
	struct tls_memory *memory; /* with tls: lives as long as the probe */
	const char *api_key;       /* sent as a bearer token; NULL: none */
	bool want_body;            /* it is kept for fn */
	probe_piece_fn *piece;     /* called with it piece by piece, fn's arg; without either it is
				  read and dropped */
	bool keep;  /* the connection may be used again; else it is a new one, closed after */
	bool fresh; /* with keep: this time it is a new one */
};

struct probe *probe_new(struct probe_env *env, probe_fn *fn, void *arg);
void probe_free(struct probe **);

/* Starts a GET; fn is called once, later, from the loop.  Everything in `rq` is copied.  Not while
 * another is open (probe_busy). */
void probe_get(struct probe *p, const struct probe_request *rq);
bool probe_busy(const struct probe *p);
/* Ends an open GET without a call of fn, and closes the connection. */
void probe_cancel(struct probe *p);

/* Returns true for 401 and 403: the engine demands a key that the router was not given. */
bool probe_key_refused(const struct probe_answer *a);
/*
 * Whether it is a 2xx answer; else *why describes the answer in one phrase, with the engine's own
 * words if there are some.  If the engine was sent a key, its words are left out: they might repeat
 * the key.
 */
bool probe_good(const struct probe_answer *a, const char *path, char *why, size_t size);
