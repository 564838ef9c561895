/*
 * Rows of the shared endpoint table: what workers know of a pool and of an endpoint.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conf_pool;
struct endpoint;
struct fleet;
struct table_builder;
struct table_endpoint;
struct table_pool;

/* Whether the endpoint gets a row: it has a slot, and is not left out for want of room. */
bool rows_has(const struct endpoint *ep);
/* `max_names`: learned model names the pool may have. */
void rows_fill_pool(struct table_builder *b, struct table_pool *tp, const struct fleet *f,
	const struct conf_pool *pool, size_t max_names);
/* What the pool's engines tell of its models, in tp->cards.  After rows_fill_pool(). */
void rows_fill_cards(struct table_builder *b, struct table_pool *tp, const struct fleet *f,
	const struct conf_pool *pool);
/* `share_names`: the endpoint has its pool's list of models instead of its own. */
void rows_fill_endpoint(struct table_builder *b, struct table_endpoint *te,
	const struct endpoint *ep, uint32_t pool_row, bool share_names);
