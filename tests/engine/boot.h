/*
 * A decode engine that finds its prefill engine by way of a bootstrap server: it asks that one over
 * HTTP where to go, then puts its question there, on the side channel.
 *
 * Ownership: a struct boot is the asker's until done() or boot_forget().
 */
#pragma once
#include <stdbool.h>

#include "tests/engine/json.h"

struct boot;
struct buf;
struct conn;
struct sim;

/* In the server's answer: host and port of the side channel; false: it is not there. */
typedef bool boot_find(void *arg, struct jv answer, struct buf *host, int *ret_port);
/* As side_done(); also "NOT FOUND" by find(), or "STATUS n" of the server. */
typedef void boot_done(void *arg, const char *answer);

/* `line` is copied.  NULL: the server has no address, done() will not follow; else it does, never
 * from inside. */
struct boot *boot_ask(struct sim *sim, const char *host, int port, const char *path,
	const struct buf *line, boot_find *find, boot_done *done, void *arg);
void boot_forget(struct boot **b);

/* "tcp://host:port", "http://host:port/x" or "host:port", the host perhaps in brackets */
bool boot_address(const char *url, struct buf *host, int *ret_port);

/* ---- the server, on a prefill engine: HTTP on --bootstrap-port ---- */

void boot_listen(struct sim *sim);
void boot_route(struct conn *c);                                      /* GET /route, SGLang's */
void boot_query(struct conn *c);                                      /* GET /query, Mooncake's */
void boot_engine_id(struct sim *sim, unsigned rank, struct buf *out); /* of a data-parallel rank */
