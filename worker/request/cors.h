/*
 * Web pages of other origins: the lines by which a browser lets a page read an answer, and those of a preflight, which the
 * browser sends before some requests (Fetch Standard, "CORS protocol").  Without cors.origins there is no such line.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

#include "shm/base/conf.h"

struct http_head;
struct lines;

/* Of a request; all 0: it is not of a page of an allowed origin. */
struct cors {
	const char *origin;  /* for Access-Control-Allow-Origin; of the configuration */
	const char *methods; /* of the path; a preflight has them */
	char *headers;       /* those that a preflight asks for; or NULL */
};

#define CORS_LINES_MAX 768 /* bytes of the lines of a preflight's answer */

/* Reads a request's head.  Returns true if it is a preflight of a path that is answered at that address.  Operators' addresses
 * are not for web pages. */
bool cors_take(struct cors *c, const struct conf *conf, enum door door, const struct http_head *h);
/* Lines for the head of any answer, each with CRLF before it. */
void cors_lines(const struct cors *c, const struct conf *conf, struct lines *l);
/* More lines for the answer to a preflight, each with CRLF behind it. */
void cors_preflight_lines(const struct cors *c, struct lines *l);
void cors_free(struct cors *c);
