/* The keys of clients and of operators, from the files that api_keys_file and admin.api_keys_file name. */
#pragma once
#include "master/config/conf_read.h"

/* Once all other keys are known: the file's rows into r->conf, if it names a file. */
/* The name of the key that names the file. */
const char *conf_api_keys_key(enum door door);
int conf_client_keys_read(struct conf_read *r);
void conf_client_keys_free(struct conf *c);
bool conf_client_key_equal(const struct conf_api_key *a, const struct conf_api_key *b);
bool conf_client_keys_equal(const struct conf *a, const struct conf *b);
