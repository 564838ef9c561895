/* Counts by name: which names have slots, what is beyond them, and slots that are used again. */
#include "shm/named.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/metrics.h"
#include "tests/unit/shm/fixture.h"

TestSuite(shm_named, .init = small_seg, .fini = small_seg_end);

#define KEYS 4 /* of the small segment */

static uint32_t
other(enum named_kind kind)
{
	return named_slots(seg, kind) - 1;
}

static void
count(enum named_kind kind, const char *name, uint64_t n)
{
	const struct named_at at = named_find(seg, kind, name);

	named_add(seg, &at, NAMED_PROMPT, n);
}

/* UINT64_MAX: there is no such row */
static uint64_t
counted(enum named_kind kind, const char *name)
{
	struct named_figures f;

	for (uint32_t i = 0; i < named_slots(seg, kind); i++)
		if (named_read(seg, kind, i, &f) && strcmp(f.name, name) == 0)
			return f.count[NAMED_PROMPT];
	return UINT64_MAX;
}

Test(shm_named, each_name_counts_for_itself)
{
	static const char *const names[] = {"a", "b", "meta-llama/Llama-3.1-8B-Instruct", "a"};

	named_set(seg, NAMED_MODELS, names, 4);
	named_set(seg, NAMED_KEYS, names, 1);
	count(NAMED_MODELS, "a", 5);
	count(NAMED_MODELS, names[2], 7);
	count(NAMED_MODELS, "nowhere", 9);
	count(NAMED_KEYS, "a", 11);
	cr_assert_eq(counted(NAMED_MODELS, "a"), 5);
	cr_assert_eq(counted(NAMED_MODELS, "b"), 0);
	cr_assert_eq(counted(NAMED_MODELS, names[2]), 7);
	cr_assert_eq(counted(NAMED_MODELS, NAMED_OTHER), 9);
	cr_assert_eq(counted(NAMED_MODELS, "nowhere"), UINT64_MAX);
	cr_assert_eq(counted(NAMED_KEYS, "a"), 11);
	cr_assert_eq(counted(NAMED_KEYS, NAMED_OTHER), 0);
}

Test(shm_named, a_name_that_goes_loses_its_row_and_one_that_stays_keeps_it)
{
	static const char *const before[] = {"a", "b"}, *const after[] = {"b", "c"};

	named_set(seg, NAMED_KEYS, before, 2);
	count(NAMED_KEYS, "a", 5);
	count(NAMED_KEYS, "b", 6);
	named_set(seg, NAMED_KEYS, after, 2);
	cr_assert_eq(counted(NAMED_KEYS, "a"), UINT64_MAX);
	cr_assert_eq(counted(NAMED_KEYS, "b"), 6);
	cr_assert_eq(counted(NAMED_KEYS, "c"), 0);
	count(NAMED_KEYS, "a", 3); /* a request that has begun before */
	cr_assert_eq(counted(NAMED_KEYS, NAMED_OTHER), 3);
	named_set(seg, NAMED_KEYS, before, 1);
	cr_assert_eq(counted(NAMED_KEYS, "a"), 0, "it begins anew");
	named_set(seg, NAMED_KEYS, NULL, 0);
	cr_assert_eq(counted(NAMED_KEYS, "a"), UINT64_MAX);
}

/* Finds a name that the slot of "a" is given to. */
static void
successor(char name[16])
{
	static const char *const first[] = {"a"};
	const char *const next[] = {name};
	uint32_t at;

	named_set(seg, NAMED_KEYS, first, 1);
	at = named_find(seg, NAMED_KEYS, "a").slot;
	for (unsigned i = 0;; i++) {
		(void)snprintf(name, 16, "b%u", i);
		named_set(seg, NAMED_KEYS, next, 1);
		if (named_find(seg, NAMED_KEYS, name).slot == at)
			break;
	}
	named_set(seg, NAMED_KEYS, first, 1);
	cr_assert_eq(named_find(seg, NAMED_KEYS, "a").slot, at);
}

Test(shm_named, a_worker_that_stalls_adds_nothing_to_the_next_name)
{
	char name[16];
	const char *const next[] = {name};
	struct named_at at;

	successor(name);
	at = named_find(seg, NAMED_KEYS, "a");
	named_add(seg, &at, NAMED_PROMPT, 5);
	named_set(seg, NAMED_KEYS, next, 1);
	named_add(seg, &at, NAMED_PROMPT, 7);
	cr_expect_eq(counted(NAMED_KEYS, name), 0);
	cr_expect_eq(counted(NAMED_KEYS, NAMED_OTHER), 7);
}

