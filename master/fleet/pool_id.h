/*
 * Numbers of pool names.  A name keeps its number for the life of the segment, since metric rows
 * are added up by it.
 *
 * Process: master.
 */
#pragma once
#include <stdint.h>

struct conf;
struct conf_pool;
struct fleet;
struct seg;

/* f->conf is in force from now on: gives its pools their numbers (f->pool_ids). */
void pool_ids_assign(struct fleet *f);
/* The number of a pool of f->conf. */
uint32_t pool_id_of(const struct fleet *f, const struct conf_pool *pool);
/* The first pool whose name would get no number, or NULL. */
const struct conf_pool *pool_without_id(const struct seg *seg, const struct conf *conf);
