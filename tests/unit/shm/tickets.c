/* Ticket keys: when they are drawn, that the one before stays, and that no reader gets half of a change. */
#include "shm/tickets.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/shm/fixture.h"

TestSuite(shm_tickets, .init = small_seg, .fini = small_seg_end);

static bool
equal(const struct ticket_key *a, const struct ticket_key *b)
{
	return memcmp(a, b, sizeof(*a)) == 0;
}

Test(shm_tickets, a_key_is_the_newest_and_then_the_one_before)
{
	static const struct ticket_key zeros;
	struct ticket_key first[TICKET_KEYS], next[TICKET_KEYS];

	cr_assert_not(tickets_get(seg, first), "none were drawn");
	tickets_keep(seg, 7);
	cr_assert(tickets_get(seg, first));
	cr_assert_not(equal(&first[1], &zeros), "anybody could seal a ticket with it");
	cr_assert_not(equal(&first[1], &first[0]));
	tickets_keep(seg, 6 + TICKETS_MS);
	cr_assert(tickets_get(seg, next));
	cr_assert(equal(&next[0], &first[0]), "not due yet");
	tickets_keep(seg, 7 + TICKETS_MS);
	cr_assert(tickets_get(seg, next));
	cr_assert(equal(&next[1], &first[0]));
	cr_assert_not(equal(&next[0], &first[0]));
	tickets_keep(seg, 7 + 2 * TICKETS_MS);
	cr_assert(tickets_get(seg, first));
	cr_assert(equal(&first[1], &next[0]));
}

Test(shm_tickets, no_reader_gets_half_of_a_change)
{
	struct ticket_key keys[TICKET_KEYS];

	tickets_keep(seg, 1);
	seg->tickets->seq++;
	cr_assert_not(tickets_get(seg, keys));
}
