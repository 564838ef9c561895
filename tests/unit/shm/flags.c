/* Completion flags: every order in which notices, frees and deaths can come. */
#include "shm/flags.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "tests/unit/shm/fixture.h"

#define ME 1u

static struct flag_set *flags;

static void
begin(void)
{
	small_seg();
	flags = flag_set_new(seg, ME);
}

static void
end(void)
{
	flag_set_free(&flags);
	small_seg_end();
}

TestSuite(shm_flags, .init = begin, .fini = end);

static struct flag_ref
arm(uint8_t notices)
{
	struct flag_ref ref;

	cr_assert(flag_arm(flags, notices, &ref));
	return ref;
}

static bool
bit(uint32_t slot)
{
	return seg_ready(seg, ME)[slot / 64] >> slot % 64 & 1;
}

static unsigned calls;
static uint32_t called[256];

static void
on_ready(uint32_t slot, void *arg)
{
	cr_assert_eq(arg, &calls);
	called[calls++] = slot;
}

static unsigned
collect(void)
{
	calls = 0;
	flag_collect(flags, on_ready, &calls);
	return calls;
}

Test(shm_flags, one_notice_makes_it_ready)
{
	const struct flag_ref ref = arm(1);

	cr_assert_not(flag_is_ready(flags, &ref));
	cr_assert_eq(collect(), 0);
	cr_assert_eq(flag_notify(seg, &ref), FLAG_READY_NOW);
	cr_assert(bit(ref.slot));
	cr_assert(flag_is_ready(flags, &ref));
	cr_assert_eq(collect(), 1);
	cr_assert_eq(called[0], ref.slot);
	cr_assert_not(bit(ref.slot));
	cr_assert_eq(collect(), 0);
	cr_assert(flag_is_ready(flags, &ref)); /* until freed, whatever the bits say */
}

Test(shm_flags, all_of_its_notices_are_counted)
{
	const struct flag_ref ref = arm(255);

	for (int i = 0; i < 254; i++)
		cr_assert_eq(flag_notify(seg, &ref), FLAG_COUNTED);
	cr_assert_not(bit(ref.slot));
	cr_assert_not(flag_is_ready(flags, &ref));
	cr_assert_eq(flag_notify(seg, &ref), FLAG_READY_NOW);
	cr_assert(flag_is_ready(flags, &ref));
}

Test(shm_flags, a_notice_before_anything_was_armed)
{
	const struct flag_ref never = {.worker = ME, .slot = 5, .gen = 0, .nonce = 0};
	const struct flag_ref guess = {.worker = ME, .slot = 5, .gen = 1, .nonce = 0};

	cr_assert_eq(flag_notify(seg, &never), FLAG_STALE);
	cr_assert_eq(flag_notify(seg, &guess), FLAG_STALE);
	cr_assert_not(bit(5));
}

Test(shm_flags, a_notice_twice)
{
	const struct flag_ref ref = arm(1);

	cr_assert_eq(flag_notify(seg, &ref), FLAG_READY_NOW);
	cr_assert_eq(flag_notify(seg, &ref), FLAG_STALE);
	cr_assert(flag_is_ready(flags, &ref));
}

Test(shm_flags, a_wrong_nonce_counts_nothing)
{
	const struct flag_ref ref = arm(1);
	struct flag_ref forged = ref;

	forged.nonce ^= 1;
	cr_assert_eq(flag_notify(seg, &forged), FLAG_WRONG_NONCE);
	cr_assert_not(bit(ref.slot));
	cr_assert_eq(flag_notify(seg, &ref), FLAG_READY_NOW);
}

Test(shm_flags, a_late_notice_after_free)
{
	const struct flag_ref ref = arm(2);

	cr_assert_eq(flag_notify(seg, &ref), FLAG_COUNTED);
	flag_free(flags, &ref);
	cr_assert_eq(flag_notify(seg, &ref), FLAG_STALE);
	cr_assert_not(flag_is_ready(flags, &ref));
}

Test(shm_flags, a_late_notice_to_a_slot_used_again)
{
	const struct flag_ref old = arm(1);
	struct flag_ref new;

	flag_free(flags, &old);
	new = arm(1);
	cr_assert_eq(new.slot, old.slot);
	cr_assert_gt(new.gen, old.gen);
	cr_assert_eq(flag_notify(seg, &old), FLAG_STALE);
	cr_assert_not(flag_is_ready(flags, &new));
	cr_assert_eq(flag_notify(seg, &new), FLAG_READY_NOW);
	cr_assert_not(flag_is_ready(flags, &old));
}

