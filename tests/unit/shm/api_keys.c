/* The table of clients' keys: building, looking up, what a key may use; readers beside a writer. */
#include "shm/api_keys.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "shm/core/rcu.h"
#include "tests/unit/shm/fixture.h"

#define MANY 1000

static _Alignas(8) unsigned char arena[MANY * 1024];
static const bool clients[DOOR_N] = {[DOOR_CLIENTS] = true};

/* A key whose SHA-256 begins with `first` and ends with `last`. */
static struct conf_api_key
key_of(const char *name, uint32_t first, uint32_t last)
{
	struct conf_api_key k = {.name = (char *)(uintptr_t)name};

	(void)snprintf(k.sha256, sizeof(k.sha256), "%08x%048x%08x", first, 0, last);
	return k;
}

static void
digest_of(uint32_t first, uint32_t last, unsigned char ret[CONF_SHA256])
{
	memset(ret, 0, CONF_SHA256);
	for (int i = 0; i < 4; i++) {
		ret[i] = (unsigned char)(first >> (24 - 8 * i));
		ret[CONF_SHA256 - 4 + i] = (unsigned char)(last >> (24 - 8 * i));
	}
}

static const struct api_key *
find(uint32_t first, uint32_t last)
{
	unsigned char digest[CONF_SHA256];

	digest_of(first, last, digest);
	return api_keys_find((const struct api_keys *)(const void *)arena, DOOR_CLIENTS, digest);
}

static void
build(const struct conf_api_key *keys, size_t n)
{
	cr_assert_eq(api_keys_build(arena, sizeof(arena), keys, n, clients), 0);
	cr_assert(api_keys_intact((const void *)arena, sizeof(arena)));
}

Test(shm_api_keys, none)
{
	build(NULL, 0);
	cr_assert_null(find(0, 0));
}

Test(shm_api_keys, each_of_many_and_no_other)
{
	static char names[MANY][16];
	static struct conf_api_key keys[MANY];

	for (uint32_t i = 0; i < MANY; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "key%u", i);
		keys[i] = key_of(names[i], i * 2654435761u, i);
		keys[i].terms.max_inflight = i;
	}
	build(keys, MANY);
	for (uint32_t i = 0; i < MANY; i++) {
		cr_assert_str_eq(find(i * 2654435761u, i)->name, names[i]);
		cr_assert_eq(find(i * 2654435761u, i)->terms.max_inflight, i);
		cr_assert_null(find(i * 2654435761u, i + MANY));
	}
}

/* Their place in the table is the same; all 32 bytes count. */
Test(shm_api_keys, keys_that_begin_alike)
{
	const struct conf_api_key keys[] = {
		key_of("a", 7, 1), key_of("b", 7, 2), key_of("c", 7, 3)};

	build(keys, 3);
	cr_assert_str_eq(find(7, 1)->name, "a");
	cr_assert_str_eq(find(7, 3)->name, "c");
	cr_assert_null(find(7, 4));
	cr_assert_null(find(8, 1));
}

Test(shm_api_keys, a_key_opens_the_door_of_its_file_alone)
{
	struct conf_api_key keys[] = {key_of("alice", 1, 1), key_of("grafana", 2, 2),
		key_of("both", 3, 3), key_of("both", 3, 3)};
	const struct api_keys *t = (const void *)arena;
	unsigned char digest[CONF_SHA256];

	keys[1].door = keys[3].door = DOOR_OPERATORS;
	build(keys, 4);
	cr_assert(t->needed[DOOR_CLIENTS] && !t->needed[DOOR_OPERATORS]);
	cr_assert_null(find(2, 2));
	digest_of(1, 1, digest);
	cr_assert_null(api_keys_find(t, DOOR_OPERATORS, digest));
	digest_of(2, 2, digest);
	cr_assert_str_eq(api_keys_find(t, DOOR_OPERATORS, digest)->name, "grafana");
	digest_of(3, 3, digest);
	cr_assert_eq(find(3, 3)->door, DOOR_CLIENTS);
	cr_assert_eq(api_keys_find(t, DOOR_OPERATORS, digest)->door, DOOR_OPERATORS);
}

