/*
 * The segment: where each part lies, how it is made and what processes say about themselves in it.
 *
 * One walk over the parts (lay_out) gives both the size and the pointers, so the two cannot differ.
 */
#include "shm/core/seg.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/core/atomic.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "shm/base/rnd.h"
#include "shm/api_keys.h"
#include "shm/metrics_layout.h"
#include "shm/table.h"

/* Bounds that follow from how words are packed; the configuration's own are narrower. */
#define MAX_WORKERS 127     /* 2 x as many slots in "last worker+1:8" of struct ep_word */
#define MAX_ENDPOINTS 65536 /* 16 bits of a journal word, load.c */
#define MAX_FLAGS 65536     /* 4 hex digits of a flag id */
#define MAX_QUOTAS 65536    /* 16 bits of a journal word, load.c */
#define MAX_QUEUE 65536     /* slots of one pool */
#define MAX_API_KEYS 65536
#define MAX_SPAN_BYTES (256u << 20)
#define MAX_SIBLING_BYTES (256u << 20)
#define MAX_NOTES (1u << 20)
#define MAX_PREFIX_BUCKETS (1u << 30)
#define MAX_POOLS 4096 /* METRIC_NO_POOL is 0xffff; more would only make the slabs huge */

/* Every version must find these two at the same offsets, or it could not refuse the others. */
static_assert(offsetof(struct shm_header, magic) == 0, "where any version looks for it");
static_assert(offsetof(struct shm_header, version) == 8, "where any version looks for it");
static_assert(sizeof(struct shm_header) <= SHM_LINE, "the header is one line");
static_assert(sizeof(struct rcu_reader) == SHM_LINE, "no two readers share a line");
static_assert(sizeof(struct rcu_domain) == 2 * SHM_LINE, "gp and the pointer have a line each");
static_assert(
	offsetof(struct rcu_domain, table) == SHM_LINE, "gp and the pointer have a line each");
static_assert(sizeof(struct settings) == 2 * SHM_LINE, "seq is in the first line");
static_assert(sizeof(struct tickets) == 2 * SHM_LINE, "as drawn in shm/README");
static_assert(sizeof(struct ep_word) == SHM_LINE, "no two endpoints share a line");
static_assert(sizeof(struct tally) == SHM_LINE, "no two endpoints share a line");
static_assert(sizeof(struct latency) == 2 * SHM_LINE, "no two endpoints share a line");
static_assert(sizeof(struct named_slot) == SHM_LINE, "as drawn in shm/README");
static_assert(sizeof(struct named_count) == SHM_LINE / 2, "as drawn in shm/README");
static_assert(sizeof(struct budget) == SHM_LINE, "no two workers share a line");
static_assert(sizeof(struct refusal) == SHM_LINE, "no two endpoints share a line");
static_assert(offsetof(struct ep_word, count) == 0, "a selection reads one half");
static_assert(offsetof(struct ep_word, answers) == SHM_LINE / 2, "a selection reads one half");
static_assert(sizeof(struct ep_record) == SHM_LINE / 2, "a selection reads one half");
static_assert(sizeof(struct proc_record) == SHM_LINE / 2, "half a line each");
static_assert(offsetof(struct proc_slot, journal) == SHM_LINE, "the journal has its own line");
static_assert(offsetof(struct proc_slot, seq) < 2 * SHM_LINE, "an operation writes one line");
static_assert(sizeof(struct proc_slot) == 4 * SHM_LINE, "as drawn in shm/README");
static_assert(offsetof(struct flag_slot, nonce) == 8, "as drawn in shm/README");
static_assert(offsetof(struct row, tokens) == 4 && offsetof(struct row, sent) == 8 &&
		      offsetof(struct row, kv) == 12,
	"as drawn in shm/README");