/* With the right nonce an old gen is stale; with the right gen an old nonce is wrong. */
Test(shm_flags, gen_and_nonce_are_both_asked)
{
	const struct flag_ref old = arm(1);
	struct flag_ref new, mix;

	flag_free(flags, &old);
	new = arm(1);
	mix = new;
	mix.gen = old.gen;
	cr_assert_eq(flag_notify(seg, &mix), FLAG_STALE);
	mix = new;
	mix.nonce = old.nonce;
	cr_assert_eq(flag_notify(seg, &mix), FLAG_WRONG_NONCE);
}

/* A worker killed between nonce and word, its slot reaped: the id it had in mind never fits. */
Test(shm_flags, reaping_ends_all_and_never_goes_back)
{
	const struct flag_ref armed = arm(1), ready = arm(1), freed = arm(1);
	struct flag_ref next;

	cr_assert_eq(flag_notify(seg, &ready), FLAG_READY_NOW);
	flag_free(flags, &freed);
	cr_assert_eq(flag_reap(seg, ME), 2);
	cr_assert_eq(flag_notify(seg, &armed), FLAG_STALE);
	for (uint32_t slot = 0; slot < seg->hdr->flags_per_worker; slot++)
		cr_assert_neq(seg_flag(seg, ME, slot)->word, 0);
	cr_assert_eq(flag_reap(seg, ME), 0);

	flag_set_free(&flags); /* the next process in this slot */
	flags = flag_set_new(seg, ME);
	cr_assert_eq(flag_armed(flags), 0);
	cr_assert_eq(collect(), 0); /* the dead one's bit is only a hint */
	for (uint32_t slot = 0; slot < seg->hdr->flags_per_worker; slot++) {
		next = arm(1);
		if (next.slot == armed.slot)
			cr_assert_gt(next.gen, armed.gen);
	}
	cr_assert_eq(flag_notify(seg, &armed), FLAG_STALE);
	cr_assert_eq(flag_notify(seg, &ready), FLAG_STALE);
}

Test(shm_flags, reaping_leaves_other_workers_alone)
{
	const struct flag_ref ref = arm(1);

	cr_assert_eq(flag_reap(seg, ME + 1), 0);
	cr_assert_eq(flag_reap(seg, ME - 1), 0);
	cr_assert_eq(flag_notify(seg, &ref), FLAG_READY_NOW);
}

/* Another process has stored there since the slot was reaped. */
Test(shm_flags, a_worker_begins_without_armed_flags)
{
	const struct flag_ref ref = arm(1);
	struct flag_set *next = flag_set_new(seg, ME);

	cr_assert_eq(flag_notify(seg, &ref), FLAG_STALE);
	flag_set_free(&next);
}

Test(shm_flags, slots_run_out_and_come_back)
{
	struct flag_ref ref[128], more;

	for (uint32_t i = 0; i < 128; i++) {
		ref[i] = arm(1);
		for (uint32_t k = 0; k < i; k++)
			cr_assert_neq(ref[k].slot, ref[i].slot);
	}
	cr_assert_eq(flag_armed(flags), 128);
	cr_assert_not(flag_arm(flags, 1, &more));
	flag_free(flags, &ref[70]);
	cr_assert_eq(flag_armed(flags), 127);
	cr_assert(flag_arm(flags, 1, &more));
	cr_assert_eq(more.slot, ref[70].slot);
}

/* A notifier killed between READY and the bit: its successor's kick brings it to the worker. */
Test(shm_flags, a_fresh_notifiers_kick_finds_what_was_half_delivered)
{
	const struct flag_ref quiet = arm(1), half = arm(1);

	cr_assert_eq(flag_notify(seg, &half), FLAG_READY_NOW);
	seg_ready(seg, ME)[half.slot / 64] = 0;
	cr_assert_eq(collect(), 0);
	cr_assert(flag_is_ready(flags, &half)); /* what kv_ready's timeout would find */
	flag_kick_all(seg);
	for (uint32_t w = 0; w < SLOT_WORKERS(seg); w++)
		cr_assert_eq(seg_ready(seg, w)[0], UINT64_MAX);
	cr_assert_eq(collect(), 1);
	cr_assert_eq(called[0], half.slot);
	cr_assert_not(flag_is_ready(flags, &quiet));
}

