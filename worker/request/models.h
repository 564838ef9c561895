/*
 * The pages /v1/models and /v1/models/NAME.
 *
 * Process: worker.  The pages are rendered from a copy of the names, outside of any read section.
 */
#pragma once

struct evbuffer;
struct req;

/* Writes the list of all models that a pool serves, and that the request's key may use, into `out`. */
void models_page(const struct req *req, struct evbuffer *out);
/* Writes the page of one model into `out`.  Returns the status: 200, or 404 if no pool serves the model, or the key may not use
 * it. */
int model_page(const struct req *req, struct evbuffer *out, const char *name);
/* Writes `s` as a JSON string of at most 256 bytes of text into `out`. */
void page_add_quoted(struct evbuffer *out, const char *s);
