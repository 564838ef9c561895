#include "shm/siblings.h"

#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "shm/core/atomic.h"
#include "shm/core/suspect.h"
#include "shm/load.h"
#include "shm/metrics.h"
#include "shm/ring.h"

#define HEAD offsetof(struct sibling_note, digest)
#define DIGEST sizeof(uint64_t)
#define OTHER_WORDS (sizeof(struct sibling) / sizeof(uint64_t))
#define ROW_MAX 65536u

static_assert(sizeof(struct sibling_note) == HEAD + PREFIX_CUTS * DIGEST, "no padding");
static_assert(OTHER_WORDS <= SIBLING_WORDS, "they fit");

/* --- rings --------------------------------------------------------------------------------------- */

void
sibling_note_put(struct seg *seg, uint32_t worker, const struct prefix_key *key, uint32_t ep,
	uint32_t computes)
{
	struct sibling_note note; /* not cleared: it is large, and mostly there are no siblings */

	if (seg->hdr->sibling_bytes == 0 || key->n == 0)
		return;
	note.bytes = (uint32_t)(HEAD + key->n * DIGEST);
	note.ep = ep;
	note.tag = (uint32_t)ep_tag(seg, ep);
	note.computes = computes;
	memcpy(note.digest, key->digest, key->n * DIGEST);
	if (!ring_put(seg_sibling_ring(seg, worker), seg->hdr->sibling_bytes, &note, note.bytes))
		metric_add(seg_slab(seg, worker), M_SIBLING_NOTES_DROPPED, 1);
}

uint64_t
sibling_notes_begin(const struct seg *seg, uint32_t worker)
{
	return ring_begin(seg_sibling_ring(seg, worker));
}

/* Copies the note at a position.  Returns its digests; 0: what is there is none. */
static uint32_t
take(const struct seg *seg, uint32_t worker, uint64_t at, uint64_t left, struct sibling_note *ret)
{
	const struct byte_ring *ring = seg_sibling_ring(seg, worker);
	const uint32_t size = seg->hdr->sibling_bytes;

	if (left > size || left < HEAD + DIGEST)
		return 0;
	ring_copy(ring, size, at, ret, HEAD);
	if (ret->bytes < HEAD + DIGEST || ret->bytes > sizeof(*ret) || ret->bytes > left ||
		ret->bytes % DIGEST != 0 || ret->ep >= seg->hdr->max_endpoints)
		return 0;
	ring_copy(ring, size, at + HEAD, ret->digest, ret->bytes - HEAD);
	return (uint32_t)((ret->bytes - HEAD) / DIGEST);
}

uint32_t
sibling_note_next(struct seg *seg, uint32_t worker, uint64_t *at, struct sibling_note *ret)
{
	const uint64_t written = ring_end(seg_sibling_ring(seg, worker));
	uint32_t n;

	if (written == *at)
		return 0;
	n = take(seg, worker, *at, written - *at, ret);
	if (suspect(SUSPECT_SIBLINGS, worker, n == 0))
		*at = written;
	else
		*at += ret->bytes;
	return n;
}

void
sibling_notes_done(struct seg *seg, uint32_t worker, uint64_t at)
{
	if (sibling_notes_begin(seg, worker) != at)
		ring_done(seg_sibling_ring(seg, worker), at);
}

/* --- engines ------------------------------------------------------------------------------------- */

uint64_t
sibling_hash(const char *text)
{
	const uint64_t h = XXH3_64bits(text, strlen(text));

	return h != 0 ? h : 1;
}

uint64_t
sibling_id(const char *url, enum role role, const char *pool)
{
	const uint64_t of = XXH3_64bits_withSeed(pool, strlen(pool), (uint64_t)role);
	const uint64_t h = XXH3_64bits_withSeed(url, strlen(url), of);

	return h != 0 ? h : 1;
}

void
sibling_engine_put(struct seg *seg, uint32_t ep, uint64_t id, uint32_t row)
{
	if (seg->hdr->sibling_bytes == 0)
		return;
	shm_store(&seg->sibling_engines[ep].row, (uint64_t)row);
	shm_store(&seg->sibling_engines[ep].id, id);
}

uint64_t
sibling_engine_id(const struct seg *seg, uint32_t ep)
{
	return shm_load(&seg->sibling_engines[ep].id);
}

uint32_t
sibling_engine_row(const struct seg *seg, uint32_t ep)
{
	const uint64_t row = shm_load(&seg->sibling_engines[ep].row);

	return row > 0 && row <= ROW_MAX ? (uint32_t)row : 1;
}

/* --- other routers ------------------------------------------------------------------------------- */

void
sibling_put(struct seg *seg, uint32_t i, const struct sibling *o)
{
	uint64_t words[OTHER_WORDS];

	memcpy(words, o, sizeof(words));
	for (size_t k = 0; k < OTHER_WORDS; k++)
		shm_store(&seg->siblings[i].word[k], words[k]);
}

void
sibling_get(const struct seg *seg, uint32_t i, struct sibling *ret)
{
	uint64_t words[OTHER_WORDS] = {0};

	for (size_t k = 0; k < OTHER_WORDS; k++)
		words[k] = shm_load(&seg->siblings[i].word[k]);
	memcpy(ret, words, sizeof(words));
}
