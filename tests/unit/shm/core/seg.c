/* The segment's layout, its header's checks, and the balance rule of accepting. */
#include "shm/core/seg.h"

#include <elf.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/metrics.h"
#include "shm/table.h"
#include "tests/unit/shm/fixture.h"

TestSuite(shm_seg, .init = small_seg, .fini = small_seg_end);

static const struct seg_sizes normal = {.max_workers = 16,
	.max_endpoints = 1024,
	.max_pools = 16,
	.flags_per_worker = 4096,
	.max_quotas = 4096,
	.queue_slots = 1024,
	.max_api_keys = 1024,
	.span_bytes = 1 << 20,
	.running_requests = 512,
	.kept_requests = 1250,
	.prefix_buckets = 1 << 20};

Test(shm_seg, parts_are_aligned_in_order_and_disjoint)
{
	struct seg_part part[SEG_NPARTS];
	const size_t bytes = seg_size(&normal, part);
	size_t at = 0;

	for (size_t i = 0; i < SEG_NPARTS; i++) {
		cr_assert_eq(part[i].offset % SHM_LINE, 0, "%s", part[i].name);
		cr_assert_geq(
			part[i].offset, at, "%s begins inside the part before it", part[i].name);
		at = part[i].offset + part[i].bytes;
	}
	cr_assert_leq(at, bytes);
	cr_assert_lt(bytes - at, SHM_LINE);
}

/* The last byte of each part, as its users compute it, lies inside the part. */
Test(shm_seg, accessors_stay_inside_their_parts)
{
	struct seg_part part[SEG_NPARTS];
	const struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = 4,
		.max_pools = 2,
		.flags_per_worker = 128,
		.max_quotas = 8,
		.queue_slots = 100,
		.max_api_keys = 4,
		.span_bytes = 4096,
		.running_requests = 3,
		.kept_requests = 5,
		.prefix_buckets = 64,
		.sibling_bytes = 2048};
	unsigned char *base = (unsigned char *)seg->hdr;
	const uint32_t workers = SLOT_WORKERS(seg), slots = seg->hdr->nslots;
	const uint32_t named = NAMED_MODEL_SLOTS + named_key_slots(sizes.max_api_keys);

	cr_assert_eq(seg->hdr->bytes, seg_size(&sizes, part));
#define ENDS(i, p)                                                                                 \
	cr_assert_eq(                                                                              \
		(unsigned char *)(p), base + part[i].offset + part[i].bytes, "%s", part[i].name)
	ENDS(1, seg->rcu + 1);
	ENDS(2, seg->settings + 1);
	ENDS(3, seg->proc_records + slots);
	ENDS(4, seg->ep_records + sizes.max_endpoints);
	ENDS(5, seg->ep_tokens + sizes.max_endpoints);
	ENDS(6, seg->pool_names + (size_t)sizes.max_pools * 64);
	ENDS(7, seg->named + named);
	ENDS(8, seg->kv_sources + sizes.max_endpoints);
	ENDS(9, seg->sibling_engines + sizes.max_endpoints);
	ENDS(10, seg->tickets + 1);
	ENDS(11, seg->arenas + SHM_ARENAS * seg->arena_bytes);
	ENDS(12, seg->keys_arenas + SHM_KEYS_ARENAS * seg->keys_arena_bytes);
	ENDS(13, seg->readers + slots);
	ENDS(14, seg->procs + slots);
	ENDS(15, seg->eps + sizes.max_endpoints);
	ENDS(16, seg->tallies + sizes.max_endpoints);
	ENDS(17, seg->latencies + sizes.max_endpoints);
	ENDS(18, seg->refusals + sizes.max_endpoints);
	ENDS(19, seg_row(seg, workers - 1, sizes.max_endpoints - 1) + 1);
	ENDS(20, seg_flag(seg, workers - 1, sizes.flags_per_worker - 1) + 1);
	ENDS(21, seg_ready(seg, workers));
	ENDS(22, seg->quotas + 1);
	ENDS(23, seg->quota_rows + (size_t)workers * sizes.max_quotas);
	ENDS(24, seg->announced + ANNOUNCED_MAX);
	ENDS(25, seg->kv_counts + sizes.max_endpoints);
	ENDS(26, (unsigned char *)seg_queue(seg, sizes.max_pools));
	cr_assert_leq((unsigned char *)seg_queue_slot(seg, 0, sizes.queue_slots),
		(unsigned char *)seg_queue(seg, 1));
	ENDS(27, seg_budget(seg, workers - 1, sizes.max_pools - 1) + 1);
	ENDS(28, seg->fallbacks + sizes.max_pools);
	ENDS(29, seg->exemplars + sizes.max_pools * METRIC_EXEMPLARS * (METRIC_BUCKETS + 1));
	ENDS(30, seg->named_counts + named);
	ENDS(31, (unsigned char *)seg_slab(seg, slots));
	ENDS(32, (unsigned char *)(seg_span_ring(seg, workers - 1) + 1) + sizes.span_bytes);
	ENDS(33, (unsigned char *)(seg_sibling_ring(seg, workers - 1) + 1) + sizes.sibling_bytes);
	ENDS(34, seg->sibling_loads + 4);
	ENDS(35, seg->siblings + SIBLINGS_MAX);
	ENDS(36, seg_note(seg, workers - 1, sizes.running_requests + sizes.kept_requests));
	ENDS(37, seg->prefix_engines + sizes.max_endpoints);
	ENDS(38, seg->prefix + sizes.prefix_buckets);
	cr_assert_eq(seg->secret, (unsigned char *)seg->tickets);
	cr_assert_eq(seg->writable, (unsigned char *)seg->readers);
	cr_assert_eq(seg->writable + seg->writable_bytes, base + seg->hdr->bytes);
