/* Exemplars: the last trace of each bucket; words of different requests are no exemplar. */
#include "shm/exemplar.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/metrics.h"
#include "tests/unit/shm/fixture.h"

#define A "0123456789abcdef0123456789abcdef"
#define B "fedcba9876543210fedcba9876543210"

TestSuite(shm_exemplar, .init = small_seg, .fini = small_seg_end);

static const struct exemplar first = {.trace = A, .us = 40000, .at_ms = 1700000000123};

Test(shm_exemplar, the_last_trace_of_a_bucket_is_kept)
{
	const struct exemplar later = {.trace = B, .us = 41000, .at_ms = 1700000000456};
	const unsigned bucket = metric_bucket(first.us);
	struct exemplar got;

	cr_assert_not(exemplar_get(seg, 1, H_TTFT, bucket, &got));
	cr_assert_str_empty(got.trace);
	exemplar_put(seg, 1, H_TTFT, &first);
	cr_assert(exemplar_get(seg, 1, H_TTFT, bucket, &got));
	cr_assert_str_eq(got.trace, A);
	cr_assert(got.us == first.us && got.at_ms == first.at_ms);
	exemplar_put(seg, 1, H_TTFT, &later);
	cr_assert(exemplar_get(seg, 1, H_TTFT, bucket, &got));
	cr_assert_str_eq(got.trace, B);
}

Test(shm_exemplar, pools_histograms_and_buckets_are_apart)
{
	const struct exemplar longest = {.trace = B, .us = UINT64_C(601000000), .at_ms = 1};
	struct exemplar got;

	exemplar_put(seg, 1, H_DURATION, &first);
	exemplar_put(seg, 1, H_DURATION, &longest);
	exemplar_put(seg, 1, H_GAP, &first); /* has none */
	exemplar_put(seg, METRIC_NO_POOL, H_TTFT, &first);
	for (unsigned i = 0; i <= METRIC_BUCKETS; i++) {
		const bool filled = i == metric_bucket(first.us) || i == METRIC_BUCKETS;

		cr_assert_eq(exemplar_get(seg, 1, H_DURATION, i, &got), filled, "bucket %u", i);
		cr_assert_not(exemplar_get(seg, 1, H_TTFT, i, &got));
		cr_assert_not(exemplar_get(seg, 1, H_GAP, i, &got));
		cr_assert_not(exemplar_get(seg, 0, H_DURATION, i, &got));
	}
}

Test(shm_exemplar, no_word_can_be_of_another_request)
{
	const struct exemplar later = {.trace = B, .us = 41000, .at_ms = 1700000000456};
	uint64_t *words = (uint64_t *)seg->exemplars, kept[5];
	struct exemplar got;

	exemplar_put(seg, 0, H_TTFT, &first);
	words += (size_t)metric_bucket(first.us) * 5;
	memcpy(kept, words, sizeof(kept));
	exemplar_put(seg, 0, H_TTFT, &later);
	for (unsigned torn = 1; torn < 31; torn++) {
		uint64_t now[5];

		memcpy(now, words, sizeof(now));
		for (unsigned i = 0; i < 5; i++)
			if (torn >> i & 1)
				words[i] = kept[i];
		cr_assert_not(exemplar_get(seg, 0, H_TTFT, metric_bucket(first.us), &got),
			"words 0x%x of the one before", torn);
		memcpy(words, now, sizeof(now));
	}
	cr_assert(exemplar_get(seg, 0, H_TTFT, metric_bucket(first.us), &got));
}

static bool
is_same(const struct exemplar *a, const struct exemplar *b)
{
	return strcmp(a->trace, b->trace) == 0 && a->us == b->us && a->at_ms == b->at_ms;
}

/* Two writers of one bucket, one of which is killed; whatever is read was written by one call. */
Test(shm_exemplar, writers_at_once_and_a_killed_one)
{
	const struct exemplar each[] = {first, {.trace = B, .us = 41000, .at_ms = 5}};
	const unsigned bucket = metric_bucket(first.us);
	struct exemplar got;
	pid_t pid[2];

	for (int i = 0; i < 2; i++) {
		pid[i] = fork();
		if (pid[i] == 0)
			(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failure leaves nobody behind */
		while (pid[i] == 0)
			exemplar_put(seg, 0, H_TTFT, &each[i]);
	}
	for (int n = 0; n < 200000; n++) {
		if (!exemplar_get(seg, 0, H_TTFT, bucket, &got))
			continue;
		cr_assert(is_same(&got, &each[0]) || is_same(&got, &each[1]));
	}
	for (int i = 0; i < 2; i++) {
		(void)kill(pid[i], SIGKILL);
		cr_assert_eq(waitpid(pid[i], NULL, 0), pid[i]);
	}
	exemplar_put(seg, 0, H_TTFT, &first);
	cr_assert(exemplar_get(seg, 0, H_TTFT, bucket, &got));
}