static_assert(offsetof(struct quota_set, key) == 8, "as drawn in shm/README");
static_assert(sizeof(struct announced) == 2 * SHM_LINE, "as drawn in shm/README");
static_assert(offsetof(struct announced, kv) == 24 + ANNOUNCED_ADDRESS, "as drawn in shm/README");
static_assert(ANNOUNCED_ADDRESS % sizeof(uint64_t) == 0, "texts are copied word by word");
static_assert(sizeof(struct kv_source_words) == 2 * SHM_LINE, "as drawn in shm/README");
static_assert(sizeof(struct kv_count_words) == SHM_LINE, "no two endpoints share a line");
static_assert(sizeof(struct metrics_slab) % SHM_LINE == 0, "no two slabs share a line");
static_assert(sizeof(struct prefix_engine) == SHM_LINE / 2, "half a line each");
static_assert(sizeof(struct prefix_bucket) == SHM_LINE / 2, "a cache line each");
static_assert(sizeof(struct byte_ring) == 2 * SHM_LINE, "writer and reader write a line each");
static_assert(sizeof(struct sibling_words) == SHM_LINE, "as drawn in shm/README");
static_assert(sizeof(struct notes_head) == SHM_LINE && sizeof(struct note_words) == 2 * SHM_LINE,
	"as drawn in shm/README");
static_assert(sizeof(struct queue_head) == 2 * SHM_LINE,
	"releases read one line, entries write the other");

/* What only the master writes comes first: children map it read-only. */
enum part {
	PART_HEADER,
	PART_RCU,
	PART_SETTINGS,
	PART_PROC_RECORDS,
	PART_EP_RECORDS,
	PART_EP_TOKENS,
	PART_POOL_NAMES,
	PART_NAMED,
	PART_KV_SOURCES,
	PART_SIBLING_ENGINES,
	PART_SECRET, /* the first of those that have keys: master and workers alone map them */
	PART_TICKETS = PART_SECRET,
	PART_ARENAS,
	PART_KEYS_ARENAS,
	PART_WRITABLE, /* the first of those that all processes write */
	PART_READERS = PART_WRITABLE,
	PART_PROCS,
	PART_ENDPOINTS,
	PART_TALLIES,
	PART_LATENCIES,
	PART_REFUSALS,
	PART_ROWS,
	PART_FLAGS,
	PART_READY,
	PART_QUOTAS,
	PART_QUOTA_ROWS,
	PART_ANNOUNCED,
	PART_KV_COUNTS,
	PART_QUEUES,
	PART_BUDGETS,
	PART_FALLBACKS,
	PART_EXEMPLARS,
	PART_NAMED_COUNTS,
	PART_SLABS,
	PART_SPANS,
	PART_SIBLING_RINGS,
	PART_SIBLING_LOADS,
	PART_SIBLINGS,
	PART_NOTES,
	PART_PREFIX_ENGINES,
	PART_PREFIX,
	PART_N
};
static_assert(PART_N == SEG_NPARTS, "one row per part");

static size_t
round_line(size_t n)
{
	return (n + SHM_LINE - 1) / SHM_LINE * SHM_LINE;
}

static size_t
round_page(size_t n)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);

	return (n + page - 1) / page * page;
}

static uint32_t
worker_slots(const struct seg_sizes *s)
{
	return 2 * s->max_workers;
}

static size_t
arena_bytes(const struct seg_sizes *s)
{
	return round_line(table_arena_bytes(s->max_pools, s->max_endpoints));
}

static size_t
keys_arena_bytes(const struct seg_sizes *s)
{
	return round_line(api_keys_arena_bytes(s->max_api_keys));
}

static size_t
queue_bytes(const struct seg_sizes *s)
{
	return round_line(sizeof(struct queue_head) +
			  seg_queue_nmarks(s->queue_slots) * sizeof(uint64_t) +
			  s->queue_slots * sizeof(struct queue_slot));
}

static size_t
notes_bytes(const struct seg_sizes *s)
{
	return sizeof(struct notes_head) +
	       ((size_t)s->running_requests + s->kept_requests) * sizeof(struct note_words);
}

