/*
 * There is one writer, so a sequence counter is enough: seq is odd while the entry changes.  A
 * notifier killed during a change leaves seq odd, and its successor begins by emptying all entries.
 */
#include "shm/announce.h"

#include <string.h>

#include "shm/core/atomic.h"
#include "shm/core/suspect.h"

#define TRIES 4 /* a write takes a microsecond; the master may read again later */

/* Texts are copied word by word: a reader may read them while they change. */
#define WORDS (ANNOUNCED_ADDRESS / sizeof(uint64_t))

static void
text_put(char *to, const char *from)
{
	uint64_t words[WORDS] = {0};

	memcpy(words, from, strnlen(from, ANNOUNCED_ADDRESS - 1));
	for (size_t i = 0; i < WORDS; i++)
		shm_store((uint64_t *)(void *)to + i, words[i]);
}

static void
text_get(const char *from, char *to)
{
	uint64_t words[WORDS];

	for (size_t i = 0; i < WORDS; i++)
		words[i] = shm_load((const uint64_t *)(const void *)from + i);
	memcpy(to, words, ANNOUNCED_ADDRESS);
	to[ANNOUNCED_ADDRESS - 1] = '\0';
}

/* Its time is not ahead of the clock: else nothing would ever end the entry. */
static bool
is_ahead(uint64_t seen_ms, uint64_t now_ms)
{
	return seen_ms > now_ms + ANNOUNCED_AHEAD_MS;
}

/* check_announcements() reads the seqs meanwhile. */
static void
entry_put(struct announced *e, const struct announcement *a)
{
	const uint64_t seq = shm_load(&e->seq) | 1;

	shm_store(&e->seq, seq);
	/* odd before the first change.  Pairs with announce_get()'s second read of seq. */
	shm_mb();
	shm_store(&e->seen_ms, a->seen_ms);
	shm_store(&e->role, (uint64_t)a->role);
	text_put(e->http, a->http);
	text_put(e->kv, a->kv);
	/* Even after the last change.  Pairs with announce_get()'s first read of seq. */
	shm_store_release(&e->seq, seq + 1);
}

void
announce_begin(struct seg *seg)
{
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++)
		entry_put(&seg->announced[i], &(struct announcement){.role = ROLE_PREFILL});
}

bool
announce_put(struct seg *seg, const struct announcement *a, uint64_t forget_ms, bool *ret_full)
{
	struct announced *room = NULL;
	bool news;

	*ret_full = false;
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++) {
		struct announced *e = &seg->announced[i];

		if (e->seen_ms != 0 && e->role == (uint64_t)a->role &&
			strncmp(e->http, a->http, sizeof(e->http)) == 0) {
			news = strncmp(e->kv, a->kv, sizeof(e->kv)) != 0 ||
			       a->seen_ms > e->seen_ms + forget_ms;
			entry_put(e, a);
			return news;
		}
		if (room == NULL && (e->seen_ms == 0 || a->seen_ms > e->seen_ms + forget_ms ||
					    is_ahead(e->seen_ms, a->seen_ms)))
			room = e;
	}
	*ret_full = room == NULL;
	if (room != NULL)
		entry_put(room, a);
	return room != NULL;
}

bool
announce_get(const struct seg *seg, uint32_t i, struct announcement *ret)
{
	const struct announced *e = &seg->announced[i];
	uint64_t role;

	for (int tries = 0; tries < TRIES; tries++) {
		/* Pairs with entry_put()'s release. */
		const uint64_t seq = shm_load_acquire(&e->seq);

		ret->seen_ms = shm_load(&e->seen_ms);
		role = shm_load(&e->role);
		ret->role = (enum role)role;
		text_get(e->http, ret->http);
		text_get(e->kv, ret->kv);
		shm_mb(); /* our loads before the second read.  Pairs with entry_put()'s barrier. */
		if (seq % 2 == 0 && shm_load(&e->seq) == seq)
			return ret->seen_ms != 0 &&
			       !suspect(SUSPECT_ANNOUNCEMENTS, i, role >= ROLE_N);
	}
	return false;
}
