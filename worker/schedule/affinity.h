/*
 * What ties a request to an engine: the name of its session, or the start of its prompt; hashed.
 *
 * Process: worker, inside the read section.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct req;
struct table_pool;

/* The value of the pool's session_header, else of its session_member (a string, a number or a bool); false
 * if the request has neither.  The same name in either place is the same session. */
bool affinity_session(const struct req *req, const struct table_pool *tp, uint64_t *ret_key);
/* The model and the first prefix_bytes of what the engine will read, the prompt or the messages, as they
 * stand in the body; false if there are none. */
bool affinity_prefix(const struct req *req, const struct table_pool *tp, uint64_t *ret_key);
/* Prompt tokens as they can be guessed without a tokenizer: four characters each, token ids as counted.
 * At least 1, at most AFFINITY_TOKENS_MAX. */
#define AFFINITY_TOKENS_MAX (1u << 24)
uint32_t affinity_tokens(const struct req *req);
/*
 * What routing_threshold is held against, as production-stack's --routing-threshold counts (pull request
 * 890): a quarter of the characters of a string prompt, or of what messages say, rounded down; the length of a
 * list prompt, whatever it lists; 0 where there is neither.
 */
uint32_t affinity_estimate(const struct req *req);
