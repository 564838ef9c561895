/* The keys `tls` of a pool: the files that they name, and the context that is made of them. */
#pragma once
#include "master/config/conf_read.h"

/* Notes the lines of the files' names; `lines`: of conf_pool_keys, or NULL. */
void conf_engine_tls_lines(struct conf_pool *p, const int *lines);
/* Once all keys are known: reads the files of all pools, and makes the contexts of those that speak TLS. */
int conf_engine_tls_finish(struct conf_read *r);
/* What workers inherit of the pools of the same names: a difference takes new workers. */
bool conf_engine_tls_equal(const struct conf *a, const struct conf *b);
/* Whether one pool's files hold the same as the other's, and whether both pools need them. */
bool conf_engine_tls_texts_equal(const struct conf_engine_tls *a, const struct conf_engine_tls *b);
/* Frees what the keys' rows do not name. */
void conf_engine_tls_free(struct conf_engine_tls *t);
