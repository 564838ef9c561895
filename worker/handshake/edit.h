/*
 * Edits of a client's body that connectors share: members that are set, lowered or cut before a leg is sent.
 *
 * Process: worker.
 */
#pragma once
#include "proto/json/splice.h"
#include "shm/base/conf.h"
#include "worker/base/route.h"

struct demand;
struct transfer;

void edit_set(struct splice_edit *e, enum splice_key k, enum splice_op op, const char *value);
void edit_set_span(struct splice_edit *e, enum splice_key k, enum splice_op op, struct span v);
/* Returns true if the object `outer` of the body has one of these members, or an escaped name,
 * which is not looked into. */
bool edit_hides(
	const struct splice *doc, enum splice_key outer, const char *const *names, size_t n);
/* Returns why no engine may get the body: it chooses a peer in a way that edit_strip() cannot cut.
 * NULL: engines may. */
const char *edit_refuses(const struct demand *d);
/* Limits a prefill leg to one token, not streamed (protocols.md 1.6). */
void edit_limit_prefill(struct transfer *t, struct splice_edit *e);
/* Cuts stops, so that the first token cannot end a prefill leg: vLLM <= 0.19 and Mooncake
 * return KV parameters only for answers that ended by length (protocols.md 2.3). */
void edit_no_stops(struct splice_edit *e);
/* Cuts the budget of thinking tokens of /v1/messages, which must be less than the limit (vLLM 0.31
 * and later). */
void edit_no_budget(struct transfer *t, struct splice_edit *e);
/* The client's own body, untouched. */
void edit_nothing(struct transfer *t, struct splice_edit *e);
/* Cuts the members that choose a peer or a request, which no client may set, and replaces ids
 * by the router's. */
void edit_strip(struct transfer *t, struct splice_edit *e);
/* Makes a leg's whole body: strips, replaces ids, selects one prompt and sample of several,
 * applies the connector's edit, and with t->release_only limits decode to one token. */
void edit_leg(struct transfer *t, enum role role, struct splice_edit *e);
