/* The file that a pool's engine_api_key_file names. */
#pragma once
#include "master/config/conf_read.h"

/* Its text into p->api_key; `line` is that of the key.  No message shows a byte of it. */
int conf_api_key_read(struct conf_read *r, struct conf_pool *p, int line);
