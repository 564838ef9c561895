#include "worker/attempt/rewrite.h"

#include <string.h>

#include "worker/attempt/job.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/handshake/connector.h"

static bool
truthy(const struct splice_seg *v)
{
	return v->n == 4 && memcmp(v->p, "true", 4) == 0;
}

void
rewrite_plan(struct job *job)
{
	struct answer_how how = {
		.shape = job->facts.route == ROUTE_GENERATE ? ANSWER_GENERATE : ANSWER_OPENAI,
		.chat = job->facts.route == ROUTE_CHAT,
		.stream = job->facts.stream,
		.parts = job->nbranches,
		.cached_from_prefill = job->facts.pool->shake.cached_tokens_from == ROLE_PREFILL &&
				       !route_is_agent(job->facts.route)};
	const struct connector *c = job->connector;
	const struct demand d = {&job->facts, job->text};
	char id[CONNECTOR_ANSWER_ID];
	const struct splice_member *options = splice_find(job->text->doc, SK_STREAM_OPTIONS);
	struct splice_seg v;

	answer_free(&job->answer);
	memset(&job->how, 0, sizeof(job->how));
	job->takes_prefill = job->needs_prefill = false;
	if (c->starts[ROLE_PREFILL] == STARTS_NEVER && job->nbranches == 1)
		return; /* one engine's answer passes unchanged */
	if (options != NULL && options->type == ST_OBJECT) {
		const char *p = job->text->doc->text + options->val;
		size_t n = options->end - options->val;

		how.usage = splice_member_raw(p, n, "include_usage", &v) == 1 && truthy(&v);
		how.continuous_usage =
			splice_member_raw(p, n, "continuous_usage_stats", &v) == 1 && truthy(&v);
	}
	if (job->resume != NULL)
		/* the rewriter removes usage that the client did not request */
		how.usage = how.continuous_usage = true;
	how.samples = c->samples != NULL && c->samples(job->facts.pool) == SEVERAL_BRANCHES &&
				      job->facts.samples > 0
			      ? job->facts.samples
			      : 1;
	how.choices = how.samples == 1 && job->facts.samples > 1 ? job->facts.samples : 1;
	if (!(c->rewrites != NULL && c->rewrites(&d, &how, id)) && !how.cached_from_prefill &&
		job->nbranches == 1)
		return;
	job->takes_prefill =
		how.first_token || how.cached_from_prefill || how.shape == ANSWER_GENERATE;
	job->needs_prefill = job->takes_prefill && c->starts[ROLE_DECODE] == STARTS_AT_ONCE;
	job->answer = answer_new(&how, job->w->conf->live.max_answer);
	how.id = how.id == NULL ? NULL : ""; /* the answer has a copy */
	job->how = how;
}

bool
rewrite_without_first_token(struct job *job)
{
	struct answer_how how;
	char id[CONNECTOR_ANSWER_ID];

	if (job->nbranches > 1)
		return false; /* first tokens of other branches may have been sent to the client */
	answer_free(&job->answer);
	job->how.first_token = false;
	job->takes_prefill = job->how.cached_from_prefill;
	how = job->how;
	if (how.id != NULL)
		how.id = connector_answer_id(&(struct demand){&job->facts, job->text}, id);
	job->answer = answer_new(&how, job->w->conf->live.max_answer);
	return true;
}
