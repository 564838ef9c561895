#include "shm/ring.h"

#include <string.h>

#include "shm/core/atomic.h"

static void
copy_in(struct byte_ring *ring, uint32_t size, uint64_t at, const void *from, size_t n)
{
	unsigned char *data = (unsigned char *)(ring + 1);
	const size_t begin = (size_t)(at % size);
	const size_t first = n < size - begin ? n : size - begin;

	memcpy(data + begin, from, first);
	memcpy(data, (const unsigned char *)from + first, n - first);
}

bool
ring_put(struct byte_ring *ring, uint32_t size, const void *record, uint32_t bytes)
{
	const uint64_t written = shm_load(&ring->written);
	/* The reader has copied what is before `read`.  Pairs with ring_done(). */
	const uint64_t used = written - shm_load_acquire(&ring->read);

	if (used > size || size - used < bytes) /* above `size`: the reader repairs it */
		return false;
	copy_in(ring, size, written, record, bytes);
	/* The record's bytes come first.  Pairs with ring_end(). */
	shm_store_release(&ring->written, written + bytes);
	return true;
}

uint64_t
ring_begin(const struct byte_ring *ring)
{
	return shm_load(&ring->read);
}

uint64_t
ring_end(const struct byte_ring *ring)
{
	/* The bytes before it are records.  Pairs with ring_put(). */
	return shm_load_acquire(&ring->written);
}

void
ring_copy(const struct byte_ring *ring, uint32_t size, uint64_t at, void *to, size_t n)
{
	const unsigned char *data = (const unsigned char *)(ring + 1);
	const size_t begin = (size_t)(at % size);
	const size_t first = n < size - begin ? n : size - begin;

	memcpy(to, data + begin, first);
	memcpy((unsigned char *)to + first, data, n - first);
}

void
ring_done(struct byte_ring *ring, uint64_t at)
{
	/* The copies are made: the writer may overwrite the bytes.  Pairs with ring_put(). */
	shm_store_release(&ring->read, at);
}