static void
lay_out(const struct seg_sizes *s, struct seg_part part[SEG_NPARTS])
{
	const size_t workers = worker_slots(s), slots = workers + SLOT_EXTRA;
	const bool siblings = s->sibling_bytes > 0;
	const size_t named = (size_t)NAMED_MODEL_SLOTS + named_key_slots(s->max_api_keys);
	// clang-format off
	const struct seg_part want[PART_N] = {
		[PART_HEADER]     = { "header", 0, sizeof(struct shm_header) },
		[PART_RCU]        = { "rcu domain", 0, sizeof(struct rcu_domain) },
		[PART_SETTINGS]   = { "settings", 0, sizeof(struct settings) },
		[PART_PROC_RECORDS] = { "process records", 0, slots * sizeof(struct proc_record) },
		[PART_EP_RECORDS] = { "endpoint records", 0, s->max_endpoints * sizeof(struct ep_record) },
		[PART_EP_TOKENS]  = { "tokens of engines", 0, s->max_endpoints * sizeof(struct ep_tokens) },
		[PART_POOL_NAMES] = { "pool names", 0, (size_t)s->max_pools * SEG_POOL_NAME },
		[PART_NAMED]      = { "names", 0, named * sizeof(struct named_slot) },
		[PART_KV_SOURCES] = { "sources of KV events", 0, s->max_endpoints * sizeof(struct kv_source_words) },
		[PART_SIBLING_ENGINES] = { "sibling engines", 0, siblings ? s->max_endpoints * sizeof(struct sibling_engine) : 0 },
		[PART_TICKETS]    = { "tickets", 0, sizeof(struct tickets) },
		[PART_ARENAS]     = { "table arenas", 0, SHM_ARENAS * arena_bytes(s) },
		[PART_KEYS_ARENAS] = { "key arenas", 0, SHM_KEYS_ARENAS * keys_arena_bytes(s) },
		[PART_READERS]    = { "rcu readers", 0, slots * sizeof(struct rcu_reader) },
		[PART_PROCS]      = { "process slots", 0, slots * sizeof(struct proc_slot) },
		[PART_ENDPOINTS]  = { "endpoint words", 0, s->max_endpoints * sizeof(struct ep_word) },
		[PART_TALLIES]    = { "tallies", 0, s->max_endpoints * sizeof(struct tally) },
		[PART_LATENCIES]  = { "latencies", 0, s->max_endpoints * sizeof(struct latency) },
		[PART_REFUSALS]   = { "refusals", 0, s->max_endpoints * sizeof(struct refusal) },
		[PART_ROWS]       = { "rows", 0, workers * s->max_endpoints * sizeof(struct row) },
		[PART_FLAGS]      = { "flags", 0, workers * s->flags_per_worker * sizeof(struct flag_slot) },
		[PART_READY]      = { "ready bits", 0, workers * s->flags_per_worker / 8 },
		[PART_QUOTAS]    = { "quotas", 0, s->max_quotas / QUOTA_WAYS * sizeof(struct quota_set) },
		[PART_QUOTA_ROWS] = { "quota rows", 0, workers * s->max_quotas * sizeof(uint32_t) },
		[PART_ANNOUNCED]  = { "announcements", 0, ANNOUNCED_MAX * sizeof(struct announced) },
		[PART_KV_COUNTS]  = { "counts of KV events", 0, s->max_endpoints * sizeof(struct kv_count_words) },
		[PART_QUEUES]     = { "queues", 0, s->max_pools * queue_bytes(s) },
		[PART_BUDGETS]    = { "budgets", 0, workers * s->max_pools * sizeof(struct budget) },
		[PART_FALLBACKS]  = { "fallbacks", 0, s->max_pools * sizeof(struct fallback) },
		[PART_EXEMPLARS]  = { "exemplars", 0, s->max_pools * METRIC_EXEMPLAR_BYTES },
		[PART_NAMED_COUNTS] = { "counts by name", 0, named * sizeof(struct named_count) },
		[PART_SLABS]      = { "metric slabs", 0, slots * metrics_slab_bytes(s->max_pools) },
		[PART_SPANS]      = { "spans", 0, workers * (sizeof(struct byte_ring) + s->span_bytes) },
		[PART_SIBLING_RINGS]   = { "sibling rings", 0, siblings ? workers * (sizeof(struct byte_ring) + s->sibling_bytes) : 0 },
		[PART_SIBLING_LOADS] = { "sibling loads", 0, siblings ? s->max_endpoints * sizeof(uint64_t) : 0 },
		[PART_SIBLINGS] = { "siblings", 0, siblings ? SIBLINGS_MAX * sizeof(struct sibling_words) : 0 },
		[PART_NOTES]      = { "requests", 0, workers * notes_bytes(s) },
		[PART_PREFIX_ENGINES] = { "prefix engines", 0, s->max_endpoints * sizeof(struct prefix_engine) },
		[PART_PREFIX]     = { "prefix index", 0, s->prefix_buckets * sizeof(struct prefix_bucket) },
	};
	// clang-format on
	size_t at = 0;

	for (int i = 0; i < PART_N; i++) {
		if (i == PART_SECRET || i == PART_WRITABLE)
			at = round_page(at);
		part[i] = want[i];
		part[i].offset = at;
		at += round_line(want[i].bytes);
	}
}

