/* Announcements: what counts as news, what a full table does, and a writer that dies anywhere. */
#include "shm/announce.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "tests/unit/shm/fixture.h"

#define FORGET 1000u

TestSuite(shm_announce, .init = small_seg, .fini = small_seg_end);

static struct announcement
engine(enum role role, const char *http, const char *kv, uint64_t seen_ms)
{
	struct announcement a = {.role = role, .seen_ms = seen_ms};

	(void)snprintf(a.http, sizeof(a.http), "%s", http);
	(void)snprintf(a.kv, sizeof(a.kv), "%s", kv);
	return a;
}

/* True if it is news; there is room. */
static bool
put(enum role role, const char *http, const char *kv, uint64_t seen_ms)
{
	const struct announcement a = engine(role, http, kv, seen_ms);
	bool full = true, news = announce_put(seg, &a, FORGET, &full);

	cr_assert_not(full);
	return news;
}

static unsigned
entries(void)
{
	struct announcement a;
	unsigned n = 0;

	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++)
		n += announce_get(seg, i, &a);
	return n;
}

/* The entry of that role and http; it must be there once. */
static struct announcement
get(enum role role, const char *http)
{
	struct announcement a, found = {0};
	unsigned n = 0;

	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++) {
		if (!announce_get(seg, i, &a) || a.role != role || strcmp(a.http, http) != 0)
			continue;
		found = a;
		n++;
	}
	cr_assert_eq(n, 1, "%s: %u times", http, n);
	return found;
}

Test(shm_announce, what_was_put_is_there)
{
	struct announcement a;

	cr_assert_eq(entries(), 0);
	cr_assert(put(ROLE_DECODE, "10.0.0.1:8000", "10.0.0.1:21001", 5));
	a = get(ROLE_DECODE, "10.0.0.1:8000");
	cr_assert_str_eq(a.kv, "10.0.0.1:21001");
	cr_assert_eq(a.seen_ms, 5);
	cr_assert_eq(entries(), 1);
}

Test(shm_announce, a_refreshment_is_no_news)
{
	cr_assert(put(ROLE_PREFILL, "a:1", "a:2", 5));
	cr_assert_not(put(ROLE_PREFILL, "a:1", "a:2", 5 + FORGET));
	cr_assert_eq(get(ROLE_PREFILL, "a:1").seen_ms, 5 + FORGET);
	cr_assert_eq(entries(), 1);
}

Test(shm_announce, another_kv_address_is_news)
{
	cr_assert(put(ROLE_PREFILL, "a:1", "a:2", 5));
	cr_assert(put(ROLE_PREFILL, "a:1", "a:3", 6));
	cr_assert_str_eq(get(ROLE_PREFILL, "a:1").kv, "a:3");
	cr_assert_eq(entries(), 1);
}

Test(shm_announce, so_is_one_that_was_silent_for_too_long)
{
	cr_assert(put(ROLE_PREFILL, "a:1", "a:2", 5));
	cr_assert(put(ROLE_PREFILL, "a:1", "a:2", 5 + FORGET + 1));
	cr_assert_eq(entries(), 1);
}

Test(shm_announce, roles_at_one_address_are_two_engines)
{
	cr_assert(put(ROLE_PREFILL, "a:1", "a:2", 5));
	cr_assert(put(ROLE_DECODE, "a:1", "a:3", 5));
	cr_assert_eq(entries(), 2);
	cr_assert_str_eq(get(ROLE_PREFILL, "a:1").kv, "a:2");
	cr_assert_str_eq(get(ROLE_DECODE, "a:1").kv, "a:3");
}

/* Fills the table; entry i was seen at i + 1. */
static void
fill(void)
{
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++) {
		char http[32];

		(void)snprintf(http, sizeof(http), "10.0.0.%u:1", i);
		cr_assert(put(ROLE_PREFILL, http, "kv", i + 1));
	}
}

Test(shm_announce, a_full_table_takes_no_more)
{
	const struct announcement more = engine(ROLE_PREFILL, "more:1", "kv", 500);
	bool full = false;

	fill();
	cr_assert_not(announce_put(seg, &more, FORGET, &full));
	cr_assert(full);
	cr_assert_eq(entries(), ANNOUNCED_MAX);
	/* but those in it may still refresh */
	cr_assert_not(put(ROLE_PREFILL, "10.0.0.255:1", "kv", 501));
}

Test(shm_announce, who_was_silent_makes_room)
{
	const struct announcement next = engine(ROLE_PREFILL, "next:1", "kv", FORGET + 2);
	bool full = false;

	fill();
	cr_assert(put(ROLE_DECODE, "more:1", "kv", FORGET + 2)); /* in place of the one seen at 1 */
	cr_assert_eq(entries(), ANNOUNCED_MAX);
	cr_assert_eq(get(ROLE_DECODE, "more:1").seen_ms, FORGET + 2);
	/* the one seen at 2 was silent for exactly FORGET, not longer */
	cr_assert_not(announce_put(seg, &next, FORGET, &full));
	cr_assert(full);
}

/* A time that no notifier wrote: it would not end for ever. */
Test(shm_announce, an_entry_ahead_of_the_clock_makes_room)
{
	for (uint32_t i = 0; i < ANNOUNCED_MAX; i++)
		seg->announced[i].seen_ms = UINT64_MAX / 2;
	cr_assert(put(ROLE_DECODE, "new", "kv", 1000));
	(void)get(ROLE_DECODE, "new");
}

