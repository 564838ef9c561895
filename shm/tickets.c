/* As in settings.c: there is one writer, and seq is odd while it writes. */
#include "shm/tickets.h"

#include <assert.h>
#include <string.h>

#include "shm/base/rnd.h"
#include "shm/core/atomic.h"

static_assert(sizeof(struct ticket_key) == TICKET_WORDS * sizeof(uint64_t), "copied word by word");

void
tickets_keep(struct seg *seg, uint64_t now_ms)
{
	struct tickets *t = seg->tickets;
	const uint64_t seq = shm_load(&t->seq);

	if (seq != 0 && now_ms < shm_load(&t->since_ms) + TICKETS_MS)
		return;
	shm_store(&t->seq, seq + 1);
	/* odd before the first change.  Pairs with tickets_get()'s barrier. */
	shm_mb();
	shm_store(&t->since_ms, now_ms);
	for (size_t i = 0; i < TICKET_WORDS; i++) {
		/* at first no key is the former one: zeros would open whatever a stranger seals with zeros */
		shm_store(&t->word[1][i], seq == 0 ? rnd_u64() : shm_load(&t->word[0][i]));
		shm_store(&t->word[0][i], rnd_u64());
	}
	/* Even after the last change.  Pairs with tickets_get()'s first load. */
	shm_store_release(&t->seq, seq + 2);
}

bool
tickets_get(const struct seg *seg, struct ticket_key ret[TICKET_KEYS])
{
	const struct tickets *t = seg->tickets;
	const uint64_t seq = shm_load_acquire(&t->seq);
	uint64_t words[TICKET_KEYS][TICKET_WORDS];

	if (seq == 0 || seq % 2 != 0)
		return false;
	for (size_t k = 0; k < TICKET_KEYS; k++)
		for (size_t i = 0; i < TICKET_WORDS; i++)
			words[k][i] = shm_load(&t->word[k][i]);
	shm_mb(); /* the words before the second read of seq.  Pairs with tickets_keep()'s barrier. */
	if (shm_load(&t->seq) != seq)
		return false;
	memcpy(ret, words, sizeof(words));
	explicit_bzero(words, sizeof(words));
	return true;
}