#undef ENDS
}

/* --- shm/README.md ------------------------------------------------------------------------ */

static char readme[1 << 16];

static void
readme_read(void)
{
	FILE *f = fopen("shm/README.md", "r"); /* tests run at the root of the tree */

	cr_assert_not_null(f);
	cr_assert_gt(fread(readme, 1, sizeof(readme) - 1, f), 1000);
	(void)fclose(f);
}

/* "4,795,904" */
static const char *
thousands(size_t n, char out[32])
{
	char digits[24];
	size_t len, k = 0;

	(void)snprintf(digits, sizeof(digits), "%zu", n);
	len = strlen(digits);
	for (size_t i = 0; i < len; i++) {
		if (i > 0 && (len - i) % 3 == 0)
			out[k++] = ',';
		out[k++] = digits[i];
	}
	out[k] = '\0';
	return out;
}

/* The row that begins with this name has this number in its third column. */
static void
row_says(const char *name, size_t bytes)
{
	char begin[64], want[40], number[32], line[1024];
	const char *row, *cell;

	(void)snprintf(begin, sizeof(begin), "\n| %s", name);
	row = strstr(readme, begin);
	cr_assert_not_null(row, "shm/README.md has no row for %s", name);
	(void)snprintf(line, sizeof(line), "%.*s", (int)strcspn(row + 1, "\n"), row + 1);
	cell = strchr(line + 1, '|');
	cell = cell != NULL ? strchr(cell + 1, '|') : NULL;
	cr_assert_not_null(cell, "%s", line);
	(void)snprintf(want, sizeof(want), "| %s |", thousands(bytes, number));
	cr_expect_eq(strncmp(cell, want, strlen(want)), 0, "shm/README.md, %s: %s bytes, not %.16s",
		name, number, cell + 2);
}

