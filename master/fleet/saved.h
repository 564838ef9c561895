/*
 * The text of the state_file: which endpoints the operator has drained.
 *
 *	{"pdrouter_state": 1, "drained": [
 *	{"pool":"llama-3-70b","role":"decode","url":"http://10.0.1.1:8200"}
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

/* The key of an endpoint. */
struct saved_drain {
	char *url, *pool;
	enum role role;
};

struct saved {
	struct saved_drain *drains;
	size_t n;
};

/*
 * Returns 0 and the caller owns *ret (saved_free), or -1 with *ret_why one English phrase (static).
 * Each URL of the result is valid by http_url_parse().
 */
int saved_parse(const char *text, size_t len, struct saved *ret, const char **ret_why);
void saved_free(struct saved *s);
/* Appends the text of these drains.  Sorts the list; equal ones are written once. */
void saved_write(struct saved_drain *drains, size_t n, struct membuf *out);
