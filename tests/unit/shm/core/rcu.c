/* Publication, retirement and reuse of arenas, with readers played by this one process. */
#include "shm/core/rcu.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/api_keys.h"
#include "shm/base/mem.h"
#include "shm/table.h"
#include "tests/unit/shm/fixture.h"

static struct rcu_writer *writer;

static void
begin(void)
{
	small_seg();
	writer = rcu_writer_new(seg);
}

static void
end(void)
{
	rcu_writer_free(&writer);
	small_seg_end();
}

TestSuite(shm_rcu, .init = begin, .fini = end);

/* Publishes a table of that version; false if no arena is free. */
static bool
publish(uint64_t version)
{
	struct table_builder b;
	void *arena = rcu_arena_get(writer);
	struct table *t;

	if (arena == NULL)
		return false;
	t = table_begin(&b, arena, seg->arena_bytes, 1, 1);
	cr_assert_not_null(t);
	t->version = version;
	table_pool_at(&b, 0)->name = table_str(&b, "pool");
	cr_assert_eq(table_end(&b), 0);
	rcu_publish(writer, arena);
	return true;
}

static bool
still_intact(const struct table *t, uint64_t version)
{
	return table_intact(t, seg->arena_bytes) && t->version == version;
}

/* The same of a table of keys with this one. */
static bool
publish_key(const char *name)
{
	const struct conf_api_key key = {.name = (char *)(uintptr_t)name,
		.sha256 = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"};
	void *arena = rcu_keys_arena_get(writer);

	if (arena == NULL)
		return false;
	cr_assert_eq(api_keys_build(arena, seg->keys_arena_bytes, &key, 1,
			     (const bool[DOOR_N]){true, false}),
		0);
	rcu_publish_keys(writer, arena);
	return true;
}

Test(shm_rcu, keys_come_and_go)
{
	cr_assert(!rcu_has_keys(seg));
	cr_assert(publish_key("alice"));
	cr_assert(rcu_has_keys(seg));
	(void)rcu_enter(seg, 0);
	cr_assert_str_eq(rcu_keys(seg)->keys[0].name, "alice");
	rcu_leave(seg, 0);
	rcu_publish_keys(writer, NULL);
	cr_assert(!rcu_has_keys(seg));
	cr_assert_eq(rcu_poll(writer), 0);
}

/* One line of a reader holds both: whichever table it has loaded. */
Test(shm_rcu, keys_wait_for_their_readers_and_no_longer)
{
	const struct api_keys *keys;

	cr_assert(publish(1) && publish_key("alice"));
	(void)rcu_enter(seg, 0);
	keys = rcu_keys(seg);
	for (int i = 1; i < SHM_KEYS_ARENAS; i++)
		cr_assert(publish_key("bob"));
	cr_assert(!publish_key("carol"));
	cr_assert(publish(2), "tables have arenas of their own");
	cr_assert(api_keys_intact(keys, seg->keys_arena_bytes));
	cr_assert_str_eq(keys->keys[0].name, "alice");
	rcu_leave(seg, 0);
	cr_assert_eq(rcu_poll(writer), 0);
	cr_assert(publish_key("carol"));
}

Test(shm_rcu, nothing_before_the_first_publication)
{
	cr_assert_null(rcu_enter(seg, 0));
	rcu_leave(seg, 0);
	cr_assert_null(rcu_current(writer));
}

Test(shm_rcu, a_reader_gets_the_newest_and_keeps_it)
{
	const struct table *t;

	publish(1);
	publish(2);
	t = rcu_enter(seg, 0);
	cr_assert_eq(t->version, 2);
	cr_assert_eq(t, rcu_current(writer));
	publish(3);
	cr_assert_eq(rcu_current(writer)->version, 3);
	rcu_poll(writer);
	cr_assert(still_intact(t, 2));
	rcu_leave(seg, 0);
}

Test(shm_rcu, an_arena_waits_for_its_readers_and_no_longer)
{
	publish(1);
	(void)rcu_enter(seg, 0);
	publish(2);
	cr_assert_eq(rcu_poll(writer), 1);
	rcu_leave(seg, 0);
	cr_assert_eq(rcu_poll(writer), 0);
}

Test(shm_rcu, a_later_reader_holds_nothing_older)
{
	publish(1);
	publish(2);
	(void)rcu_enter(seg, 0);
	cr_assert_eq(rcu_poll(writer), 0);
	rcu_leave(seg, 0);
}

Test(shm_rcu, while_a_reader_stands_all_arenas_but_its_own_and_later_ones_wait)
{
	const struct table *t;

	publish(1);
	t = rcu_enter(seg, 3);
	publish(2);
	publish(3);
	publish(4);
	cr_assert_not(publish(5)); /* 1 is read; 2 and 3 were retired under the reader's gp too */
	cr_assert_eq(rcu_poll(writer), 3);
	cr_assert(still_intact(t, 1));
	cr_assert_eq(rcu_current(writer)->version, 4);
	rcu_leave(seg, 3);
	cr_assert(publish(5));
	cr_assert_eq(rcu_poll(writer), 0);
}

Test(shm_rcu, the_slowest_of_several_readers_decides)
{
	publish(1);
	(void)rcu_enter(seg, 0);
	publish(2);
	(void)rcu_enter(seg, 1);
	publish(3);
	cr_assert_eq(rcu_poll(writer), 2);
	rcu_leave(seg, 0);
	cr_assert_eq(rcu_poll(writer), 1);
	rcu_leave(seg, 1);
	cr_assert_eq(rcu_poll(writer), 0);
}

Test(shm_rcu, an_arena_put_back_is_free_again)
{
	void *got[SHM_ARENAS];

	for (size_t i = 0; i < SHM_ARENAS; i++) {
		got[i] = rcu_arena_get(writer);
		cr_assert_not_null(got[i]);
	}
	cr_assert_null(rcu_arena_get(writer));
	rcu_arena_put(writer, got[2]);
	cr_assert_eq(rcu_arena_get(writer), got[2]);
}

Test(shm_rcu, a_cookie_passes_after_the_next_publication_and_its_readers)
{
	uint64_t cookie;

	publish(1);
	cookie = rcu_cookie(writer);
	cr_assert_not(rcu_passed(writer, cookie)); /* still the current one */
	(void)rcu_enter(seg, 0);
	publish(2);
	cr_assert_not(rcu_passed(writer, cookie)); /* still read */
	rcu_leave(seg, 0);
	(void)rcu_enter(seg, 1);
	cr_assert(rcu_passed(writer, cookie)); /* this one reads table 2 */
	rcu_leave(seg, 1);
}

Test(shm_rcu, a_process_killed_inside_its_section_is_reaped)
{
	int status;
	pid_t pid;

	publish(1);
	pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0) {
		(void)rcu_enter(seg, 2);
		_exit(0); /* without leaving */
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	publish(2);
	cr_assert_eq(rcu_poll(writer), 1);
	rcu_reap(seg, 2);
	cr_assert_eq(rcu_poll(writer), 0);
}

#ifdef PDROUTER_DEBUG
Test(shm_rcu, a_freed_arena_is_poisoned)
{
	const struct table *t;

	publish(1);
	t = rcu_current(writer);
	publish(2);
	cr_assert(still_intact(t, 1));
	cr_assert_eq(rcu_poll(writer), 0);
	cr_assert_not(table_intact(t, seg->arena_bytes));
	cr_assert_eq(((const unsigned char *)t)[seg->arena_bytes - 1], 0xdb);
}
#endif

#ifdef PDROUTER_DEBUG
Test(shm_rcu, an_allocation_inside_a_section_aborts, .signal = SIGABRT)
{
	mem_check_sections();
	(void)rcu_enter(seg, 0);
	free(mem_zero(1));
}
#endif

Test(shm_rcu, outside_sections_and_as_an_exception_memory_is_allocated)
{
	mem_check_sections();
	(void)rcu_enter(seg, 0);
	mem_exempt(true);
	free(mem_zero(1));
	mem_exempt(false);
	rcu_leave(seg, 0);
	free(mem_zero(1));
}