static _Noreturn void
stalls(const struct named_at *at)
{
	(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	(void)raise(SIGSTOP);
	named_add(seg, at, NAMED_PROMPT, 1);
	_exit(0);
}

/* After so many instructions of a worker the slot gets its next name.  False: it has fewer. */
static bool
next_name_after(unsigned instructions, const char *name)
{
	static const char *const first[] = {"a"};
	const char *const next[] = {name};
	struct named_at at;
	int status;
	pid_t pid;

	named_set(seg, NAMED_KEYS, first, 1);
	at = named_find(seg, NAMED_KEYS, "a");
	pid = fork();
	cr_assert_neq(pid, -1);
	if (pid == 0)
		stalls(&at);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	for (unsigned i = 0; i < instructions && WIFSTOPPED(status); i++) {
		cr_assert_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
	}
	if (!WIFSTOPPED(status))
		return false;
	named_set(seg, NAMED_KEYS, next, 1);
	cr_assert_eq(named_find(seg, NAMED_KEYS, name).slot, at.slot);
	cr_assert_eq(ptrace(PTRACE_CONT, pid, NULL, NULL), 0);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0);
	cr_expect_eq(counted(NAMED_KEYS, name), 0, "after %u instructions", instructions);
	return true;
}

#ifdef __SANITIZE_ADDRESS__
#define STEP 97 /* most instructions are the sanitizer's */
#else
#define STEP 1
#endif

Test(shm_named, at_whatever_instruction_it_stalls)
{
	char name[16];
	unsigned n = 0;

	successor(name);
	while (next_name_after(n, name))
		n += STEP;
	cr_expect_gt(n, 30, "else this test tests little");
}

Test(shm_named, names_beyond_the_bound_are_one)
{
	static char text[1000][8];
	const char *names[1000];
	uint32_t rows = 0;
	struct named_figures f;

	for (unsigned i = 0; i < 1000; i++) {
		(void)snprintf(text[i], sizeof(text[i]), "m%u", i);
		names[i] = text[i];
	}
	named_set(seg, NAMED_MODELS, names, 1000);
	for (unsigned i = 0; i < 1000; i++)
		count(NAMED_MODELS, names[i], 1);
	for (uint32_t i = 0; i < other(NAMED_MODELS); i++)
		rows += named_read(seg, NAMED_MODELS, i, &f);
	cr_assert_eq(rows, 256);
	cr_assert_eq(counted(NAMED_MODELS, NAMED_OTHER), 1000 - 256);
	/* those of another kind are not touched */
	named_set(seg, NAMED_KEYS, names, KEYS);
	for (unsigned i = 0; i < KEYS; i++)
		cr_assert_eq(counted(NAMED_KEYS, names[i]), 0);
	cr_assert_eq(counted(NAMED_MODELS, "m0"), 1);
}

Test(shm_named, names_that_have_no_row)
{
	char longest[NAMED_NAME], too_long[NAMED_NAME + 1];
	const char *names[] = {NAMED_OTHER, longest, too_long};

	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	memset(too_long, 'x', sizeof(too_long) - 1);
	too_long[sizeof(too_long) - 1] = '\0';
	named_set(seg, NAMED_KEYS, names, 3);
	for (unsigned i = 0; i < 3; i++)
		count(NAMED_KEYS, names[i], 1);
	cr_assert_eq(counted(NAMED_KEYS, longest), 1);
	cr_assert_eq(counted(NAMED_KEYS, NAMED_OTHER), 2, "no series stands there twice");
	cr_assert_eq(named_find(seg, NAMED_KEYS, "").slot, other(NAMED_KEYS));
}

/* All of a table's names find their slots, nearly always: it is half full at most. */
Test(shm_named, a_full_table_of_keys)
{
	const struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = 1,
		.max_pools = 1,
		.flags_per_worker = 64,
		.max_api_keys = 4096};
	static char text[4096][16];
	static const char *names[4096];
	uint32_t without = 0;

	seg_free(&seg);
	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	for (unsigned i = 0; i < 4096; i++) {
		(void)snprintf(text[i], sizeof(text[i]), "team-%u", i);
		names[i] = text[i];
	}
	named_set(seg, NAMED_KEYS, names, 4096);
	for (unsigned i = 0; i < 4096; i++)
		without += named_find(seg, NAMED_KEYS, names[i]).slot == other(NAMED_KEYS);
	cr_assert_leq(without, 16, "%u", without);
}

/* A page that is written while a slot gets another name shows neither with the counts of the other. */
Test(shm_named, a_slot_whose_name_is_being_written_is_not_shown)
{
	static const char *const names[] = {"a"};
	struct named_figures f;
	uint32_t at;

	named_set(seg, NAMED_KEYS, names, 1);
	at = named_find(seg, NAMED_KEYS, "a").slot;
	cr_assert(named_read(seg, NAMED_KEYS, at, &f));
	seg->named[NAMED_MODEL_SLOTS + at].name[0] = 'b';
	cr_assert_not(named_read(seg, NAMED_KEYS, at, &f));
}

Test(shm_named, counts_that_cannot_be_begin_again)
{
	const uint32_t i = NAMED_MODEL_SLOTS + other(NAMED_KEYS);

	seg->named_counts[i].count[NAMED_REFUSED] = METRIC_TOO_MANY;
	seg->named_counts[i].count[NAMED_PROMPT] = 3;
	cr_assert_eq(named_mend(seg, i), 1);
	cr_assert_eq(named_mend(seg, i), 0);
	cr_assert_eq(counted(NAMED_KEYS, NAMED_OTHER), 3);
}
