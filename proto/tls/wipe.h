/*
 * OpenSSL's memory.  OpenSSL 3.0 clears the numbers of a private key when it frees them, but not the copies that are made
 * while the key's text is read.  The master reads keys, and each of its children has what the master has freed.
 */
#pragma once
#include <stdbool.h>

/* At the start of a process, before OpenSSL is called: what OpenSSL frees is overwritten from now on.  False: too late. */
bool tls_wipe_begin(void);
/* In a worker, which has read its keys: its buffers of records are not overwritten. */
void tls_wipe_end(void);