Test(shm_seg, the_readme_says_how_large_each_part_is)
{
	struct seg_part part[SEG_NPARTS];
	const size_t bytes = seg_size(&normal, part);

	readme_read();
	for (size_t i = 0; i < SEG_NPARTS; i++)
		row_says(part[i].name, (part[i].bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE);
	row_says("together", bytes);
}

/* What a pool and an endpoint cost in an arena, a pool in a slab. */
Test(shm_seg, the_readme_says_what_the_sizes_are_made_of)
{
	const size_t empty = table_arena_bytes(0, 0);
	char text[160], pool[32], endpoint[32], slab[32];

	readme_read();
	(void)snprintf(text, sizeof(text),
		"4 x (%zu + max_pools x %s + max_endpoints x %s, rounded)", empty,
		thousands(table_arena_bytes(1, 0) - empty, pool),
		thousands(table_arena_bytes(0, 1) - empty, endpoint));
	cr_expect_not_null(strstr(readme, text), "shm/README.md does not say %s", text);
	(void)snprintf(text, sizeof(text), "N x (%s + max_pools x %s, rounded)",
		thousands(sizeof(struct metrics_slab), slab),
		thousands(sizeof(struct metric_pool), pool));
	cr_expect_not_null(strstr(readme, text), "shm/README.md does not say %s", text);
}

Test(shm_seg, slots_are_workers_of_two_generations_single_processes_master)
{
	cr_assert_eq(SLOT_WORKERS(seg), 4);
	cr_assert_eq(SLOT_NOTIFIER(seg), 4);
	cr_assert_eq(SLOT_EXPORTER(seg), 5);
	cr_assert_eq(SLOT_MASTER(seg), 6);
}

Test(shm_seg, impossible_sizes_are_refused)
{
#define SIZES(workers, endpoints, pools, flags, clients)                                           \
	{                                                                                          \
		.max_workers = (workers), .max_endpoints = (endpoints), .max_pools = (pools),      \
		.flags_per_worker = (flags), .max_quotas = (clients)                               \
	}
	static const struct seg_sizes bad[] = {
		SIZES(0, 4, 2, 64, 8),
		SIZES(128, 4, 2, 64, 8), /* worker + 1 has 8 bits for two generations */
		SIZES(2, 0, 2, 64, 8),
		SIZES(2, 65537, 2, 64, 8), /* an endpoint has 16 bits in the journal */
		SIZES(2, 4, 0, 64, 8),
		SIZES(2, 4, 4097, 64, 8),
		SIZES(2, 4, 2, 0, 8),
		SIZES(2, 4, 2, 65, 8),
		SIZES(2, 4, 2, 65600, 8), /* a slot has 4 hex digits */
		SIZES(2, 4, 2, 64, 4),    /* half a set */
		SIZES(2, 4, 2, 64, 65544),
		{.max_workers = 2,
			.max_endpoints = 4,
			.max_pools = 2,
			.flags_per_worker = 64,
			.queue_slots = 65537},
		{.max_workers = 2,
			.max_endpoints = 4,
			.max_pools = 2,
			.flags_per_worker = 64,
			.kept_requests = (1 << 20) + 1},
		{.max_workers = 2,
			.max_endpoints = 4,
			.max_pools = 2,
			.flags_per_worker = 64,
			.prefix_buckets = 3},
	};
#undef SIZES
	struct seg *got = NULL;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_assert_eq(seg_new(&bad[i], 1, &got), -EINVAL, "row %zu", i);
		cr_assert_null(got);
	}
}

Test(shm_seg, another_build_version_or_size_is_refused)
{
	struct shm_header hdr = *seg->hdr;

	cr_assert_eq(seg_check(&hdr, SMALL_BUILD), 0);
	cr_assert_eq(seg_check(&hdr, SMALL_BUILD + 1), -EPROTO);
#define REFUSED_WITH(field)                                                                        \
	do {                                                                                       \
		hdr = *seg->hdr;                                                                   \
		hdr.field++;                                                                       \
		cr_assert_eq(seg_check(&hdr, SMALL_BUILD), -EPROTO, #field);                       \
	} while (0)
	REFUSED_WITH(magic);
	REFUSED_WITH(version);
	REFUSED_WITH(bytes);
	REFUSED_WITH(nslots);
	REFUSED_WITH(max_workers);
	REFUSED_WITH(max_endpoints);
	REFUSED_WITH(max_pools);
	REFUSED_WITH(flags_per_worker);
	REFUSED_WITH(max_quotas);
	REFUSED_WITH(prefix_buckets);
#undef REFUSED_WITH
}

static int
find_build_id(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
		const unsigned char *at = (const unsigned char *)(info->dlpi_addr + ph->p_vaddr);
		const unsigned char *end = at + ph->p_memsz;

		while (ph->p_type == PT_NOTE && at + sizeof(ElfW(Nhdr)) < end) {
			const ElfW(Nhdr) *note = (const void *)at;

			*(bool *)arg |= note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
					memcmp(note + 1, "GNU", 4) == 0;
			at += sizeof(*note) + (note->n_namesz + 3) / 4 * 4 +
			      (note->n_descsz + 3) / 4 * 4;
		}
	}
	return 1; /* the program itself comes first */
}

/* Without it all builds would take each other's segments. */
Test(shm_seg, the_program_has_a_build_id)
{
	const uint64_t build = seg_build();
	bool has = false;

	(void)dl_iterate_phdr(find_build_id, &has);
	cr_assert(has);
	cr_assert_neq(build, 0);
	cr_assert_eq(seg_build(), build);
}

