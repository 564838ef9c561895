/* The file that a pool's engine_api_key_file names. */
#pragma once
#include <sys/types.h>

#include "master/config/conf_read.h"

/* Bytes of the file into buf, at most `size`; -1 with errno.  Never waits, whatever the file is. */
ssize_t conf_read_small(const char *path, char *buf, size_t size);
/* Its text into p->api_key; `line` is that of the key.  No message shows a byte of it. */
int conf_api_key_read(struct conf_read *r, struct conf_pool *p, int line);