Test(shm_flags, a_bit_without_ready_is_ignored)
{
	const struct flag_ref ref = arm(2);

	cr_assert_eq(flag_notify(seg, &ref), FLAG_COUNTED);
	seg_ready(seg, ME)[ref.slot / 64] = UINT64_MAX;
	cr_assert_eq(collect(), 0);
	/* after the bits were taken: set again */
	cr_assert_eq(flag_notify(seg, &ref), FLAG_READY_NOW);
	cr_assert_eq(collect(), 1);
}

Test(shm_flags, bits_of_every_word_are_collected)
{
	struct flag_ref ref[128];

	for (uint32_t i = 0; i < 128; i++)
		ref[i] = arm(1);
	for (uint32_t i = 0; i < 128; i++)
		if (ref[i].slot % 3 == 0)
			cr_assert_eq(flag_notify(seg, &ref[i]), FLAG_READY_NOW);
	cr_assert_eq(collect(), 43);
	for (unsigned i = 0; i < calls; i++)
		cr_assert_eq(called[i], 3 * i);
}

Test(shm_flags, an_id_survives_the_wire)
{
	const struct flag_ref refs[] = {
		{1, 2, 3, 4},
		{3, 127, (UINT64_C(1) << 48) - 1, UINT64_MAX},
		{0, 0, 0, 0},
	};
	char id[FLAG_ID_LEN];
	struct flag_ref got;

	for (size_t i = 0; i < sizeof(refs) / sizeof(refs[0]); i++) {
		flag_id_format(&refs[i], id);
		cr_assert_eq(strlen(id), 37);
		cr_assert(flag_id_parse(seg, id, strlen(id), &got), "%s", id);
		cr_assert(got.worker == refs[i].worker && got.slot == refs[i].slot &&
			  got.gen == refs[i].gen && got.nonce == refs[i].nonce);
	}
	flag_id_format(&refs[0], id);
	cr_assert_str_eq(id, "01-0002-000000000003-0000000000000004");
}

Test(shm_flags, nothing_but_that_form_is_an_id)
{
	static const char good[] = "01-0002-00000000000a-0000000000000004";
	static const char *const bad[] = {
		"", "01", "01-0002-00000000000A-0000000000000004",
		"0x-0002-00000000000a-0000000000000004", "+1-0002-00000000000a-0000000000000004",
		" 1-0002-00000000000a-0000000000000004", "01_0002-00000000000a-0000000000000004",
		"01-0002-00000000000a-00000000000000040", "01-0002-00000000000a-000000000000000",
		"04-0002-00000000000a-0000000000000004", /* 4 workers */
		"01-0080-00000000000a-0000000000000004", /* 128 slots */
	};
	struct flag_ref got;
	char text[sizeof(good)];

	cr_assert(flag_id_parse(seg, good, sizeof(good) - 1, &got));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_not(flag_id_parse(seg, bad[i], strlen(bad[i]), &got), "%s", bad[i]);
	for (size_t i = 0; i < sizeof(good) - 1; i++) { /* no byte may be just anything */
		memcpy(text, good, sizeof(good));
		text[i] = '\0';
		cr_assert_not(flag_id_parse(seg, text, sizeof(good) - 1, &got), "NUL at %zu", i);
		text[i] = 'g';
		cr_assert_not(flag_id_parse(seg, text, sizeof(good) - 1, &got), "g at %zu", i);
	}
}

/* Random bits differ, or an engine that guesses the gen could complete a transfer. */
Test(shm_flags, nonces_differ)
{
	const struct flag_ref a = arm(1), b = arm(1);

	cr_assert_neq(a.nonce, b.nonce);
}

/* --- killed at every instruction ---------------------------------------------------------- */

/*
 * A process that runs `play`, stopped before its first instruction.  What it leaves when it stands
 * still is what a SIGKILL there would leave.
 */
static pid_t
player(void (*play)(void))
{
	const pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
		(void)raise(SIGSTOP);
		play();
		_exit(0);
	}
	return pid;
}

/* After each of its instructions: what the others do then, and memory is put back. */
static unsigned
at_every_instruction(void (*play)(void), void (*others)(void))
{
	const size_t bytes = seg->writable_bytes;
	unsigned char *saved = mem_zero(bytes);
	const pid_t pid = player(play);
	unsigned steps = 0;
	int status;

	cr_assert_eq(waitpid(pid, &status, 0), pid);
	for (; WIFSTOPPED(status); steps++) {
		memcpy(saved, seg->writable, bytes);
		others();
		memcpy(seg->writable, saved, bytes);
		cr_assert_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
	}
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	free(saved);
	return steps;
}

