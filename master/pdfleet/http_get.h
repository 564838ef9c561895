/* One small GET, blocking. */
#pragma once
#include "shm/base/mem.h"

/* The status, or -1: no answer within 2 s, or none that is HTTP.  The body, of at most 4 MiB, is appended to
 * *body (NULL: not wanted). */
int http_get(const char *url, const char *path, struct membuf *body);
