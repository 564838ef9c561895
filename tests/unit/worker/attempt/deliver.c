/* Events that wait for a slow client: what happens when the client reads again. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/conf.h"
#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/deliver.h"
#include "worker/attempt/resume.h"
#include "worker/base/buffered.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/handshake/connector.h"
#include "tests/unit/shm/fixture.h"

static size_t sent;
static bool ended, over;

static void
events(struct job *job, const char *p, size_t n)
{
	(void)p;
	job->sent = SENT_WHOLE;
	sent += n;
}

static void
end_events(struct job *job)
{
	(void)job;
	ended = true;
}

static bool
full(const struct job *job)
{
	(void)job;
	return sent > 0; /* the last events have filled the socket again */
}

static void
end(struct job *job, enum req_end why)
{
	cr_assert(why == END_OK);
	job->sent = SENT_ALL;
	over = true;
}

Test(deliver, the_last_events_fill_the_socket_again_and_the_answer_ends_nevertheless,
	.init = small_seg, .fini = small_seg_end)
{
	static const struct job_ops ops = {
		.events = events, .end_events = end_events, .full = full, .end = end};
	static const char last[] = "data: {\"choices\":[]}\n\n";
	static const char ask[] = "{\"stream\":true,\"messages\":[{\"role\":\"user\"}]}";
	static struct conf conf = {.live = {.max_answer = 1 << 20, .max_buffered = 1 << 20}};
	static struct metrics_slab slab;
	static struct worker w = {.conf = &conf, .slab = &slab};
	static struct branch b;
	static struct req_pool pool;
	struct attempt *a = mem_zero(sizeof(*a) + LEG_LOOKUP * sizeof(a->leg[0]));
	static struct job job = {.w = &w,
		.ops = &ops,
		.connector = &connector_direct,
		.branches = &b,
		.nbranches = 1};

	w.seg = seg;
	/* a stream that is followed: its events are not passed as they come */
	job.text = text_new(&w);
	job.text->body = block_copy(&w.blocks, ask, sizeof(ask) - 1);
	job.text->body_len = job.text->body_cap = sizeof(ask) - 1;
	buffered_add(&w, (int64_t)job.text->body_cap);
	cr_assert_null(text_scan(job.text));
	pool = (struct req_pool){.refs = 1, .rescue.resume = 1};
	job.facts = (struct facts){.route = ROUTE_CHAT, .stream = true, .pool = &pool};
	resume_plan(&job);
	cr_assert_not_null(job.resume, "%s", job.not_resumed);
	b.job = &job;
	b.attempt = a;
	*a = (struct attempt){.w = &w,
		.branch = &b,
		.decode = DECODE_WITHHELD,
		.withheld = WITHHELD_SLOW_CLIENT,
		.t = {.connector = &connector_direct},
		.nlegs = LEG_LOOKUP};
	a->leg[LEG_DECODE] = (struct leg){.w = &w, .owner = a, .state = LEG_DONE, .status = 200};
	membuf_add(&a->event, last, sizeof(last) - 1);
	deliver_drained(&job);
	cr_assert(sent == sizeof(last) - 1);
	cr_assert(ended && over, "the engine has said all, so no other event will end the answer");
	resume_free(&job);
	text_unref(&job.text);
	free(a);
}