static struct flag_ref waited;
static unsigned found_ready, found_armed;

static void
notice(void)
{
	(void)flag_notify(seg, &waited);
}

/* The next notifier kicks, and the worker finds the flag by its bit if the dead one had counted; if it
 * had not, the flag still takes a notice. */
static void
successor_kicks(void)
{
	const bool ready = flag_is_ready(flags, &waited);

	flag_kick_all(seg);
	cr_assert_eq(collect(), ready);
	found_ready += ready;
	found_armed += !ready;
	if (ready)
		cr_assert_eq(called[0], waited.slot);
	else
		cr_assert_eq(flag_notify(seg, &waited), FLAG_READY_NOW);
}

Test(shm_flags, a_notifier_killed_at_every_instruction)
{
	waited = arm(1);
	cr_assert_gt(at_every_instruction(notice, successor_kicks), 20);
	cr_assert_gt(found_ready, 5); /* else this test tested nothing */
	cr_assert_gt(found_armed, 5);
}

static void
use_a_flag_twice(void)
{
	struct flag_ref ref;

	for (int i = 0; i < 2; i++)
		if (flag_arm(flags, 1, &ref)) {
			(void)flag_notify(seg, &ref);
			flag_free(flags, &ref);
		}
}

/* Reaped there, nothing is armed, no id that the dead worker can have given out fits any more, and its
 * successor's ids are new. */
static void
reap_and_follow(void)
{
	const uint64_t word = seg_flag(seg, ME, waited.slot)->word;
	struct flag_ref given = {.worker = ME,
		.slot = waited.slot,
		.gen = word >> 16,
		.nonce = seg_flag(seg, ME, waited.slot)->nonce};
	struct flag_set *fs;
	struct flag_ref ref;

	found_armed += flag_reap(seg, ME);
	cr_assert_eq(flag_notify(seg, &given), FLAG_STALE);
	fs = flag_set_new(seg, ME); /* aborts if a flag is armed */
	do
		cr_assert(flag_arm(fs, 1, &ref));
	while (ref.slot != waited.slot);
	cr_assert_gt(ref.gen, given.gen);
	for (given.gen = 0; given.gen < ref.gen; given.gen++)
		cr_assert_eq(flag_notify(seg, &given), FLAG_STALE);
	flag_set_free(&fs);
}

Test(shm_flags, a_worker_killed_at_every_instruction)
{
	waited = arm(1); /* the random numbers are there, and the slot is the next one given out */
	flag_free(flags, &waited);
	found_armed = 0;
	cr_assert_gt(at_every_instruction(use_a_flag_twice, reap_and_follow), 50);
	cr_assert_gt(found_armed, 20);
}

/* Notices that never come: the worker's flags are all it can use up, and freeing them brings them back. */
Test(shm_flags, transfers_that_wait_for_ever_use_up_their_workers_flags_alone)
{
	struct flag_set *other = flag_set_new(seg, ME + 1);
	struct flag_ref ref[128], more;

	for (uint32_t i = 0; i < 128; i++)
		ref[i] = arm(1);
	cr_assert_not(flag_arm(flags, 1, &more));
	cr_assert(flag_arm(other, 1, &more));
	cr_assert_eq(collect(), 0);
	for (uint32_t i = 0; i < 128; i++) {
		cr_assert_not(flag_is_ready(flags, &ref[i]));
		flag_free(flags, &ref[i]);
	}
	cr_assert_eq(flag_armed(flags), 0);
	flag_set_free(&other);
}

/* After an upgrade the notifier of another instance reads the id, whatever sizes its own segment has. */
Test(shm_flags, an_id_names_its_instance)
{
	const struct flag_ref ref = {
		.worker = 200, .slot = 60000, .gen = 1, .nonce = (UINT64_C(7) << 48) | 5};
	char id[FLAG_ID_LEN];
	uint32_t instance = 0;

	flag_id_format(&ref, id);
	cr_assert(flag_id_instance(id, strlen(id), &instance));
	cr_expect_eq(instance, 7);
	cr_expect_not(flag_id_instance(id, strlen(id) - 1, &instance));
	id[0] = 'x';
	cr_expect_not(flag_id_instance(id, strlen(id), &instance));
}
