/*
 * The key that a request came with: whether it may be served, and what the key allows (api_keys_file,
 * admin.api_keys_file, shm/api_keys.h).
 *
 * A key is looked up at the request's head, and once more when the body has named the model: so a key
 * that is removed or changed counts at once, on open connections too.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "worker/base/end_list.h"

struct http_head;
struct req;

/* At the head, of a path that needs a key.  Returns END_OK, or why the request is refused, with static
 * text for the error in *ret_detail. */
enum req_end key_take(struct req *req, const struct http_head *h, const char **ret_detail);
/* Once the model is known: whether the key may use it, and its pool.  Returns what key_take() returns. */
enum req_end key_admit(struct req *req, const char **ret_detail);
/* Later: whether the key of a stream without end would still be taken. */
bool key_is_good(const struct req *req);
void key_free(struct req *req);
/* Whether the key may use this model, of those that are served. */
bool key_has_model(const struct req *req, const char *model);
