/* The keys of `tls`: certificates and the files that they name. */
#pragma once
#include "master/config/conf_read.h"

/* For conf_readers: the list of certificates. */
int conf_certificates_set(
	struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list);
/* Reads the files, and checks what they hold with OpenSSL; `lines`: of the root's keys. */
int conf_tls_finish(struct conf_read *r, const int *lines);
/* The names of the certificates' files, and what all files of `tls` hold. */
bool conf_tls_names_equal(const struct conf_tls *a, const struct conf_tls *b);
bool conf_tls_files_equal(const struct conf_tls *a, const struct conf_tls *b);
void conf_tls_free(struct conf_tls *t);
