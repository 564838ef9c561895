/*
 * What a pool's connector requires of its configuration.  connector_info
 * (shm/base/connector_info.h) has all of it.
 */
#pragma once
#include "master/config/conf_read.h"

/* The map of one connector's keys in a pool; `k` is the row of the map. */
conf_reader conf_connector_map_set;
/* The keys of the pool, once they all are known.  lines: of conf_pool_keys, or NULL. */
int conf_connector_check(struct conf_read *r, const struct conf_pool *p, const int *lines);
/* One endpoint.  `named`: it is an entry of dns, which may describe several engines. */
int conf_connector_check_endpoint(
	struct conf_read *r, const struct conf_pool *p, const struct conf_endpoint *ep, bool named);
