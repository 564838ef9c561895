/* Messages of other routers: what is written is read, and what is cut off, too long or absurd is not. */
#include "proto/wire/sibling_message.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static unsigned char message[SIBLING_MESSAGE_MAX];
static const struct sibling_message head = {
	.sender = 0x0102030405060708, .life = 42, .number = 7, .sent_us = UINT64_MAX - 1};

/* Two loads, a note of one digest, and one of all that a note may have. */
static size_t
compose(void)
{
	struct wire_note note = {.engine = 11, .computes = 100, .n = 1, .digest = {~UINT64_C(0)}};
	struct sibling_writer w;

	sibling_write_begin(&w, message);
	cr_assert(sibling_write_load(&w, &(struct wire_load){9, 3, 4000}));
	cr_assert(sibling_write_load(&w, &(struct wire_load){10, UINT32_MAX, UINT32_MAX}));
	cr_assert(sibling_write_note(&w, &note));
	note.n = SIBLING_MESSAGE_DIGESTS;
	for (uint32_t i = 0; i < note.n; i++)
		note.digest[i] = i * UINT64_C(0x0101010101010101);
	cr_assert(sibling_write_note(&w, &note));
	return sibling_write_end(&w, &head);
}

/* Reads a copy of exactly n bytes, so that ASan sees a byte too many. */
static bool
reads(const unsigned char *bytes, size_t n)
{
	unsigned char *copy = calloc(1, n > 0 ? n : 1);
	struct sibling_message m;
	struct wire_load l;
	struct wire_note note;
	bool ok;

	memcpy(copy, bytes, n);
	ok = sibling_message_read(copy, n, &m);
	while (ok && sibling_message_load(&m, &l))
		;
	while (ok && sibling_message_note(&m, &note))
		cr_assert_leq(note.n, SIBLING_MESSAGE_DIGESTS);
	free(copy);
	return ok;
}

Test(sibling_message, what_is_written_is_read)
{
	const size_t n = compose();
	struct sibling_message m;
	struct wire_load l;
	struct wire_note note;

	cr_assert(sibling_message_read(message, n, &m));
	cr_expect(m.sender == head.sender && m.life == 42 && m.number == 7);
	cr_expect_eq(m.sent_us, UINT64_MAX - 1);
	cr_assert_eq(m.nloads, 2);
	cr_assert_eq(m.nnotes, 2);
	cr_assert_not(sibling_message_note(&m, &note), "loads come first");
	cr_assert(sibling_message_load(&m, &l));
	cr_expect(l.engine == 9 && l.requests == 3 && l.tokens == 4000);
	cr_assert(sibling_message_load(&m, &l));
	cr_expect(l.requests == UINT32_MAX && l.tokens == UINT32_MAX);
	cr_assert_not(sibling_message_load(&m, &l));
	cr_assert(sibling_message_note(&m, &note));
	cr_expect(note.engine == 11 && note.computes == 100 && note.n == 1);
	cr_expect_eq(note.digest[0], UINT64_MAX);
	cr_assert(sibling_message_note(&m, &note));
	cr_expect_eq(note.n, SIBLING_MESSAGE_DIGESTS);
	cr_expect_eq(note.digest[63], 63 * UINT64_C(0x0101010101010101));
	cr_assert_not(sibling_message_note(&m, &note));
}

Test(sibling_message, nothing_but_whole_messages)
{
	const size_t n = compose();

	cr_assert(reads(message, n));
	for (size_t cut = 0; cut < n; cut++)
		cr_assert_not(reads(message, cut), "%zu bytes", cut);
	cr_assert_not(reads(message, n + 1), "a byte too many");
	for (size_t i = 0; i < 8; i++) { /* the word at the start, the version, zeros */
		message[i] ^= 0x20;
		cr_assert_not(reads(message, n), "byte %zu", i);
		message[i] ^= 0x20;
	}
	for (size_t i = 40; i < SIBLING_MESSAGE_HEAD; i++) { /* the counts */
		message[i] ^= 0x80;
		cr_assert_not(reads(message, n), "byte %zu", i);
		message[i] ^= 0x80;
	}
	memset(message + n - 8 * SIBLING_MESSAGE_DIGESTS - 4, 0, 4);
	cr_assert_not(reads(message, n), "a note without digests");
}

/* As many as fit, and not a byte more. */
Test(sibling_message, a_full_one)
{
	struct wire_note note = {.n = 3};
	struct sibling_writer w;
	uint32_t n = 0;

	sibling_write_begin(&w, message);
	while (sibling_write_note(&w, &note))
		n++;
	cr_assert_not(sibling_write_note(&w, &note));
	while (sibling_write_load(&w, &(struct wire_load){1, 1, 1}))
		;
	cr_assert_leq(sibling_write_end(&w, &head), SIBLING_MESSAGE_MAX - SIBLING_MESSAGE_MAC);
	cr_assert_gt(n, SIBLING_MESSAGE_MAX / 40 - 3);
}
