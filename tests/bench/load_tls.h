/* TLS 1.3 of pdload: the same cipher and group with each server, certificates are not verified. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct ssl_st;

/* The session of a connected blocking socket, after its handshake; NULL: it failed, which is written to the standard
 * error.  The caller frees it. */
struct ssl_st *load_tls_connect(int fd);
/* As send(2) and recv(2) of a non-blocking socket: -1 with errno. */
ssize_t load_tls_send(struct ssl_st *ssl, const void *p, size_t n);
ssize_t load_tls_recv(struct ssl_st *ssl, void *p, size_t n);
/* Ends an idle session in order, reads all that the server still writes, and frees it.  With `keep`, the next sessions
 * resume it.  Returns whether it had been resumed itself. */
bool load_tls_end(struct ssl_st *ssl, bool keep);
void load_tls_free(struct ssl_st *ssl); /* NULL is fine */
