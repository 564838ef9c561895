/* The keys `siblings`: what other routers are told, and the secret that they share with this one. */
#pragma once
#include "master/config/conf_read.h"

/* Looks which of the keys need each other.  The secret_file's text becomes the keys of messages and of digests.  No message shows a byte of it. */
int conf_siblings_read(struct conf_read *r, const int *lines);
bool conf_siblings_key_equal(const struct conf *a, const struct conf *b);
/* In place of the key that `to` has. */
void conf_siblings_key_copy(const struct conf *from, struct conf *to);