size_t
seg_size(const struct seg_sizes *sizes, struct seg_part ret_parts[SEG_NPARTS])
{
	struct seg_part part[SEG_NPARTS];

	lay_out(sizes, part);
	if (ret_parts != NULL)
		memcpy(ret_parts, part, sizeof(part));
	return part[PART_N - 1].offset + round_line(part[PART_N - 1].bytes);
}

static bool
sizes_possible(const struct seg_sizes *s)
{
	return s->max_workers >= 1 && s->max_workers <= MAX_WORKERS && s->max_endpoints >= 1 &&
	       s->max_endpoints <= MAX_ENDPOINTS && s->max_pools >= 1 &&
	       s->max_pools <= MAX_POOLS && s->flags_per_worker >= 64 &&
	       s->flags_per_worker <= MAX_FLAGS && s->flags_per_worker % 64 == 0 &&
	       s->max_quotas <= MAX_QUOTAS && s->max_quotas % QUOTA_WAYS == 0 &&
	       s->queue_slots <= MAX_QUEUE && s->max_api_keys <= MAX_API_KEYS &&
	       s->span_bytes <= MAX_SPAN_BYTES && s->span_bytes % SHM_LINE == 0 &&
	       s->running_requests <= MAX_NOTES && s->kept_requests <= MAX_NOTES &&
	       s->prefix_buckets <= MAX_PREFIX_BUCKETS && s->prefix_buckets % 2 == 0 &&
	       s->sibling_bytes <= MAX_SIBLING_BYTES && s->sibling_bytes % SHM_LINE == 0;
}

static struct seg *
seg_at(unsigned char *base, const struct seg_sizes *sizes)
{
	struct seg_part part[SEG_NPARTS];
	struct seg *seg = MEM_NEW(struct seg);

	lay_out(sizes, part);
#define AT(p) ((void *)(base + part[p].offset))
	seg->hdr = AT(PART_HEADER);
	seg->rcu = AT(PART_RCU);
	seg->settings = AT(PART_SETTINGS);
	seg->tickets = AT(PART_TICKETS);
	seg->proc_records = AT(PART_PROC_RECORDS);
	seg->ep_records = AT(PART_EP_RECORDS);
	seg->ep_tokens = AT(PART_EP_TOKENS);
	seg->readers = AT(PART_READERS);
	seg->procs = AT(PART_PROCS);
	seg->eps = AT(PART_ENDPOINTS);
	seg->tallies = AT(PART_TALLIES);
	seg->latencies = AT(PART_LATENCIES);
	seg->refusals = AT(PART_REFUSALS);
	seg->rows = AT(PART_ROWS);
	seg->flags = AT(PART_FLAGS);
	seg->ready = AT(PART_READY);
	seg->quotas = AT(PART_QUOTAS);
	seg->quota_rows = AT(PART_QUOTA_ROWS);
	seg->announced = AT(PART_ANNOUNCED);
	seg->kv_sources = AT(PART_KV_SOURCES);
	seg->kv_counts = AT(PART_KV_COUNTS);
	seg->queues = AT(PART_QUEUES);
	seg->budgets = AT(PART_BUDGETS);
	seg->fallbacks = AT(PART_FALLBACKS);
	seg->exemplars = AT(PART_EXEMPLARS);
	seg->named = AT(PART_NAMED);
	seg->named_counts = AT(PART_NAMED_COUNTS);
	seg->slabs = AT(PART_SLABS);
	seg->spans = AT(PART_SPANS);
	seg->sibling_rings = AT(PART_SIBLING_RINGS);
	seg->sibling_engines = AT(PART_SIBLING_ENGINES);
	seg->sibling_loads = AT(PART_SIBLING_LOADS);
	seg->siblings = AT(PART_SIBLINGS);
	seg->notes = AT(PART_NOTES);
	seg->prefix_engines = AT(PART_PREFIX_ENGINES);
	seg->prefix = AT(PART_PREFIX);
	seg->pool_names = AT(PART_POOL_NAMES);
	seg->arenas = AT(PART_ARENAS);
	seg->keys_arenas = AT(PART_KEYS_ARENAS);
#undef AT
	seg->secret = base + part[PART_SECRET].offset;
	seg->writable = base + part[PART_WRITABLE].offset;
	seg->writable_bytes = seg_size(sizes, NULL) - part[PART_WRITABLE].offset;
	seg->arena_bytes = arena_bytes(sizes);
	seg->keys_arena_bytes = keys_arena_bytes(sizes);
	seg->slab_bytes = metrics_slab_bytes(sizes->max_pools);
	seg->queue_bytes = queue_bytes(sizes);
	return seg;
}

