/*
 * HMAC-SHA256 with a key that several hosts share.
 *
 * Process: notifier makes and compares; the master derives keys.  What OpenSSL needs of the system it takes in mac_new(),
 * before the sandbox.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define MAC_BYTES 32

struct mac;

/* A key of its own for each purpose: HMAC of the purpose's name.  False: OpenSSL has no memory, or no HMAC. */
bool mac_derive(const void *secret, size_t n, const char *purpose, unsigned char ret[MAC_BYTES]);
/* NULL: the same. */
struct mac *mac_new(const unsigned char key[MAC_BYTES]);
void mac_free(struct mac **);
bool mac_make(struct mac *m, const void *bytes, size_t n, unsigned char ret[MAC_BYTES]);
/* Whether `mac` is that of the bytes, in a time that does not depend on where it differs. */
bool mac_is(struct mac *m, const void *bytes, size_t n, const unsigned char mac[MAC_BYTES]);
