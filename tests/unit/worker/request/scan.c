/* Long bodies are scanned in turns of the loop. */
#include "worker/request/scan.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/request/req.h"

#define STEPS 4 /* of a body */
#define N 3

static struct worker w;
static struct req reqs[N];
static unsigned done, turns[N], turn;

static void
scanned(struct req *req, const char *why)
{
	cr_assert_null(why);
	cr_assert_not_null(req->job.text->doc);
	cr_assert_null(req->scan);
	turns[req - reqs] = turn;
	done++;
}

static void
begin(struct req *req)
{
	const size_t n = STEPS * SCAN_STEP - 1;
	struct text *text = text_new(&w);

	text->body = malloc(n);
	memset(text->body, ' ', n);
	memcpy(text->body, "{\"a\":\"", 6);
	memset(text->body + 6, 'x', n - 8);
	memcpy(text->body + n - 2, "\"}", 2);
	text->body_len = n;
	*req = (struct req){.w = &w, .job.text = text};
	scan_begin(req, scanned);
}

static void
setup(void)
{
	w = (struct worker){.base = event_base_new()};
	scan_init(&w);
	done = turn = 0;
	for (size_t i = 0; i < N; i++)
		begin(&reqs[i]);
}

static void
teardown(void)
{
	for (size_t i = 0; i < N; i++) {
		scan_end(&reqs[i]);
		free(reqs[i].job.text->body);
		text_drop_doc(reqs[i].job.text);
		free(reqs[i].job.text);
	}
	cr_assert_eq(event_base_get_num_events(w.base, EVENT_BASE_COUNT_ADDED), 0);
	event_base_free(w.base);
}

TestSuite(scan, .init = setup, .fini = teardown);

static void
pass_turns(unsigned most)
{
	while (done < most) {
		turn++;
		cr_assert_eq(event_base_loop(w.base, EVLOOP_ONCE), 0);
	}
}

Test(scan, several_bodies_take_turns)
{
	pass_turns(N);
	for (unsigned i = 0; i < N; i++)
		cr_expect_eq(turns[i], (STEPS - 1) * N + i + 1, "%u", turns[i]);
}

Test(scan, one_that_ends_does_not_hold_up_the_others)
{
	turn = 1;
	cr_assert_eq(event_base_loop(w.base, EVLOOP_ONCE), 0);
	scan_end(&reqs[1]); /* it would be the next one */
	pass_turns(N - 1);
	cr_expect_eq(turns[1], 0);
	cr_expect_eq(turns[0], (STEPS - 1) * (N - 1) + 1);
	cr_expect_eq(turns[2], STEPS * (N - 1));
}
