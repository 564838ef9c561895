/* The request's state table, and what each way to end promises. */
#include <criterion/criterion.h>
#include <string.h>

#include "worker/net/leg.h"
#include "worker/request/request.h"

Test(req, no_cell_is_empty)
{
	for (int s = 0; s < REQ_NSTATES; s++)
		for (int e = 0; e < RQ_N; e++)
			cr_assert(req_handles(s, e), "state %s, event %d", req_state_name(s), e);
}

Test(leg, no_cell_is_empty)
{
	for (int s = 0; s < LEG_NSTATES; s++)
		cr_assert(leg_handles(s), "state %d", s);
}

Test(req, end_words_are_unique_label_values)
{
	for (int a = 0; a < END_N; a++) {
		cr_assert(
			strspn(end_word(a), "abcdefghijklmnopqrstuvwxyz_") == strlen(end_word(a)));
		for (int b = 0; b < a; b++)
			cr_assert(strcmp(end_word(a), end_word(b)) != 0, "%s twice", end_word(a));
	}
}
