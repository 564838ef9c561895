/*
 * Affinity: what ties a request to an engine, the name of its session or the start of its prompt, hashed.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/prefix_key.h"
#include "worker/base/route.h"

struct splice;
struct table_pool;
struct text;

/* Hashes the value of the pool's session_header, else of its session_member (a string, a number or a bool).  False: the
 * request has neither.  The same name in either place is the same session. */
bool affinity_session(const struct text *text, const struct table_pool *tp, uint64_t *ret_key);
/* Hashes the model and the first prefix_bytes of the prompt or the messages, as they stand in the body.  False: the
 * body has none. */
bool affinity_prefix(const struct text *text, enum route route, const char *model,
	const struct table_pool *tp, uint64_t *ret_key);
/* Cuts the prompt of the path (proto/json/prompt.h).  False: the body has no prompt. */
bool affinity_cut(const struct prefix_secret *secret, const struct text *text, enum route route,
	const char *model, uint32_t block, struct prefix_key *ret);
/*
 * What routing_threshold is compared with, as production-stack's --routing-threshold counts (pull request 890): a quarter
 * of the characters of a string prompt or of the messages, rounded down; the length of a list prompt, whatever it
 * lists; 0 where the body has neither.
 */
uint32_t affinity_estimate(const struct splice *doc, enum route route);
