#include "tests/engine/seen.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/text.h"

#define SLOTS ((size_t)SEEN_HALF * 2) /* half full at most */

/* Two open-addressing sets: ids go into the young one; when that is full it becomes the old one. */
struct seen {
	uint64_t *young, *old;
	unsigned n;
};

static uint64_t *
slots(void)
{
	uint64_t *t = calloc(SLOTS, sizeof(*t)); /* untouched pages cost nothing */

	if (t == NULL)
		abort();
	return t;
}

struct seen *
seen_new(void)
{
	struct seen *s = calloc(1, sizeof(*s));

	if (s == NULL)
		abort();
	s->young = slots();
	s->old = slots();
	return s;
}

static uint64_t *
find(uint64_t *t, uint64_t h)
{
	uint64_t i = h >> 20;

	while (t[i % SLOTS] != 0 && t[i % SLOTS] != h)
		i++;
	return &t[i % SLOTS];
}

bool
seen_before(struct seen *s, const char *p, size_t n)
{
	uint64_t h = text_fnv(TEXT_FNV0, p, n) | 1, *at = find(s->young, h);

	if (*at == h || *find(s->old, h) == h)
		return true;
	*at = h;
	if (++s->n < SEEN_HALF)
		return false;
	free(s->old);
	s->old = s->young;
	s->young = slots();
	s->n = 0;
	return false;
}

void
seen_clear(struct seen *s)
{
	free(s->old);
	free(s->young);
	s->old = slots();
	s->young = slots();
	s->n = 0;
}

void
seen_free(struct seen **ps)
{
	if (*ps != NULL) {
		free((*ps)->old);
		free((*ps)->young);
	}
	free(*ps);
	*ps = NULL;
}
