/* Which states of an attempt may exist together: all combinations. */
#include "worker/attempt/attempt.h"

#include <criterion/criterion.h>

static unsigned allowed, seen;

static void
expect(const struct attempt_states *s, bool may, const char *why)
{
	cr_assert_eq(attempt_may_exist(s), may,
		"%s: life %d, lookup %d, prefill %d, decode %d, withheld %d, kv %d", why, s->life,
		s->lookup, s->prefill, s->decode, s->withheld, s->kv);
}

static void
look(const struct attempt_states *s)
{
	const bool known = s->lookup == LOOKUP_NOT_NEEDED || s->lookup == LOOKUP_KNOWN;
	const bool may = attempt_may_exist(s);

	seen++;
	allowed += may;
	if (s->life == ATTEMPT_OVER) {
		expect(s, true, "what is over is not looked at");
		return;
	}
	if ((s->decode == DECODE_WITHHELD) != (s->withheld != WITHHELD_NOT))
		expect(s, false, "an answer is withheld for a reason, and nothing else is");
	if (!known && (s->prefill == PREFILL_SENT || s->decode != DECODE_IDLE))
		expect(s, false, "no leg runs before the lookup is over");
	if (!known && s->life == ATTEMPT_DETACHED)
		expect(s, false, "an attempt without legs holds nothing to release");
	if (s->kv == KV_HELD && s->prefill != PREFILL_ANSWERED)
		expect(s, false, "only an answer tells that KV is held");
	if (s->kv == KV_DELIVERED && s->decode == DECODE_IDLE)
		expect(s, false, "no engine has been sent anything");
	if (s->kv == KV_FETCHED && s->prefill != PREFILL_ANSWERED)
		expect(s, false, "nothing was held that could be fetched");
	if (s->kv == KV_PREDICTED && s->prefill == PREFILL_ANSWERED)
		expect(s, false, "an answer confirms or corrects the prediction");
	if (s->withheld == WITHHELD_SPECULATION && s->life == ATTEMPT_SERVING &&
		s->prefill != PREFILL_SENT)
		expect(s, false, "nothing would ever end the wait: the hang of issue 12");
	if (s->life == ATTEMPT_SERVING && s->decode == DECODE_FAILED)
		expect(s, false, "a failure has been carried out when its event is over");
	if (s->life == ATTEMPT_SERVING && s->prefill == PREFILL_FAILED &&
		(s->decode == DECODE_IDLE || s->decode == DECODE_SENT))
		expect(s, false, "decode would wait for what cannot come");
}

Test(attempt, every_combination_of_states)
{
	for (enum attempt_life l = ATTEMPT_SERVING; l <= ATTEMPT_OVER; l++)
		for (enum lookup_state k = 0; k < LOOKUP_N; k++)
			for (enum prefill_state p = 0; p < PREFILL_N; p++)
				for (enum decode_state d = 0; d < DECODE_N; d++)
					for (enum withheld w = 0; w <= WITHHELD_SLOW_CLIENT; w++)
						for (enum kv_state v = 0; v < KV_N; v++)
							look(&(struct attempt_states){
								l, k, p, d, w, v});
	cr_assert_eq(
		seen, 3u * LOOKUP_N * PREFILL_N * DECODE_N * (WITHHELD_SLOW_CLIENT + 1) * KV_N);
	cr_assert(allowed > 0 && allowed < seen);
}

/* The way of a request that goes well, per kind of hand-shake. */
Test(attempt, what_must_be_possible)
{
	static const struct attempt_states rows[] = {
		{ATTEMPT_SERVING, LOOKUP_DUE, PREFILL_IDLE, DECODE_IDLE, WITHHELD_NOT, KV_NONE},
		{ATTEMPT_SERVING, LOOKUP_SENT, PREFILL_IDLE, DECODE_IDLE, WITHHELD_NOT, KV_NONE},
		/* decode after prefill */
		{ATTEMPT_SERVING, LOOKUP_NOT_NEEDED, PREFILL_SENT, DECODE_IDLE, WITHHELD_NOT,
			KV_NONE},
		{ATTEMPT_SERVING, LOOKUP_NOT_NEEDED, PREFILL_ANSWERED, DECODE_SENT, WITHHELD_NOT,
			KV_DELIVERED},
		{ATTEMPT_SERVING, LOOKUP_NOT_NEEDED, PREFILL_ANSWERED, DECODE_RELAYING,
			WITHHELD_NOT, KV_FETCHED},
		/* both at once */
		{ATTEMPT_SERVING, LOOKUP_KNOWN, PREFILL_SENT, DECODE_RELAYING, WITHHELD_NOT,
			KV_PREDICTED},
		{ATTEMPT_SERVING, LOOKUP_KNOWN, PREFILL_FAILED, DECODE_RELAYING, WITHHELD_NOT,
			KV_NONE},
		/* before prefill has confirmed it */
		{ATTEMPT_SERVING, LOOKUP_NOT_NEEDED, PREFILL_SENT, DECODE_WITHHELD,
			WITHHELD_SPECULATION, KV_PREDICTED},
		/* decode first */
		{ATTEMPT_SERVING, LOOKUP_NOT_NEEDED, PREFILL_NOT_NEEDED, DECODE_WITHHELD,
			WITHHELD_CACHE_CHECK, KV_NONE},
		/* released after the client has gone */
		{ATTEMPT_DETACHED, LOOKUP_NOT_NEEDED, PREFILL_SENT, DECODE_IDLE, WITHHELD_NOT,
			KV_NONE},
		{ATTEMPT_DETACHED, LOOKUP_NOT_NEEDED, PREFILL_ANSWERED, DECODE_SENT, WITHHELD_NOT,
			KV_DELIVERED},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		cr_assert(attempt_may_exist(&rows[i]), "row %zu", i);
}
