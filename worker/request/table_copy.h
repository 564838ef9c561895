/*
 * What the router's own pages (/metrics, /health, /ready, /v1/models) show of the endpoint table.
 *
 * I6 of shm/README: a read section allocates nothing and makes no system call.  The copy is made in read
 * sections of at most TABLE_COPY_STEP rows each.  The pages are rendered from the copy, outside of any
 * read section.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "shm/base/conf.h"
#include "shm/base/mem.h"

struct seg;

#define TABLE_COPY_STEP 32
/* bytes of a copied text with its NUL; a longer one is clipped */
#define TABLE_COPY_TEXT 600

struct pool_copy {
	uint32_t id; /* its name: seg_pool_name() */
	enum policy_kind policy[ROLE_N];
	enum load_kind load[ROLE_N];
	enum pairing_kind pairing;
	enum fallback_kind fallback;
	/* all endpoints of the pool are among endpoints[first] .. endpoints[end - 1] */
	uint32_t first, end;
};

struct endpoint_copy {
	uint32_t slot, weight, max_context;
	uint32_t group_number; /* table_endpoint.group */
	uint32_t pool;         /* index into table_copy.pools */
	enum role role;
	size_t url, version, group; /* offsets into table_copy.text; "" if unknown or none */
};

struct table_copy {
	uint64_t version; /* table.version; 0: none has been published */
	uint64_t foreign_max_age_ms;
	uint32_t npools, nendpoints;
	struct pool_copy *pools;
	struct endpoint_copy *endpoints;
	struct membuf text;
};

/* Copies the table that is current for the reader `slot`.  False, with an empty copy, if none has been
 * published, or if the master published a new one during each of several tries.  End with table_copy_free(). */
bool table_copy_make(struct seg *seg, uint32_t slot, struct table_copy *ret);
void table_copy_free(struct table_copy *c);
/* Of the table that is current now. */
uint64_t table_copy_version(struct seg *seg, uint32_t slot);

struct table_models {
	uint64_t created_s; /* table.created_s */
	/* the name and the card (table_pool.cards) of each model that is served, each followed by a
	 * NUL; free it with membuf_free() */
	struct membuf text;
};

/* Returns what table_copy_make() returns.  On false the list is empty. */
bool table_copy_models(struct seg *seg, uint32_t slot, struct table_models *ret);
