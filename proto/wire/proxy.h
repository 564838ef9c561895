/*
 * The PROXY protocol, versions 1 and 2: what a proxy writes before the first byte of a connection, so that the server
 * knows the client's address (haproxy, doc/proxy-protocol.txt, sections 2.1 and 2.2).
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Bytes of the longest header that is read: the longest of version 1 has 107; version 2 adds fields (TLVs). */
#define PROXY_MAX 2048

struct proxy_from {
	uint8_t version; /* of IP: 4, 6; 0: the proxy speaks for itself, or does not know */
	uint8_t ip[16];  /* network byte order */
};

/* Returns the bytes of the header, 0 if more bytes are needed, or -1 if it is none. */
ssize_t proxy_read(const char *p, size_t n, struct proxy_from *ret);
