/* The request's state table, and what each way to end promises. */
#include <criterion/criterion.h>
#include <string.h>

#include "worker/attempt/attempt.h"
#include "worker/net/connpool.h"
#include "worker/request/client.h"
#include "worker/request/req.h"
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

/* What lasts as long as a stream does.  Bytes that one state needs are allocated for that state; texts have their own
 * length. */
Test(req, a_stream_takes_little_memory)
{
	cr_assert_leq(sizeof(struct req), 704);
	cr_assert_leq(sizeof(struct attempt) + LEG_LOOKUP * sizeof(struct leg), 1288);
	cr_assert_leq(sizeof(struct client), 400);
	cr_assert_leq(sizeof(struct upconn), 304);
}
