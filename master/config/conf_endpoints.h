/*
 * The endpoints of a pool: the lists prefill, decode and dns, the endpoints_file or fleet_file, and their checks.
 *
 * Every int function returns 0, or -1 with the error written.
 */
#pragma once
#include "master/config/conf_read.h"

/* --- conf_endpoints.c: entries of `role` lists and of dns */
conf_reader conf_endpoints_set, conf_dns_set;
/* No engine may be listed twice in one role: it would get twice its share.  Both roles at once are allowed. */
int conf_endpoints_check(struct conf_read *r, const struct conf_pool *p);
/* What the connector requires of each endpoint, and of each entry of dns. */
int conf_endpoints_check_terms(struct conf_read *r, const struct conf_pool *p);
int conf_dns_check_terms(struct conf_read *r, const struct conf_pool *p);
/* Fills p->groups; fails if there are more than CONF_GROUPS_MAX. */
int conf_groups_note(struct conf_read *r, struct conf_pool *p);
/* True if one group, or the endpoints without a group, has endpoints of both roles. */
bool conf_group_has_both(const struct conf_pool *p);

/* --- conf_endpoints_file.c */
/* Reads and checks the endpoints_file or fleet_file of the pool; `lines`: of conf_pool_keys, or NULL. */
int conf_endpoints_file_read(struct conf_read *r, struct conf_pool *p, const int *lines);
/* The same pool in r->was; NULL if there is none. */
const struct conf_pool *conf_pool_before(const struct conf_read *r, const struct conf_pool *p);
