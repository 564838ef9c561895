#include "worker/request/spent.h"

#include <stdbool.h>
#include <string.h>

#include "proto/json/json_last.h"
#include "shm/base/mem.h"
#include "worker/request/req.h"

#define NOT_REPORTED UINT64_MAX

void
spent_begin(struct req *req)
{
	if (req->key != NULL && req->key->terms.tokens_per_minute != 0 &&
		route_spends(req->job.facts.route))
		req->key->tail = MEM_NEW(struct spent_tail);
}

/* An event that ends with its choices has no usage behind them, and nearly all events of a stream are such. */
void
spent_note(struct req *req, const char *p, size_t n)
{
	static const char choices_end[] = "]}\n\n";
	const size_t len = sizeof(choices_end) - 1;
	struct spent_tail *t = req->key != NULL ? req->key->tail : NULL;
	size_t kept;

	if (t == NULL || n == 0)
		return;
	t->bytes += n;
	if (n >= len && memcmp(p + n - len, choices_end, len) == 0)
		return;
	if (n >= SPENT_TAIL) {
		memcpy(t->text, p + n - SPENT_TAIL, SPENT_TAIL);
		t->n = SPENT_TAIL;
		return;
	}
	kept = t->n + n <= SPENT_TAIL ? t->n : SPENT_TAIL - n;
	memmove(t->text, t->text + t->n - kept, kept);
	memcpy(t->text + kept, p, n);
	t->n = kept + n;
}

static uint64_t
number_of(const struct spent_tail *t, const struct json_name *name)
{
	const char *p = json_last(t->text, t->n, name), *const end = t->text + t->n;
	uint64_t value = 0;

	while (p != NULL && p < end && *p == ' ')
		p++;
	if (p == NULL || p == end || *p < '0' || *p > '9')
		return NOT_REPORTED;
	for (; p < end && *p >= '0' && *p <= '9' && value <= UINT32_MAX; p++)
		value = value * 10 + (uint64_t)(*p - '0');
	return value;
}

/* By one of two names: Anthropic's paths and OpenAI's Responses have the second. */
static uint64_t
reported(const struct spent_tail *t, const struct json_name names[2])
{
	const uint64_t n = number_of(t, &names[0]);

	return n != NOT_REPORTED ? n : number_of(t, &names[1]);
}

/* Or it would have been: a client that leaves before its answer has used the engines. */
static bool
answered(const struct req *req)
{
	return req->status == 200 || (req->status == 0 && req->job.nbranches > 0);
}

/* Of an answer without a number of its tokens.  One in one piece that has a usage has one without completions:
 * embeddings. */
static uint64_t
estimate(const struct req *req, bool has_usage)
{
	if (req->relay == RELAY_STREAM)
		return req->events;
	return has_usage ? 0 : req->key->tail->bytes / SPENT_BYTES_PER_TOKEN;
}

struct spent
spent_of(const struct req *req)
{
	static const struct json_name prompt[] = {
		{"\"prompt_tokens\":", 16, 1 /* p */}, {"\"input_tokens\":", 15, 3 /* p */}};
	static const struct json_name completion[] = {
		{"\"completion_tokens\":", 20, 14 /* k */}, {"\"output_tokens\":", 16, 4 /* p */}};
	const struct spent_tail *tail = req->key != NULL ? req->key->tail : NULL;
	struct spent s = {0, 0};

	if (tail == NULL || !answered(req))
		return s;
	s.prompt = reported(tail, prompt);
	s.completion = reported(tail, completion);
	if (s.completion == NOT_REPORTED)
		s.completion = estimate(req, s.prompt != NOT_REPORTED);
	if (s.prompt == NOT_REPORTED)
		s.prompt = req->job.facts.tokens;
	return s;
}
