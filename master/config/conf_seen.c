/*
 * Names with their owners: an open-addressed table with linear probing, at most half full.
 *
 * One entry of 24 bytes for each name, and no allocation for each: a configuration may have 65,536 models.
 */
#include "master/config/conf_seen.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

#define ROOM_MIN 64 /* a power of 2 */

struct conf_seen {
	struct entry {
		const char *name; /* NULL: free */
		uint64_t hash;
		size_t owner;
	} * entries;
	size_t room; /* a power of 2 */
	size_t n;
};

/* FNV-1a.  The author of a configuration is trusted: the hash needs no secret key. */
static uint64_t
hash_of(const char *name)
{
	uint64_t h = UINT64_C(14695981039346656037);

	for (; *name != '\0'; name++)
		h = (h ^ (unsigned char)*name) * UINT64_C(1099511628211);
	return h;
}

/* The entry of the name, or the free one where the name belongs. */
static struct entry *
find(const struct conf_seen *s, const char *name, uint64_t hash)
{
	size_t i = hash & (s->room - 1);

	while (s->entries[i].name != NULL &&
		(s->entries[i].hash != hash || strcmp(s->entries[i].name, name) != 0))
		i = (i + 1) & (s->room - 1);
	return &s->entries[i];
}

static void
grow(struct conf_seen *s)
{
	struct conf_seen old = *s;

	s->room = old.room > 0 ? 2 * old.room : ROOM_MIN;
	s->entries = mem_array(s->room, sizeof(*s->entries));
	for (size_t i = 0; i < old.room; i++)
		if (old.entries[i].name != NULL)
			*find(s, old.entries[i].name, old.entries[i].hash) = old.entries[i];
	free(old.entries);
}

size_t
conf_seen_add(struct conf_seen **seen, const char *name, size_t owner)
{
	const uint64_t hash = hash_of(name);
	struct entry *e;

	if (*seen == NULL)
		*seen = MEM_NEW(struct conf_seen);
	if (2 * (*seen)->n >= (*seen)->room)
		grow(*seen);
	e = find(*seen, name, hash);
	if (e->name != NULL)
		return e->owner;
	*e = (struct entry){name, hash, owner};
	(*seen)->n++;
	return 0;
}

void
conf_seen_free(struct conf_seen **seen)
{
	if (*seen == NULL)
		return;
	free((*seen)->entries);
	free(*seen);
	*seen = NULL;
}