Test(shm_api_keys, what_a_key_may_use)
{
	char llama[] = "llama", qwen[] = "qwen*", a[] = "a", *models[] = {llama, qwen},
	     *pools[] = {a};
	struct conf_api_key keys[] = {key_of("some", 1, 1), key_of("all", 2, 2)};
	const struct api_key *k;

	keys[0].models = models;
	keys[0].nmodels = 2;
	keys[0].pools = pools;
	keys[0].npools = 1;
	build(keys, 2);
	k = find(1, 1);
	cr_assert(api_key_has_model(k, "llama") && api_key_has_model(k, "qwen-72b"));
	cr_assert(api_key_has_model(k, "qwen") && api_key_has_pool(k, "a"));
	cr_assert(!api_key_has_model(k, "llama-2") && !api_key_has_model(k, "qwe"));
	cr_assert(!api_key_has_model(k, "") && !api_key_has_pool(k, "b"));
	k = find(2, 2);
	cr_assert(api_key_has_model(k, "any") && api_key_has_model(k, "") &&
		  api_key_has_pool(k, "b"));
}

/* What an arena of so many keys has room for, and what it has not. */
Test(shm_api_keys, an_arena_has_room_for_its_number_of_keys)
{
	const size_t size = api_keys_arena_bytes(2);
	char *models[8], long_name[256];
	struct conf_api_key keys[] = {key_of("a", 1, 1), key_of("b", 2, 2), key_of("c", 3, 3)};

	memset(long_name, 'm', sizeof(long_name) - 1);
	long_name[sizeof(long_name) - 1] = '\0';
	for (size_t i = 0; i < 8; i++)
		models[i] = long_name;
	cr_assert_eq(api_keys_build(arena, size, keys, 2, clients), 0);
	cr_assert_leq(api_keys_bytes(keys, 2), size);
	keys[0].models = models;
	keys[0].nmodels = 8;
	cr_assert_eq(api_keys_build(arena, size, keys, 2, clients), -ENOSPC);
	cr_assert_gt(api_keys_bytes(keys, 2), size);
}

Test(shm_api_keys, a_changed_byte_is_seen)
{
	const struct conf_api_key key = key_of("a", 1, 1);

	build(&key, 1);
	arena[sizeof(struct api_keys) + 40] ^= 1;
	cr_assert(!api_keys_intact((const void *)arena, sizeof(arena)));
}

/* --- beside a writer -------------------------------------------------------------------------- */

#define ROUNDS 3000

/* Keys `n` and n + 1 exist in version n; names and limits say the version. */
static void
publish(struct rcu_writer *w, uint32_t n)
{
	char name[16], next[16];
	struct conf_api_key keys[2];
	void *to;

	(void)snprintf(name, sizeof(name), "key%u", n);
	(void)snprintf(next, sizeof(next), "key%u", n + 1);
	keys[0] = key_of(name, n, n);
	keys[1] = key_of(next, n + 1, n + 1);
	keys[0].terms.max_inflight = keys[1].terms.max_inflight = n;
	while ((to = rcu_keys_arena_get(w)) == NULL)
		(void)sched_yield();
	cr_assert_eq(api_keys_build(to, seg->keys_arena_bytes, keys, 2, clients), 0);
	rcu_publish_keys(w, to);
}

/* A reader never sees a key of one version in another, and no half of a table. */
static bool
version_is_whole(const struct api_keys *t)
{
	const uint32_t n = t->keys[0].terms.max_inflight;
	unsigned char digest[CONF_SHA256];
	const struct api_key *k;
	char name[16];

	digest_of(n + 1, n + 1, digest);
	k = api_keys_find(t, DOOR_CLIENTS, digest);
	(void)snprintf(name, sizeof(name), "key%u", n + 1);
	return api_keys_intact(t, seg->keys_arena_bytes) && k != NULL &&
	       strcmp(k->name, name) == 0 && k->terms.max_inflight == n;
}

static void
read_until_killed(uint32_t slot)
{
	bool good = true;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a run that is broken off leaves nobody behind */
	for (unsigned n = 0; good; n++) {
		(void)rcu_enter(seg, slot);
		good = version_is_whole(rcu_keys(seg));
		rcu_leave(seg, slot);
		if (n % 16 ==
			0) /* the writer waits for each reader: on a busy machine it may need the CPU */
			(void)sched_yield();
	}
	_exit(1);
}

Test(shm_api_keys, readers_see_whole_versions, .init = small_seg, .fini = small_seg_end)
{
	struct rcu_writer *w = rcu_writer_new(seg);
	pid_t readers[2];
	int status;

	publish(w, 1);
	for (uint32_t i = 0; i < 2; i++) {
		readers[i] = fork();
		if (readers[i] == 0)
			read_until_killed(i);
	}
	for (uint32_t n = 2; n < ROUNDS; n++)
		publish(w, n);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert_eq(kill(readers[i], SIGKILL), 0);
		cr_assert_eq(waitpid(readers[i], &status, 0), readers[i]);
		cr_expect(WIFSIGNALED(status), "reader %u saw half a version", i);
	}
	rcu_writer_free(&w);
}
