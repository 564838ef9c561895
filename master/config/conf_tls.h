/* The keys of `tls`: certificates and the files that they name. */
#pragma once
#include "master/config/conf_read.h"
#include "proto/tls/pem.h"

/* For conf_readers: the list of certificates. */
int conf_certificates_set(
	struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list);
/* Reads the files, and checks what they hold with OpenSSL; `lines`: of the root's keys. */
int conf_tls_finish(struct conf_read *r, const int *lines);
/* The names of the certificates' files, and what all files of `tls` hold. */
bool conf_tls_names_equal(const struct conf_tls *a, const struct conf_tls *b);
bool conf_tls_files_equal(const struct conf_tls *a, const struct conf_tls *b);
void conf_tls_free(struct conf_tls *t);

/* --- for both sides of TLS */
/* A file's text, or NULL with the error written; `line` and `key` are those of its name. */
char *conf_read_pem(struct conf_read *r, const char *name, int line, const char *key);
/* Fails if a certificate has expired or is not valid yet. */
int conf_check_dates(
	struct conf_read *r, int line, const char *key, const char *file, struct tls_validity v);
