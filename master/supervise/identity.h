/*
 * Whose rights the children have: the keys `user` and `group`, looked up once.
 *
 * Process: master.
 */
#pragma once
#include <stddef.h>

struct conf;
struct identity;

/*
 * A user is a name, or a number; a number without an entry in the system's list needs a group.  Returns -1, and says why, for
 * a name that is not known, and for rights that this process cannot give.
 */
int identity_find(const struct conf *conf, struct identity *ret, char *error, size_t size);
/* The same without a look at what this process is: for `pdrouter -t`. */
int identity_check(const struct conf *conf, char *error, size_t size);
