/*
 * What DNS records mean: a sorted set of URLs with weights.
 *
 * Process: master.  Pure functions.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/wire/dns_reply.h"
#include "shm/base/conf.h"

/* An address or a service. */
struct target {
	char *url;
	uint32_t weight; /* 0: the weight of the configuration's entry */
};

/* The caller owns the URLs; targets_clear() frees them. */
struct targets {
	struct target *v;
	size_t n;
	size_t left_out; /* beyond the most that are used */
};

void targets_clear(struct targets *s);
/*
 * Sorted, each URL once.  Addresses get the entry's port; of services only those with the lowest priority are
 * used.  Records that no engine can have are left out.
 */
struct targets targets_read(const struct dns_record *records, size_t n, enum dns_type type,
	const struct conf_dns *entry);
bool targets_equal(const struct targets *a, const struct targets *b);
bool targets_have(const struct targets *s, const char *url);
