/* Session tickets, sealed by the keys that all workers share (shm/tickets.h). */
#pragma once

struct seg;
struct ssl_ctx_st;
struct ssl_st;

/* Sessions of the context have tickets. */
void tls_ticket_use(struct ssl_ctx_st *ctx);
/* Where the keys of a session's tickets are. */
void tls_ticket_keys(struct ssl_st *ssl, const struct seg *seg);
