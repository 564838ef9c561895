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

bool forwarded_by_proxy(const struct conf *conf, const struct address *a);
/*
 * Returns the address of the client: `from`, or if that is a proxy's the last address of X-Forwarded-For that is none.
 * Forwarded (RFC 7239) is not read: of two headers one is always the client's own.
 */
struct address forwarded_client(
	const struct conf *conf, const struct address *from, const struct http_head *h);
