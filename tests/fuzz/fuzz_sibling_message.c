/*
 * proto/sibling_message: the input is a message without its MAC.
 *
 * Held against it: what is read has as many loads and notes as it says, no note has more digests than one can have, and the
 * same written again is the same bytes.
 */
#include "proto/wire/sibling_message.h"

#include "tests/fuzz/check.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static unsigned char again[SIBLING_MESSAGE_MAX];
	char *copy = exact_copy(data, size);
	struct sibling_message m, head;
	struct sibling_writer w;
	struct wire_load l;
	struct wire_note n;
	uint32_t loads = 0, notes = 0;

	if (sibling_message_read(copy, size, &m)) {
		head = m;
		sibling_write_begin(&w, again);
		for (; sibling_message_load(&m, &l); loads++)
			CHECK(sibling_write_load(&w, &l));
		for (; sibling_message_note(&m, &n); notes++) {
			CHECK(n.n > 0 && n.n <= SIBLING_MESSAGE_DIGESTS);
			CHECK(sibling_write_note(&w, &n));
		}
		CHECK(loads == head.nloads && notes == head.nnotes);
		CHECK(sibling_write_end(&w, &head) == size);
		CHECK(memcmp(again, copy, size) == 0);
	}
	free(copy);
	return 0;
}
