/*
 * "I am here": the msgpack map by which an engine with vLLM's P2pNcclConnector announces itself over ZMQ,
 * every 3 s (protocols.md 7.2).
 *
 * Reads without allocating.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "shm/base/conf.h"

#define REGISTRATION_ADDRESS 64 /* bytes of "ip:port" or "[IPv6]:port" with its NUL */

struct registration {
	enum role role;
	uint16_t family; /* of the HTTP address: AF_INET or AF_INET6 */
	uint8_t ip[16];
	char http[REGISTRATION_ADDRESS]; /* rewritten: equal addresses are equal texts */
	char kv[REGISTRATION_ADDRESS];   /* its ZMQ/NCCL address, as sent */
};

/* Reads one message.  0; or -1: not a map, its type is neither P nor D, its http_address not an IP literal
 * with a port, or its zmq_address not a plain host:port. */
int registration_read(const void *msg, size_t len, struct registration *ret);
