/*
 * Host names to addresses, without blocking: c-ares on the master's event loop (/etc/hosts first,
 * then the name servers of resolv.conf, IPv4 and IPv6).  Literals need no resolver.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ep_addr;
struct event_base;
struct lookup;
struct query;
struct resolver;

#define RESOLVE_MAX 8 /* addresses of one name that are used; further ones are ignored */

/* Aborts when out of memory.  Without a resolv.conf the name server is 127.0.0.1. */
struct resolver *resolver_new(struct event_base *base);
void resolver_free(struct resolver **); /* lookups still open are dropped, their fn is not called */

/*
 * Uses these name servers ("127.0.0.1:5353", "[::1]", ...) from now on; n = 0: those of resolv.conf, as
 * it is now.  Open lookups are sent to them as well.  Returns false if they are in use already.
 */
bool resolver_servers(struct resolver *r, char *const *servers, size_t n);

/* True and *ret if `host` is an IPv4 or (without brackets) IPv6 literal, with a zone or not. */
bool resolve_literal(const char *host, uint16_t port, struct ep_addr *ret);

/*
 * n addresses in the order of preference, or n = 0 and an English reason.  A name without addresses
 * is an error too.
 */
typedef void resolve_fn(const struct ep_addr *addrs, size_t n, const char *error, void *arg);

/*
 * Looks a name up; fn is called once, possibly before this returns (/etc/hosts).  *at is the lookup
 * while it is open and NULL again before fn runs: resolve_cancel(at) at any time, also when closed.
 */
void resolve_start(struct resolver *r, const char *host, uint16_t port, resolve_fn *fn, void *arg,
	struct lookup **at);
void resolve_cancel(struct lookup **at);

/* The bytes of a name server's answer with NOERROR or NXDOMAIN (proto/wire/dns_reply.h); or NULL and an
 * English reason. */
typedef void resolve_answer_fn(const uint8_t *msg, size_t n, const char *error, void *arg);

/*
 * Asks the name servers for the records of one type.  `name` is taken as it is: no search list, no
 * /etc/hosts.  fn and *at as with resolve_start().
 */
void resolve_query(struct resolver *r, const char *name, int type, resolve_answer_fn *fn, void *arg,
	struct query **at);
void resolve_query_cancel(struct query **at);
