/*
 * One text field of a multipart/form-data body (RFC 7578): audio is uploaded in such bodies, with the model's
 * name as one field among others.
 *
 * Nothing is allocated; the value is a part of the body.
 */
#pragma once
#include <stdbool.h>

#include "proto/http/http.h"

/*
 * The field called `name` in `body`, whose Content-Type is `type`: the first one without a filename.  False if
 * there is none, or the body is not such a form.
 */
bool multipart_field(struct span type, struct span body, const char *name, struct span *ret);
