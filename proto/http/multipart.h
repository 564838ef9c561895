/*
 * One text field of a multipart/form-data body (RFC 7578): audio is uploaded in such bodies, with the model's
 * name as one field among others.
 *
 * Nothing is allocated; the value is a part of the body.
 */
#pragma once
#include "proto/http/http.h"

enum multipart_found {
	MULTIPART_NONE, /* there is no such field, or the body is no whole form */
	MULTIPART_FOUND,
	MULTIPART_UNCLEAR, /* other parsers may see another value: the field comes twice, or a Content-Disposition */
};

/* Looks for the one field called `name` without a filename in `body`, whose Content-Type is `type`. */
enum multipart_found multipart_field(
	struct span type, struct span body, const char *name, struct span *ret);