Test(shm_seg, a_child_writes_and_its_master_reads)
{
	int status;
	const pid_t pid = fork();

	cr_assert_geq(pid, 0);
	if (pid == 0) {
		proc_heartbeat(seg, 1, 77);
		proc_crash_note_set(seg, 1, "assertion failed");
		_exit(0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(proc_heartbeat_ms(seg, 1), 77);
	cr_assert_str_eq(seg->procs[1].crash_note, "assertion failed");
}

/* The status of a child that stores into this word. */
static int
child_stores(void *at, bool allow)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	void *const begin = (void *)((uintptr_t)at / page * page);
	const pid_t pid = fork();
	int status;

	cr_assert_geq(pid, 0);
	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL);
		if (seg_read_only(seg) != 0)
			_exit(2);
		if (allow && mprotect(begin, page, PROT_READ | PROT_WRITE) == -1)
			_exit(errno == EACCES ? 3 : 4);
		*(volatile char *)at = 1;
		_exit(0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

Test(shm_seg, a_child_cannot_write_what_is_the_masters)
{
	void *const masters[] = {&seg->hdr->seed, &seg->rcu->table, seg->pool_names, seg->arenas,
		seg->arenas + SHM_ARENAS * seg->arena_bytes - 1};

	for (size_t i = 0; i < sizeof(masters) / sizeof(masters[0]); i++) {
		cr_assert_eq(child_stores(masters[i], false), -SIGSEGV, "%zu", i);
		cr_assert_eq(child_stores(masters[i], true), 3, "%zu", i);
	}
	cr_assert_eq(child_stores(seg->readers, false), 0);
	cr_assert_eq(child_stores(seg->writable + seg->writable_bytes - 1, false), 0);
	seg_pool_name(seg, 0)[0] = 'x'; /* the master still can */
}

/* The status of a child without keys that reads this byte. */
static int
child_reads(const volatile void *at)
{
	const pid_t pid = fork();
	int status;

	cr_assert_geq(pid, 0);
	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL);
		if (seg_read_only(seg) != 0 || seg_hide_keys(seg) != 0)
			_exit(2);
		_exit(*(const volatile unsigned char *)at);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

Test(shm_seg, a_child_may_do_without_keys)
{
	const void *const keys[] = {&seg->tickets->word, seg->arenas,
		seg->arenas + SHM_ARENAS * seg->arena_bytes - 1, seg->keys_arenas,
		seg->keys_arenas + SHM_KEYS_ARENAS * seg->keys_arena_bytes - 1};

	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
		cr_assert_eq(child_reads(keys[i]), -SIGSEGV, "%zu", i);
	seg->settings->word[SETTINGS_WORDS - 1] = 7;
	cr_assert_eq(child_reads(&seg->settings->word[SETTINGS_WORDS - 1]), 7);
	cr_assert_eq(child_reads(&seg->named[NAMED_MODEL_SLOTS]), 0);
	cr_assert_eq(child_reads(seg->readers), 0);
}

Test(shm_seg, a_crash_note_is_clipped)
{
	char text[2 * SHM_CRASH_NOTE];

	memset(text, 'x', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	proc_crash_note_set(seg, 0, text);
	cr_assert_eq(strlen(seg->procs[0].crash_note), SHM_CRASH_NOTE - 1);
	cr_assert_eq(proc_heartbeat_ms(seg, 1), 0);
}

Test(shm_seg, a_forbidden_call_may_have_number_0)
{
	uint32_t call = 7;

	cr_assert_not(proc_forbidden(seg, 1, &call));
	proc_forbidden_set(seg, 1, 0);
	cr_assert(proc_forbidden(seg, 1, &call));
	cr_assert_eq(call, 0);
}

Test(shm_seg, a_cleared_slot_says_nothing)
{
	uint32_t call;

	proc_slot_set(seg, 0, 4711, PROC_READY, 3);
	cr_assert_eq(proc_slot_state(seg, 0), PROC_READY);
	proc_heartbeat(seg, 0, 5);
	seg->procs[0].conns = 6;
	seg->procs[0].accepts = 3;
	proc_crash_note_set(seg, 0, "oh");
	proc_sandboxed_set(seg, 0);
	proc_forbidden_set(seg, 0, 59);
	proc_slot_set(seg, 0, 4711, PROC_DRAINING, 3);
	cr_assert_eq(seg->procs[0].conns, 6);
	cr_assert(proc_is_sandboxed(seg, 0));
	proc_slot_set(seg, 0, 0, PROC_EMPTY, 0);
	cr_assert_eq(proc_slot_state(seg, 0), PROC_EMPTY);
	cr_assert_eq(seg->proc_records[0].pid, 0);
	cr_assert_eq(proc_heartbeat_ms(seg, 0), 0);
	cr_assert_eq(seg->procs[0].conns, 0);
	cr_assert_eq(seg->procs[0].accepts, 0);
	cr_assert_not(proc_is_sandboxed(seg, 0));
	cr_assert_not(proc_forbidden(seg, 0, &call));
	cr_assert_str_empty(seg->procs[0].crash_note);
}