/*
 * Maps a memfd of that size at `at`.  Returns its descriptor, or -errno.  Without the seals, a process
 * with the descriptor could shrink the file under the mapping, which would be a SIGBUS in every process.
 * `later`: seals for mappings that come after this one.
 */
static int
map_memfd(const char *name, unsigned char *at, size_t bytes, int later)
{
	int r, fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd == -1)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) == -1 ||
		mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
			MAP_FAILED ||
		fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | later) == -1) {
		r = -errno;
		(void)close(fd);
		return r;
	}
	return fd;
}

/* Both memfds, one after the other.  Returns the descriptor of the first one, or -errno. */
static int
map_both(unsigned char *base, size_t masters, size_t writable)
{
	int fd = map_memfd("pdrouter-master", base, masters, F_SEAL_FUTURE_WRITE), all;

	if (fd < 0)
		return fd;
	all = map_memfd("pdrouter", base + masters, writable, 0);
	if (all < 0) {
		(void)close(fd);
		return all;
	}
	(void)close(all); /* the mapping keeps the memory */
	return fd;
}

int
seg_new(const struct seg_sizes *sizes, uint64_t build, struct seg **ret)
{
	struct seg_part part[SEG_NPARTS];
	size_t bytes, masters;
	void *base;
	int fd;

	if (!sizes_possible(sizes))
		return -EINVAL;
	bytes = seg_size(sizes, part);
	masters = part[PART_WRITABLE].offset;
	base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (base == MAP_FAILED)
		return -errno;
	fd = map_both(base, masters, bytes - masters);
	if (fd < 0) {
		(void)munmap(base, bytes);
		return fd;
	}
	*ret = seg_at(base, sizes);
	(*ret)->masters_fd = fd;
	*(*ret)->hdr = (struct shm_header){
		.magic = SHM_MAGIC,
		.version = SHM_VERSION,
		.max_workers = sizes->max_workers,
		.max_endpoints = sizes->max_endpoints,
		.max_pools = sizes->max_pools,
		.flags_per_worker = sizes->flags_per_worker,
		.max_quotas = sizes->max_quotas,
		.queue_slots = sizes->queue_slots,
		.max_api_keys = sizes->max_api_keys,
		.span_bytes = sizes->span_bytes,
		.running_requests = sizes->running_requests,
		.kept_requests = sizes->kept_requests,
		.prefix_buckets = sizes->prefix_buckets,
		.nslots = worker_slots(sizes) + SLOT_EXTRA,
		.instance = sizes->instance,
		.sibling_bytes = sizes->sibling_bytes,
		.bytes = bytes,
		.build = build,
		.seed = {rnd_u64(), rnd_u64()},
		.prefix_seed = {sizes->prefix_seed[0], sizes->prefix_seed[1]},
	};
	if ((sizes->prefix_seed[0] | sizes->prefix_seed[1]) == 0)
		for (int i = 0; i < 2; i++)
			(*ret)->hdr->prefix_seed[i] = rnd_u64();
	return 0;
}

int
seg_read_only(struct seg *seg)
{
	const size_t masters = (size_t)(seg->writable - (unsigned char *)seg->hdr);

	return mmap(seg->hdr, masters, PROT_READ, MAP_SHARED | MAP_FIXED, seg->masters_fd, 0) ==
			       MAP_FAILED
		       ? -errno
		       : 0;
}

int
seg_hide_keys(struct seg *seg)
{
	/* another mapping in its place, and not mprotect(), which could be undone */
	return mmap(seg->secret, (size_t)(seg->writable - seg->secret), PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED
		       ? -errno
		       : 0;
}

/* FNV-1a over the program's notes, of which the build id is one. */
static int
hash_notes(struct dl_phdr_info *info, size_t size, void *arg)
{
	uint64_t h = 14695981039346656037ull;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *ph = &info->dlpi_phdr[i];
		const unsigned char *p = (const unsigned char *)(info->dlpi_addr + ph->p_vaddr);

		for (size_t k = 0; ph->p_type == PT_NOTE && k < ph->p_memsz; k++)
			h = (h ^ p[k]) * 1099511628211ull;
	}
	*(uint64_t *)arg = h;
	return 1; /* the program itself comes first: the libraries do not matter */
}

