#include "worker/attempt/branches.h"

#include <string.h>

#include "shm/metrics.h"
#include "worker/attempt/attempt.h"
#include "worker/attempt/resume.h"
#include "worker/attempt/suspects.h"
#include "worker/base/core.h"
#include "worker/handshake/connector.h"

void
branches_go_direct(struct job *job, const char *direct, const char *why)
{
	answer_free(&job->answer);
	memset(&job->how, 0, sizeof(job->how));
	job->takes_prefill = job->needs_prefill = false;
	job->ops->reset(job);
	job->connector = &connector_direct;
	for (uint32_t i = 1; i < job->nbranches; i++)
		suspects_forget(&job->branches[i]);
	job->nbranches = job->facts.parts = 1;
	job->branches[0].prompt = (struct span){NULL, 0};
	job->branches[0].seeded = false;
	job->direct = direct;
	job->detail = why;
	job->rescue = RESCUE_FALLBACK;
	metric_add(job->w->slab, M_DIRECT, 1);
}

/* The engines have their requests: drops the client's bytes and what was made of them. */
static void
drop_text(struct job *job)
{
	if (job->connector->info->cleanup == CLEANUP_ABORT)
		/* the job's engines may be sent an abort later */
		job->key = text_copy_key(job->text);
	text_unref(&job->text);
	for (uint32_t i = 0; i < job->nbranches; i++) {
		attempt_drop_text(job->branches[i].attempt);
		if (job_started(job)) /* the client has it */
			leg_forget_head(&job->branches[i].attempt->leg[LEG_DECODE]);
	}
	if (job->resume != NULL) /* last: it sees who else has the text */
		resume_keep(job);
}

void
branches_drop_text_if_sent(struct job *job)
{
	if (job->text == NULL || (!job_started(job) && job->facts.pool->rescue.retries > 0))
		return; /* a whole answer may break off, and then the request is sent again */
	for (uint32_t i = 0; i < job->nbranches; i++) {
		const struct attempt *a = job->branches[i].attempt;
		const struct leg *d = &a->leg[LEG_DECODE];

		if (leg_active(&a->leg[LEG_PREFILL]) || a->withheld == WITHHELD_SPECULATION)
			return;
		if (job->resume != NULL && !a->output_started && !attempt_decode_complete(a))
			return; /* nor has an attempt that continues a stream sent anything yet */
		if (leg_active(d) ? !leg_sent(d) || d->progress != LEG_BEGUN
				  : !attempt_decode_complete(a))
			return;
	}
	drop_text(job);
}
