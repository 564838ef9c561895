/*
 * The text of the state_file: which endpoints the operator has drained, and which have a weight of his.
 *
 *	{"pdrouter_state": 1, "drained": [
 *	{"pool":"llama-3-70b","role":"decode","url":"http://10.0.1.1:8200"}
 *	], "weights": [
 *	{"pool":"llama-3-70b","role":"decode","url":"http://10.0.1.2:8200","weight":50,"configured":1}
 *	]}
 *
 * The number is the version.  A change that a former version must not ignore raises the version; members
 * that are not known are ignored.
 *
 * Process: master.  Knows neither the file nor the fleet.
 */
#pragma once
#include <stddef.h>

#include "shm/base/conf.h"

struct membuf;

#define SAVED_VERSION 1
#define SAVED_BYTES_MAX                                                                            \
	(1u << 20) /* a longer text is neither written nor read: about 10,000 drains */

/* A drain or a weight, and the key of its endpoint. */
struct saved_one {
	char *url, *pool;
	enum role role;
	uint32_t weight;     /* 0: this is a drain */
	uint32_t configured; /* the configured weight at that time */
};

struct saved {
	struct saved_one *all;
	size_t n;
};

/*
 * Returns 0 and the caller owns *ret (saved_free), or -1 with *ret_why one English phrase (static).
 * Each URL of the result is valid by http_url_parse().
 */
int saved_parse(const char *text, size_t len, struct saved *ret, const char **ret_why);
void saved_free(struct saved *s);
/* Appends the text.  Sorts the list: drains, then weights; of one kind each key is written once. */
void saved_write(struct saved_one *all, size_t n, struct membuf *out);
