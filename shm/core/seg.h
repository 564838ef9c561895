/*
 * The shared segment, mapped by the master before any fork: two memfds, one after the other.  The first
 * has what only the master writes (header, rcu domain, pool names, tables), and children map it
 * read-only.  The second has what all processes write.
 *
 * Ownership: the master makes it; children use the inherited `struct seg` (plain pointers into the one
 * mapping) and never unmap it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/core/layout.h"

struct exemplar_words;
struct metrics_slab;
struct own;

struct seg_sizes {
	/* flags: a multiple of 64 */
	uint32_t max_workers, max_endpoints, max_pools, flags_per_worker;
	uint32_t max_quotas;  /* a multiple of QUOTA_WAYS; 0: none is limited */
	uint32_t queue_slots; /* per pool; 0: no request can wait */
	uint32_t max_api_keys;
	uint32_t span_bytes;                      /* per worker; a multiple of SHM_LINE */
	uint32_t running_requests, kept_requests; /* per worker */
	uint32_t prefix_buckets;                  /* even; 0: no prefix index */
	uint32_t sibling_bytes;                   /* per worker; a multiple of SHM_LINE; 0: none */
	uint32_t instance;                        /* whose segment this is; no size */
	uint64_t prefix_seed[2];                  /* no size; 0, 0: drawn */
};

struct seg {
	struct shm_header *hdr;
	struct rcu_domain *rcu;
	struct settings *settings;
	struct tickets *tickets;
	struct proc_record *proc_records; /* [nslots] */
	struct ep_record *ep_records;     /* [max_endpoints] */
	struct ep_tokens *ep_tokens;      /* [max_endpoints] */
	struct rcu_reader *readers;       /* [nslots] */
	struct proc_slot *procs;          /* [nslots] */
	struct ep_word *eps;              /* [max_endpoints] */
	struct tally *tallies;            /* [max_endpoints] */
	struct latency *latencies;        /* [max_endpoints] */
	struct refusal *refusals;         /* [max_endpoints] */
	struct row *rows;                 /* [worker slots][max_endpoints]: seg_row() */
	struct flag_slot *flags;          /* [worker slots][flags_per_worker]: seg_flag() */
	uint64_t *ready;             /* [worker slots][flags_per_worker / 64] bitmap: seg_ready() */
	struct quota_set *quotas;    /* [max_quotas / QUOTA_WAYS] */
	uint32_t *quota_rows;        /* [worker slots][max_quotas]: share_of() */
	struct announced *announced; /* [ANNOUNCED_MAX] */
	struct kv_source_words *kv_sources; /* [max_endpoints] */
	struct kv_count_words *kv_counts;   /* [max_endpoints] */
	unsigned char *queues;              /* [max_pools] queues: seg_queue(), seg_queue_slot() */
	struct budget *budgets;             /* [worker slots][max_pools]: seg_budget() */
	struct fallback *fallbacks;         /* [max_pools] */
	/* [max_pools][METRIC_EXEMPLARS][METRIC_BUCKETS + 1]: shm/exemplar.h */
	struct exemplar_words *exemplars;
	struct prefix_engine *prefix_engines; /* [max_endpoints] */
	struct prefix_bucket *prefix;         /* [prefix_buckets] */
	unsigned char *slabs;                 /* [nslots] metrics slabs: seg_slab() */
	unsigned char *spans;                 /* [worker slots] rings: seg_span_ring() */
	uint64_t *sibling_loads;      /* [max_endpoints], if there are rings: shm/sibling_load.h */
	unsigned char *sibling_rings; /* [worker slots] rings: seg_sibling_ring() */
	struct sibling_engine *sibling_engines; /* [max_endpoints], if there are rings */
	struct sibling_words *siblings;         /* [SIBLINGS_MAX] */
	unsigned char *notes; /* [worker slots] tables and rings: seg_notes(), seg_note() */
	/* [max_pools][64]; a name stays with its number for ever. W: master */
	char *pool_names;
	/* [NAMED_MODEL_SLOTS + named_key_slots()]: shm/named.h */
	struct named_slot *named;
	struct named_count *named_counts;
	unsigned char *arenas; /* SHM_ARENAS x arena_bytes */
	size_t arena_bytes;
	unsigned char *keys_arenas; /* SHM_KEYS_ARENAS x keys_arena_bytes */
	size_t keys_arena_bytes;
	size_t slab_bytes;
	size_t queue_bytes;
	struct own *own;       /* a worker's private copy of its rows: shm/own.h; NULL in others */
	int masters_fd;        /* the first memfd */
	unsigned char *secret; /* ticket keys, tables (with keys of engines), keys of clients */
	unsigned char *writable; /* the second memfd: begins where `secret` ends */
	size_t writable_bytes;
};

/* One line per part for the start-up log. */
struct seg_part {
	const char *name;
	size_t offset, bytes;
};
#define SEG_NPARTS 39

/* Bytes a segment of these sizes takes, and its parts (ret_parts may be NULL). */
size_t seg_size(const struct seg_sizes *sizes, struct seg_part ret_parts[SEG_NPARTS]);

/* Makes and maps a zeroed segment and fills the header.  0 or -errno (-EINVAL: impossible sizes).  The
 * memfd is sealed against resizing. */
