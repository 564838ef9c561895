/*
 * Members and objects of the JSON that pdctl gets.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct evbuffer;
struct json_object;

/* json-c copies the bytes of a text as they are, and engines' error texts may be broken UTF-8: mended here. */
struct json_object *json_out_text(const char *text);
/* A NULL text is null. */
void json_out_add(struct json_object *o, const char *key, const char *text);
/* A number that is not known is null. */
void json_out_number(struct json_object *o, const char *key, bool known, uint64_t n);
/* Takes `o`.  Each object is written and freed before the next one is made: a fleet has thousands. */
void json_out_write(struct evbuffer *out, size_t *nwritten, struct json_object *o);
