#include "worker/attempt/job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/metrics.h"
#include "worker/base/core.h"
#include "worker/base/text.h"
#include "worker/handshake/connector.h"

void
job_init(struct job *job, struct worker *w, const struct job_ops *ops)
{
	job->w = w;
	job->ops = ops;
	job->text = text_new(w);
	facts_init(&job->facts);
}

void
job_free(struct job *job)
{
	text_unref(&job->text);
	free(job->branches);
	answer_free(&job->answer);
	free(job->key);
	facts_fini(&job->facts);
}

void
job_make_branches(struct job *job, uint32_t n)
{
	job->branches = mem_array(n, sizeof(*job->branches));
	job->nbranches = n;
	job->facts.parts = n;
	for (uint32_t i = 0; i < n; i++) {
		job->branches[i].job = job;
		job->branches[i].index = i;
	}
}

/* Reads the client's seed.  Returns false if there is none or if the engine will refuse it. */
static bool
seed_of(const struct splice *doc, uint64_t *ret)
{
	const struct splice_member *m = splice_find(doc, SK_SEED);
	char *end;

	if (m == NULL || m->type != ST_NUMBER)
		return false;
	errno = 0;
	*ret = (uint64_t)strtoll(doc->text + m->val, &end, 10);
	return errno == 0 && end == doc->text + m->end;
}

void
job_share_out(struct job *job)
{
	const struct splice *doc = job->text->doc;
	const struct splice_member *prompt = splice_find(doc, SK_PROMPT);
	const bool split = job->connector->samples != NULL &&
			   job->connector->samples(job->facts.pool) == SEVERAL_BRANCHES;
	const uint32_t samples = split && job->facts.samples > 1 ? job->facts.samples : 1;
	struct splice_seg list, one;
	uint64_t seed = 0;
	bool seeded;
	size_t at = 0;

	if (job->nbranches == 1)
		return;
	seeded = samples > 1 && seed_of(doc, &seed);
	metric_add(job->w->slab, M_FANNED, job->nbranches);
	for (uint32_t i = 0; i < job->nbranches; i++) {
		struct branch *branch = &job->branches[i];

		if (samples < job->nbranches && i % samples == 0) {
			list = (struct splice_seg){
				doc->text + prompt->val, prompt->end - prompt->val};
			(void)splice_element(&list, &at, &one);
		}
		if (samples < job->nbranches)
			branch->prompt = (struct span){one.p, one.n};
		/* engines too give each sample of a seeded request its own seed (vllm
		 * parallel_sampling.py) */
		branch->seeded = seeded;
		/* after the highest seed follows the lowest */
		branch->seed = (int64_t)(seed + i % samples);
	}
}

char *
job_copy_key(const struct job *job)
{
	if (job->text != NULL)
		return text_copy_key(job->text);
	return mem_strndup(
		job->key == NULL ? "" : job->key, job->key == NULL ? 0 : strlen(job->key));
}