int seg_new(const struct seg_sizes *sizes, uint64_t build, struct seg **ret);
/*
 * A child, first of all: what only the master writes becomes read-only for this process, and cannot
 * become writable again (F_SEAL_FUTURE_WRITE).  A stray store there is a SIGSEGV of the child.
 * Returns 0 or -errno.  masters_fd is not needed afterwards.
 */
int seg_read_only(struct seg *seg);
/* A child that reads no table, after seg_read_only(): what has keys is not mapped any more.  Returns 0 or -errno. */
int seg_hide_keys(struct seg *seg);
/* The running program's build: a hash of the linker's build id. */
uint64_t seg_build(void);
/* 0 if hdr is of this version, build and these sizes, else -EPROTO. */
int seg_check(const struct shm_header *hdr, uint64_t build);
void seg_free(struct seg **);

static inline struct row *
seg_row(const struct seg *seg, uint32_t worker, uint32_t ep)
{
	return &seg->rows[(size_t)worker * seg->hdr->max_endpoints + ep];
}

static inline struct flag_slot *
seg_flag(const struct seg *seg, uint32_t worker, uint32_t slot)
{
	return &seg->flags[(size_t)worker * seg->hdr->flags_per_worker + slot];
}

static inline uint64_t *
seg_ready(const struct seg *seg, uint32_t worker)
{
	return &seg->ready[(size_t)worker * (seg->hdr->flags_per_worker / 64)];
}

static inline struct budget *
seg_budget(const struct seg *seg, uint32_t worker, uint32_t pool)
{
	return &seg->budgets[(size_t)worker * seg->hdr->max_pools + pool];
}

static inline struct metrics_slab *
seg_slab(const struct seg *seg, uint32_t slot)
{
	return (struct metrics_slab *)(void *)(seg->slabs + (size_t)slot * seg->slab_bytes);
}

static inline struct notes_head *
seg_notes(const struct seg *seg, uint32_t worker)
{
	const size_t n = (size_t)seg->hdr->running_requests + seg->hdr->kept_requests;

	return (struct notes_head *)(void *)(seg->notes +
					     worker * (sizeof(struct notes_head) +
							      n * sizeof(struct note_words)));
}

static inline struct note_words *
seg_note(const struct seg *seg, uint32_t worker, uint32_t i)
{
	return (struct note_words *)(void *)(seg_notes(seg, worker) + 1) + i;
}

static inline struct byte_ring *
seg_span_ring(const struct seg *seg, uint32_t worker)
{
	const size_t bytes = sizeof(struct byte_ring) + seg->hdr->span_bytes;

	return (struct byte_ring *)(void *)(seg->spans + worker * bytes);
}

static inline struct byte_ring *
seg_sibling_ring(const struct seg *seg, uint32_t worker)
{
	const size_t bytes = sizeof(struct byte_ring) + seg->hdr->sibling_bytes;

	return (struct byte_ring *)(void *)(seg->sibling_rings + worker * bytes);
}

static inline struct queue_head *
seg_queue(const struct seg *seg, uint32_t pool)
{
	return (struct queue_head *)(void *)(seg->queues + (size_t)pool * seg->queue_bytes);
}

/* A bit for each of the pool's slots, 64 to a word. */
static inline uint64_t *
seg_queue_marks(const struct seg *seg, uint32_t pool)
{
	return (uint64_t *)(seg_queue(seg, pool) + 1);
}

/* Words of those, in whole lines. */
static inline uint32_t
seg_queue_nmarks(uint32_t queue_slots)
{
	return (queue_slots + 8 * SHM_LINE - 1) / (8 * SHM_LINE) * (SHM_LINE / 8);
}

static inline struct queue_slot *
seg_queue_slot(const struct seg *seg, uint32_t pool, uint32_t slot)
{
	uint64_t *end = seg_queue_marks(seg, pool) + seg_queue_nmarks(seg->hdr->queue_slots);

	return (struct queue_slot *)(void *)end + slot;
}

/* Bytes of a pool's name with its NUL. */
#define SEG_POOL_NAME 64

static inline char *
seg_pool_name(const struct seg *seg, uint32_t id)
{
	return seg->pool_names + (size_t)id * SEG_POOL_NAME;
}

/* A process's report about itself, for others to read; plain stores of aligned words. */
void proc_heartbeat(struct seg *seg, uint32_t slot, uint64_t now_ms);
uint64_t proc_heartbeat_ms(const struct seg *seg, uint32_t slot);
/* Master: claims and describes a slot, clears it after waitpid (pid 0, state EMPTY): then heartbeat, conns,
 * bytes and crash note are cleared too, so log the note first. */
void proc_slot_set(
	struct seg *seg, uint32_t slot, uint64_t pid, enum proc_state state, uint64_t generation);
enum proc_state proc_slot_state(const struct seg *seg, uint32_t slot);
/* Owner: a filter of its system calls is in force; the call that the filter stopped.  Both may be called in a signal
 * handler. */
void proc_sandboxed_set(struct seg *seg, uint32_t slot);
bool proc_is_sandboxed(const struct seg *seg, uint32_t slot);
void proc_forbidden_set(struct seg *seg, uint32_t slot, uint32_t call);
/* False: no call was stopped. */
bool proc_forbidden(const struct seg *seg, uint32_t slot, uint32_t *ret_call);
/* Owner: leaves a crash note for the master's log, clipped. */
void proc_crash_note_set(struct seg *seg, uint32_t slot, const char *text);
