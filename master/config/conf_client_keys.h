/* The keys of clients, from the file that api_keys_file names. */
#pragma once
#include "master/config/conf_read.h"

/* Once all other keys are known: the file's rows into r->conf, if it names a file. */
int conf_client_keys_read(struct conf_read *r);
void conf_client_keys_free(struct conf *c);
bool conf_client_key_equal(const struct conf_api_key *a, const struct conf_api_key *b);
bool conf_client_keys_equal(const struct conf *a, const struct conf *b);