uint64_t
seg_build(void)
{
	uint64_t build = 0;

	(void)dl_iterate_phdr(hash_notes, &build);
	return build;
}

int
seg_check(const struct shm_header *hdr, uint64_t build)
{
	const struct seg_sizes sizes = {
		.max_workers = hdr->max_workers,
		.max_endpoints = hdr->max_endpoints,
		.max_pools = hdr->max_pools,
		.flags_per_worker = hdr->flags_per_worker,
		.max_quotas = hdr->max_quotas,
		.queue_slots = hdr->queue_slots,
		.max_api_keys = hdr->max_api_keys,
		.span_bytes = hdr->span_bytes,
		.running_requests = hdr->running_requests,
		.kept_requests = hdr->kept_requests,
		.prefix_buckets = hdr->prefix_buckets,
		.sibling_bytes = hdr->sibling_bytes,
	};

	if (hdr->magic != SHM_MAGIC || hdr->version != SHM_VERSION || hdr->build != build)
		return -EPROTO;
	if (!sizes_possible(&sizes) || hdr->nslots != worker_slots(&sizes) + SLOT_EXTRA ||
		hdr->bytes != seg_size(&sizes, NULL))
		return -EPROTO;
	return 0;
}

void
seg_free(struct seg **seg)
{
	if (*seg == NULL)
		return;
	(void)close((*seg)->masters_fd);
	(void)munmap((*seg)->hdr, (*seg)->hdr->bytes);
	free(*seg);
	*seg = NULL;
}

void
proc_heartbeat(struct seg *seg, uint32_t slot, uint64_t now_ms)
{
	shm_store(&seg->procs[slot].heartbeat_ms, now_ms);
}

uint64_t
proc_heartbeat_ms(const struct seg *seg, uint32_t slot)
{
	return shm_load(&seg->procs[slot].heartbeat_ms);
}

void
proc_slot_set(
	struct seg *seg, uint32_t slot, uint64_t pid, enum proc_state state, uint64_t generation)
{
	struct proc_record *record = &seg->proc_records[slot];
	struct proc_slot *p = &seg->procs[slot];

	if (pid == 0) { /* gone (waitpid): the owner's words are the master's now */
		shm_store(&p->heartbeat_ms, 0);
		shm_store(&p->conns, 0);
		shm_store(&p->accepts, 0);
		shm_store(&p->sandboxed, 0);
		shm_store(&p->forbidden, 0);
		shm_store(&p->start_ms, 0);
		shm_store(&p->stored[0], 0);
		shm_store(&p->stored[1], 0);
		p->crash_note[0] = '\0';
	}
	shm_store(&record->pid, pid);
	shm_store(&record->generation, generation);
	shm_store(&record->state, (uint64_t)state);
}

enum proc_state
proc_slot_state(const struct seg *seg, uint32_t slot)
{
	return (enum proc_state)shm_load(&seg->proc_records[slot].state);
}

void
proc_sandboxed_set(struct seg *seg, uint32_t slot)
{
	shm_store(&seg->procs[slot].sandboxed, 1);
}

bool
proc_is_sandboxed(const struct seg *seg, uint32_t slot)
{
	return shm_load(&seg->procs[slot].sandboxed) != 0;
}

void
proc_forbidden_set(struct seg *seg, uint32_t slot, uint32_t call)
{
	shm_store(&seg->procs[slot].forbidden, (uint64_t)call + 1);
}

bool
proc_forbidden(const struct seg *seg, uint32_t slot, uint32_t *ret_call)
{
	const uint64_t word = shm_load(&seg->procs[slot].forbidden);

	*ret_call = (uint32_t)(word - 1);
	return word != 0;
}

void
proc_crash_note_set(struct seg *seg, uint32_t slot, const char *text)
{
	char *note = seg->procs[slot].crash_note;
	const size_t len = strnlen(text, SHM_CRASH_NOTE - 1);

	memcpy(note, text, len);
	note[len] = '\0';
}
