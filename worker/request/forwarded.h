/*
 * Proxies before the router: whose address a request comes from.  Proxies of client.proxy_networks are believed.  All
 * other connections are the client's own, whatever their requests say.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "worker/base/address.h"

struct conf;
struct http_head;
struct lines;
struct span;

bool forwarded_by_proxy(const struct conf *conf, const struct address *a);
/*
 * Returns the address of the client: `from`, or if that is a proxy's the last address of X-Forwarded-For that is none.
 * Forwarded (RFC 7239) is not read: of two headers one is always the client's own.
 */
struct address forwarded_client(
	const struct conf *conf, const struct address *from, const struct http_head *h);

/* Where a request comes from, for the engines (client.forward_address). */
struct forwarded_peer {
	struct address address; /* of the connection: a client's, or a proxy's */
	const char *proto;      /* "http" or "https" */
	bool proxy;             /* it is believed: its lines are extended */
};

/* Whether forwarded_lines() writes this header in place of the client's. */
bool forwarded_is_ours(struct span name);
/* The most bytes that forwarded_lines() writes. */
size_t forwarded_room(const struct http_head *h);
/* Writes X-Forwarded-For, Forwarded and X-Forwarded-Proto.  A peer whose address is not known adds none to X-Forwarded-For. */
void forwarded_lines(const struct forwarded_peer *peer, const struct http_head *h, struct lines *l);