Test(shm_announce, a_text_without_an_end_is_cut)
{
	struct announcement a;

	(void)put(ROLE_DECODE, "http", "kv", 1000);
	memset(seg->announced[0].http, 'x', ANNOUNCED_ADDRESS);
	memset(seg->announced[0].kv, 'y', ANNOUNCED_ADDRESS);
	cr_assert(announce_get(seg, 0, &a));
	cr_assert_eq(strnlen(a.http, ANNOUNCED_ADDRESS), ANNOUNCED_ADDRESS - 1);
	cr_assert_eq(strnlen(a.kv, ANNOUNCED_ADDRESS), ANNOUNCED_ADDRESS - 1);
}

Test(shm_announce, texts_up_to_the_last_byte)
{
	char text[ANNOUNCED_ADDRESS];
	struct announcement a = {.role = ROLE_DECODE, .seen_ms = 1};
	bool full;

	for (size_t n = 0; n < sizeof(text); n++) {
		memset(text, 'x', n);
		text[n] = '\0';
		announce_begin(seg);
		cr_assert(put(ROLE_DECODE, text, text, 1));
		cr_assert_str_eq(get(ROLE_DECODE, text).kv, text);
	}
	/* without its NUL: clipped */
	memset(a.http, 'y', sizeof(a.http));
	memset(a.kv, 'z', sizeof(a.kv));
	announce_begin(seg);
	cr_assert(announce_put(seg, &a, FORGET, &full));
	memset(text, 'y', sizeof(text) - 1);
	cr_assert_eq(strlen(get(ROLE_DECODE, text).kv), ANNOUNCED_ADDRESS - 1);
}

Test(shm_announce, a_shorter_text_leaves_nothing_of_the_longer)
{
	static const char no_text[ANNOUNCED_ADDRESS];
	struct announcement a;

	cr_assert(put(ROLE_PREFILL, "a:1", "a-very-long-name-of-a-host.example.com:21001", 1));
	cr_assert(put(ROLE_PREFILL, "a:1", "b:2", 2));
	a = get(ROLE_PREFILL, "a:1");
	cr_assert_eq(memcmp(a.kv + 4, no_text, sizeof(a.kv) - 4), 0);
}

Test(shm_announce, a_new_notifier_knows_nobody)
{
	fill();
	announce_begin(seg);
	cr_assert_eq(entries(), 0);
	cr_assert(put(ROLE_PREFILL, "10.0.0.7:1", "kv", 5));
	cr_assert_eq(entries(), 1);
}

Test(shm_announce, an_entry_that_is_being_written_is_not_read)
{
	struct announcement a;

	cr_assert(put(ROLE_PREFILL, "a:1", "a:2", 5));
	seg->announced[0].seq |= 1;
	cr_assert_not(announce_get(seg, 0, &a));
	announce_begin(seg);
	cr_assert_eq(seg->announced[0].seq % 2, 0);
	cr_assert_not(announce_get(seg, 0, &a));
	cr_assert(put(ROLE_PREFILL, "a:1", "a:2", 6));
	cr_assert(announce_get(seg, 0, &a));
}

static void
victim(void)
{
	(void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
	(void)raise(SIGSTOP);
	(void)put(ROLE_PREFILL, "old-host:1", "new-kv.example.com:2", 6);
	_exit(0);
}

/* The writer is stepped through a change, and stands still after every instruction: who reads sees all
 * of the old or all of the new, or nothing.  Had it died there, its successor begins with an empty
 * table in which everything has room. */
Test(shm_announce, at_every_instruction_of_the_writer)
{
	const size_t bytes = ANNOUNCED_MAX * sizeof(seg->announced[0]);
	struct announced *saved = mem_zero(bytes);
	unsigned steps[3] = {0}; /* old, nothing, new */
	int status;
	pid_t pid;

	cr_assert(put(ROLE_PREFILL, "old-host:1", "old-kv:2", 5));
	pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0)
		victim();
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	for (unsigned step = 0; WIFSTOPPED(status); step++) {
		const uint64_t seq = seg->announced[0].seq;
		struct announcement a;

		if (!announce_get(seg, 0, &a)) {
			steps[1]++;
		} else {
			const bool is_new = a.seen_ms == 6;

			cr_assert_str_eq(a.http, "old-host:1");
			cr_assert_str_eq(a.kv, is_new ? "new-kv.example.com:2" : "old-kv:2",
				"after %u instructions", step);
			steps[is_new ? 2 : 0]++;
		}
		memcpy(saved, seg->announced, bytes);
		announce_begin(seg);
		cr_assert_eq(entries(), 0, "after %u instructions", step);
		cr_assert_gt(seg->announced[0].seq, seq); /* who reads just now notices */
		fill();
		cr_assert_eq(entries(), ANNOUNCED_MAX, "after %u instructions", step);
		memcpy(seg->announced, saved, bytes);
		cr_assert_eq(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL), 0);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
	}
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	for (int i = 0; i < 3; i++) /* else this test tested nothing */
		cr_assert_gt(steps[i], 10);
	free(saved);
}
