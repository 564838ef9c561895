#include "master/config/conf_seen.h"

#include <stdlib.h>
#include <string.h>

#define uthash_fatal(why) abort() /* out of memory, as in mem.h */
#include <uthash.h>
/* Room for 65536 models without long chains: a name that is new is compared with its whole chain. */
#undef HASH_INITIAL_NUM_BUCKETS
#undef HASH_INITIAL_NUM_BUCKETS_LOG2
#define HASH_INITIAL_NUM_BUCKETS 16384U
#define HASH_INITIAL_NUM_BUCKETS_LOG2 14U

#include "shm/base/mem.h"

struct conf_seen {
	size_t owner;
	UT_hash_handle hh; /* key: the name */
};

size_t
conf_seen_add(struct conf_seen **seen, const char *name, size_t owner)
{
	struct conf_seen *one;
	size_t n = strlen(name);

	HASH_FIND(hh, *seen, name, n, one);
	if (one != NULL)
		return one->owner;
	one = MEM_NEW(struct conf_seen);
	one->owner = owner;
	HASH_ADD_KEYPTR(hh, *seen, name, n, one);
	return 0;
}

void
conf_seen_free(struct conf_seen **seen)
{
	struct conf_seen *one, *next;

	/* HASH_CLEAR() frees the table alone and leaves the list of its entries */
	one = *seen;
	HASH_CLEAR(hh, *seen);
	for (; one != NULL; one = next) {
		next = one->hh.next;
		free(one);
	}
}
