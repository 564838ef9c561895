/*
 * What lies in the shared segment, word by word, and who writes it.  Drawn in shm/README.
 *
 * I1: every word has one writing process, or is changed only by atomic read-modify-write.
 * I2: the segment is mapped before the first fork, never grown, never freed: pointers into it are
 *     valid in every process.
 * I3: no lock lives here, so a killed process cannot hold one.
 */
#pragma once
#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* two cache lines: the adjacent-line prefetcher pairs them (x86), 128 on some aarch64 */
#define SHM_LINE 128
#define SHM_MAGIC 0x7064726f75746572ull /* "pdrouter" */
#ifndef SHM_VERSION                     /* a test builds a program with another layout */
#define SHM_VERSION 19
#endif
/* tables alive at once: the current one and retired ones awaiting their readers */
#define SHM_ARENAS 4
/* the same of tables of keys, which change less often */
#define SHM_KEYS_ARENAS 3
#define SHM_ALL_ARENAS (SHM_ARENAS + SHM_KEYS_ARENAS)
#define SHM_CRASH_NOTE 160 /* bytes of a process's crash note */

struct shm_header { /* W: master, before any fork */
	uint64_t magic;
	uint32_t version;
	uint32_t max_workers, max_endpoints, max_pools, flags_per_worker;
	uint32_t max_quotas;
	uint32_t queue_slots;
	uint32_t max_api_keys;
	uint32_t span_bytes;                      /* of a worker's ring of spans */
	uint32_t running_requests, kept_requests; /* notes of a worker: shm/notes.h */
	uint32_t prefix_buckets;
	uint32_t nslots;   /* process slots: 2 x max_workers + SLOT_EXTRA */
	uint32_t instance; /* 1, and 1 more with each upgrade; stands in the nonces of flags */
	uint32_t
		sibling_bytes; /* of a worker's ring for other routers (shm/siblings.h); 0: there is none */
	uint64_t bytes;
	uint64_t build;   /* hash of the build id: a segment of another build is refused */
	uint64_t seed[2]; /* drawn at the start: what clients' names are hashed with */
	/* what prompts are hashed with: siblings have the same */
	uint64_t prefix_seed[2];
};

/* Process slots: workers of all generations, then the single processes, then the master. */
#define SLOT_EXTRA 3
#define SLOT_NOTIFIER(seg) ((seg)->hdr->nslots - 3)
#define SLOT_EXPORTER(seg) ((seg)->hdr->nslots - 2)
#define SLOT_MASTER(seg) ((seg)->hdr->nslots - 1)
#define SLOT_WORKERS(seg) ((seg)->hdr->nslots - SLOT_EXTRA) /* worker slots are 0 .. this - 1 */

struct rcu_reader { /* one per process slot */
	/* gp | ACTIVE inside a section, else 0. W: owner; master after waitpid */
	_Alignas(SHM_LINE) uint64_t ctr;
};

/*
 * The live settings in force (struct conf_live), as words.  seq is odd while they change.  Changes
 * are rare, so readers find the lines in their cache.
 */
#define SETTINGS_WORDS 31
struct settings { /* W: master */
	_Alignas(SHM_LINE) uint64_t seq;
	uint64_t word[SETTINGS_WORDS];
};

/* What seals the session tickets of TLS clients (shm/tickets.h).  seq is odd while they change; 0: there are none. */
#define TICKET_KEYS 2
#define TICKET_WORDS 10
struct tickets { /* W: master */
	_Alignas(SHM_LINE) uint64_t seq;
	uint64_t since_ms; /* clock_ms of the newest */
	uint64_t word[TICKET_KEYS][TICKET_WORDS];
};

struct table;
struct api_keys;
struct rcu_domain {
	_Alignas(SHM_LINE) uint64_t gp;               /* W: master */
	_Alignas(SHM_LINE) const struct table *table; /* W: master (rcu_publish) */
	/* of clients; NULL: they need none.  W: master (rcu_publish_keys) */
	const struct api_keys *keys;
};

enum proc_state { PROC_EMPTY, PROC_STARTING, PROC_READY, PROC_DRAINING };

struct proc_slot {
	/* monotonic; every loop turn, at least once a second. W: owner */
	_Alignas(SHM_LINE) uint64_t heartbeat_ms;
	/* open client connections. W: owner; master zeroes after waitpid */
	uint64_t conns;
	/* enum accept_state, shm/accept.h. W: owner; another worker wakes it by CAS; master zeroes */
	uint64_t accepts;
	/* 1: a filter of its system calls is in force. W: owner; master zeroes */
	uint64_t sandboxed;
	/* open operation, see load.c. W: owner; master after waitpid */
	_Alignas(SHM_LINE) uint64_t journal;
	/* of that operation: row value before << 32 | change. W: owner */
	uint64_t change;
	/* highest own seq known to have been overwritten. W: CAS by all, upward only */
	uint64_t acked;
	uint64_t seq; /* W: owner */
	/* what an abort left for the log.  W: owner */
	_Alignas(SHM_LINE) char crash_note[SHM_CRASH_NOTE];
	/* 1 + number of the system call that it was ended for; 0: none. W: owner; master zeroes */
	uint64_t forbidden;
	/* what it uses (shm/usage.h), once a second.  W: owner; master zeroes */
	uint64_t cpu_us, resident_bytes, fds, max_fds, start_ms;
	/* bytes that it holds in memory, by enum stored_kind (shm/stored.h). W: owner; master zeroes */
	uint64_t stored[2];
};

/* What the master knows of the process of a slot, read-only for all others. */
struct proc_record { /* W: master */
	_Alignas(SHM_LINE / 2) uint64_t pid;
	uint64_t state; /* enum proc_state */
	uint64_t generation;
};

enum ep_state { EP_EMPTY, EP_STARTING, EP_UP, EP_DOWN, EP_DRAINING, EP_MISCONFIGURED, EP_STATE_N };

#define BUDGET_SECONDS 10 /* the sliding window of shm/budget.h */

/* Requests, retries and releases of one worker in one pool: shm/budget.h. */
struct budget {
	/* second:18 | releases:14 | tries:14 | requests:18.  W: its worker */
	_Alignas(SHM_LINE) uint64_t second[BUDGET_SECONDS];
};

/* What decode engines of one pool have been given to prefill: shm/fallback.h. */
struct fallback {
	_Alignas(SHM_LINE) uint64_t used_until_us; /* clock_us.  W: CAS by all */
};

/* One per endpoint slot, stable across tables: what all processes change.  A selection reads the first 64 bytes
 * alone. */
struct ep_word {
	/* requests:32 | last worker+1:8 | seq:24.  W: CAS by all */
	_Alignas(SHM_LINE) uint64_t count;
	/* outstanding prompt tokens:32 | last worker+1:8 | seq:24.  W: CAS by all */
	uint64_t tokens;
	/* failures in a row, or how long it is ejected: shm/eject.h.  W: CAS by all */
	uint64_t eject;
	/* whether its engine reported that it has no room, and for how long: shm/busy.h.  W: CAS
	 * by all */
	uint64_t busy;
	/* outcomes of its answers, in the two halves of a window (shm/window.h).  W: CAS by all */
	_Alignas(SHM_LINE / 2) uint64_t answers[2];
	uint64_t ejections;    /* ever, in this life of the slot.  W: CAS by all */
	uint64_t busy_answers; /* the same.  W: CAS by all */
	/* lives of its engine, and whether it may have restarted: shm/restart.h.  W: CAS by all */
	uint64_t restarts;
};

/* One per endpoint slot: what the master knows of it, read-only for all others.  A selection reads this half line,
 * too; it seldom changes. */
struct ep_record { /* W: master */
	/* requests:24 | milliseconds:40 (clock_ms) */
	_Alignas(SHM_LINE / 2) uint64_t foreign;
	/* since when its weight ramps up, clock_ms:56 (0: at full weight) | enum ep_state:8 */
	uint64_t state;
	uint64_t tag; /* number of lives of this slot */
	/* which part of its weight it has while its engine is slow: shm/pace.h */
	uint64_t share;
	/* last running << 32 | waiting, for metrics */
	uint64_t scraped;
	/* whether `scraped` is absurd:1 | last KV usage, parts per million:32 */
	uint64_t kv_usage;
	uint64_t scraped_ms; /* clock_ms of those two; 0 = never */
	uint64_t capacity;   /* tokens that its cache holds, shm/prefix.h; 0: unknown */
};

/* One per endpoint slot: its engine's own counters of tokens, plus 1; 0: unknown. */
struct ep_tokens { /* W: master */
	uint64_t prompt, generated;
};

/*
 * What an outcome shows of its engine: C name, label of /metrics and `pdctl status`, meaning.  TALLY_GOOD is no failure.
 */
/* clang-format off */
#define TALLY_CAUSES(X)                                                                                 \
	X(GOOD, "good", "the engine did its part")                                                      \
	X(REFUSED, "refused", "no connection: refused, or unreachable")                                 \
	X(RESET, "reset", "the engine closed or reset the connection before the answer's end")          \
	X(TIMEOUT, "timeout", "no connection, or no byte of the answer, within the time limit")         \
	X(5XX, "5xx", "a status from 500 on")                                                           \
	X(4XX, "4xx", "a status from 400 to 499")                                                       \
	X(BAD_ANSWER, "bad_answer", "no HTTP, too large, or a 200 that is unusable or carries an error") \
	X(KV_UNUSABLE, "kv_unusable", "KV of the prefill engine could not be used, or the decode engine fetched none") \
	X(KV_MISSING, "kv_missing", "the prefill answer had no KV parameters")                          \
	X(BUSY, "busy", "the engine has no room: 429, or 503 with Retry-After")
/* clang-format on */
#define TALLY_ENUM(id, name, meaning) TALLY_##id,
enum tally_cause { TALLY_CAUSES(TALLY_ENUM) TALLY_N };
#undef TALLY_ENUM

/* One per endpoint slot: the outcomes of its requests at all workers, in this life of the slot (shm/tally.h). */
struct tally {
	/* legs that had an outcome, by its cause.  W: atomic add by all */
	_Alignas(SHM_LINE) uint64_t outcomes[TALLY_N];
	/* the last failure, clock_ms:56 | enum tally_cause:8; 0: none.  W: exchange by all */
	uint64_t last;
	/* clock_ms of the last bytes of a good answer; 0: none.  W: exchange by all */
	uint64_t alive_ms;
	/* how long its engine takes, a mean that decays: shm/pace.h.  W: CAS by all */
	uint64_t pace;
	/* what it has done with others' KV, or others with its KV (shm/blame.h).  W: CAS by all */
	uint64_t blame;
	/* the ids that its engine has named (shm/restart.h).  W: CAS by all */
	uint64_t ids;
	/* clock_ms of its last 429 or 503; 0: none.  W: exchange by all */
	uint64_t shed_ms;
};

/* One per endpoint slot: how long its engine takes, at all workers, in this life of the slot (shm/latency.h). */
#define LATENCY_CONNECT_BUCKETS 8
#define LATENCY_BUCKETS 12 /* the most of a kind */
struct latency {
	/* legs by the time to their first byte, the bucket of +Inf, the sum of these times in microseconds.  W: atomic
	 * add by all, as below */
	_Alignas(SHM_LINE) uint64_t first[LATENCY_BUCKETS + 2];
	/* the same of connections made */
	uint64_t connect[LATENCY_CONNECT_BUCKETS + 2];
};

/* One per endpoint slot: whether the 4xx of its engine are the clients' mistakes (shm/refusal.h). */
struct refusal {
	/* what other engines said to the same requests, and since when.  W: CAS by all */
	_Alignas(SHM_LINE) uint64_t word;
	/* requests refused and accepted, in the two halves of a window (shm/window.h).  W: CAS by all */
	uint64_t answers[2];
	/* clock_ms() when a request last failed here and on another engine, and no engine served it;
	 * 0 = never.  W: exchange by all */
	uint64_t failed_alike_ms;
};

/* One per endpoint slot: what the prefix index (shm/prefix.h) knows of its engine. */
struct prefix_engine {
	/* tokens that it has computed; jumps when its cache is empty.  W: atomic add by all */
	_Alignas(SHM_LINE / 2) uint64_t computed;
	/* how far its hits are true, of the means of tokens reported and looked up:
	 * part:16 | reported:24 | looked up:24; 0: none yet.  W: CAS by all */
	uint64_t kept;
	/* answers that said how much was in the cache, and tokens of their prompts: all, expected in the cache,
	 * reported to be there.  W: atomic add by all */
	uint64_t answers, prompt, expected, cached;
	/* what its KV events say: tokens in its cache:62 | they are known:1 | events come:1 (shm/prefix.h); 0: it
	 * publishes none.  W: notifier; master where it has no source */
	uint64_t events;
	/* token ids of its blocks:63 | the words of these are all there:1; 0: its blocks are not followed.  W: as above */
	uint64_t blocks;
};

/* The words of the prefix index, a cache line each. */
#define PREFIX_WAYS 8
struct prefix_bucket {
	/* tag:18 | endpoint slot:16 | stamp:30; 0: never used.  W: all; any whole word may stand here */
	_Alignas(SHM_LINE / 2) uint64_t word[PREFIX_WAYS];
};

/* What is counted by name, and how many slots there are: shm/named.h. */
enum named_kind { NAMED_MODELS, NAMED_KEYS, NAMED_KINDS };
enum named_what {
	NAMED_REQUESTS,
	NAMED_REFUSED,
	NAMED_PROMPT,
	NAMED_CACHED,
	NAMED_COMPLETION,
	NAMED_N
};
#define NAMED_NAME 120        /* bytes of a name with its NUL */
#define NAMED_MODEL_SLOTS 513 /* for 256 models */
struct named_slot {           /* W: master */
	/* of the name; 0: the slot is free */
	_Alignas(SHM_LINE) uint64_t hash;
	char name[NAMED_NAME];
};
struct named_count { /* gives:10 | count:54 each (shm/named.c).  W: CAS by all */
	_Alignas(SHM_LINE / 2) uint64_t count[NAMED_N];
};

static inline uint32_t
named_key_slots(uint32_t max_api_keys)
{
	return 2 * max_api_keys + 1;
}

/* How `count` and `tokens` are packed, the rest of them in load_word.h ... */
static inline uint32_t
word_count(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

/* ... and `state` and `foreign`. */
#define EP_STATE_BITS 8
#define EP_MS_BITS 40 /* 34 years of uptime */
#define EP_FOREIGN_MAX ((UINT32_C(1) << 24) - 1)

static inline enum ep_state
ep_word_state(uint64_t state)
{
	return (enum ep_state)(state & ((1u << EP_STATE_BITS) - 1));
}

static inline uint64_t
ep_word_ramp(uint64_t state)
{
	return state >> EP_STATE_BITS;
}

/* 0 if it is older than max_age_ms. */
static inline uint32_t
ep_word_foreign(uint64_t foreign, uint64_t now_ms, uint64_t max_age_ms)
{
	const uint64_t mask = (UINT64_C(1) << EP_MS_BITS) - 1, age = (now_ms - foreign) & mask;
	/* The caller's clock is of its loop turn: a stamp ahead of it is fresh too. */
	const bool fresh = age <= max_age_ms || age > mask / 2;

	return fresh ? (uint32_t)(foreign >> EP_MS_BITS) : 0;
}

/* One per worker slot and endpoint slot: what that worker holds.  W: owner; master when reaping */
struct row {
	uint32_t held;   /* its share of ep_word.count */
	uint32_t tokens; /* its share of ep_word.tokens */
	uint32_t sent;   /* of `held`: requests that were sent */
	/* KV that the engine holds for requests of that worker and no decode engine has fetched */
	uint32_t kv;
};

/*
 * Clients whose limits are kept (quota.c), in sets of QUOTA_WAYS entries.  The names that CAS `held` are
 * those of ep_word.count, and its row lies beside the endpoints' rows.
 */
#define QUOTA_WAYS 8
struct quota_set {
	/* the entry assigned last, hash:44 | life:16 | way:3 | pending:1.  W: CAS by all */
	_Alignas(SHM_LINE) uint64_t last;
	uint64_t key[QUOTA_WAYS]; /* its client: hash:44 | life:16 | 0:4.  W: CAS by all */
	/* requests:16 (below life:16) | last worker+1:8 | seq:24.  W: CAS by all */
	uint64_t held[QUOTA_WAYS];
	/* theoretical arrival time of its next request, nanoseconds.  W: CAS by all */
	uint64_t tat[QUOTA_WAYS];
	/* when the tokens of its requests will be paid for, nanoseconds.  W: CAS by all */
	uint64_t paid[QUOTA_WAYS];
};

/* Engines that announce themselves over ZMQ (protocols.md 7.2): more are refused. */
#define ANNOUNCED_MAX 256
#define ANNOUNCED_ADDRESS 64             /* bytes of "host:port" with its NUL */
struct announced {                       /* announce.c */
	_Alignas(SHM_LINE) uint64_t seq; /* odd while it is written.  W: notifier, all of it */
	uint64_t seen_ms;                /* clock_ms of the last announcement; 0: empty */
	uint64_t role;                   /* enum role */
	char http[ANNOUNCED_ADDRESS];    /* where it serves HTTP */
	char kv[ANNOUNCED_ADDRESS];      /* its ZMQ/NCCL address, which request ids carry */
};

/* One per endpoint slot: where its engine publishes KV events, and from which address it sends notices (shm/kv_events.h).
 * A seq is odd while the words after it change. */
#define KV_SOURCE_ADDRESS 64 /* bytes of "tcp://[IPv6]:port" with its NUL */
#define KV_SOURCE_WORDS 19
#define KV_SENDER_WORDS 3
struct kv_source_words { /* W: master */
	_Alignas(SHM_LINE) uint64_t seq;
	uint64_t word[KV_SOURCE_WORDS];
	uint64_t sender_seq;
	uint64_t sender[KV_SENDER_WORDS];
};

/* One per endpoint slot: what its engine's KV events have said.  W: notifier */
#define KV_COUNT_WORDS 16
struct kv_count_words {
	_Alignas(SHM_LINE) uint64_t word[KV_COUNT_WORDS];
};

/* The head of a ring of records (ring.h): positions count bytes, and never go back.  A worker slot has one for spans
 * (spans.c), and one for other routers
 * (siblings.c). */
struct byte_ring {
	/* the end of the last record.  W: its worker */
	_Alignas(SHM_LINE) uint64_t written;
	/* records before it are done with.  W: exporter; of the other ring the notifier */
	_Alignas(SHM_LINE) uint64_t read;
	/* followed by span_bytes bytes, or by sibling_bytes */
};

/* What other routers know an endpoint by (siblings.h).  W: master, both. */
struct sibling_engine {
	uint64_t id;  /* a hash of its URL and role; 0: none */
	uint64_t row; /* of its pool in the prefix index */
};

/* What comes from another router (siblings.h).  W: notifier, all of it. */
#define SIBLINGS_MAX 16
#define SIBLING_WORDS 16
struct sibling_words {
	_Alignas(SHM_LINE) uint64_t word[SIBLING_WORDS];
};

/* A request in flight, or one that has ended (shm/notes.h).  W: its worker, all of it. */
#define NOTE_ID 96 /* bytes of texts with their NULs */
#define NOTE_MODEL 56
#define NOTE_REASON 24
#define NOTE_LETTERS 16
struct note_words {
	_Alignas(SHM_LINE) uint64_t seq; /* odd while it is written */
	uint64_t from_us, at_us;
	uint64_t what;        /* pool:16 | tries:8 | lap:16 | status:16 | enum note_state:8 */
	uint64_t slots, tags; /* of its prefill engine:32 | decode engine:32 */
	uint64_t times;       /* milliseconds in the queue:32 | to the first byte:32 */
	uint64_t tokens;      /* prompt:32 | completion:32 */
	char reason[NOTE_REASON], states[NOTE_LETTERS], model[NOTE_MODEL], id[NOTE_ID];
};
struct notes_head {                       /* one per worker slot.  W: its worker */
	_Alignas(SHM_LINE) uint64_t high; /* notes from here on are not in use */
	uint64_t ended;                   /* requests ever, in the ring by their number */
	/* followed by running_requests notes, and the ring of kept_requests */
};

struct flag_slot { /* flags_per_worker per worker slot */
	/* gen:48 | left:8 | state:8. W: CAS by worker and notifier; master when reaping */
	uint64_t word;
	uint64_t nonce; /* W: owner, before it arms */
};

/* Requests that wait for a slot at an endpoint: a queue for each pool (queue.c). */
#define QUEUE_MODELS 14
struct queue_head {
	/* Slots from here on were never used.  W: CAS by workers, upward only */
	_Alignas(SHM_LINE) uint64_t high;
	/* the last ticket given.  W: CAS by workers */
	_Alignas(SHM_LINE) uint64_t ticket;
	/* virtual time in prompt tokens: the last start of a waiter that was served, fair.h.  W: CAS by
	 * workers, upward only */
	uint64_t vtime;
	/* of the models that have had more than that, finish:48 | hash of the model:16.  W: CAS by workers */
	uint64_t finish[QUEUE_MODELS];
	/* followed by a bit for each slot, set while a request may wait there.  W: CAS by all */
};

struct queue_slot { /* queue_slots per pool */
	/* ticket:40 | worker+1:8 | roles:8 | state:8; 0: free.  W: CAS by all, see queue.c */
	uint64_t word;
	/* hash of its model, and the engines it needs.  W: the slot's worker, as all below */
	uint64_t key;
	uint64_t since_ms; /* clock_ms when it enqueued */
	int32_t priority;  /* the lowest goes first */
	/* bit per role found full; all until the waiter has tried; QUEUE_UNTRIED */
	uint32_t lacks;
	/* In virtual time: fair.h.  W: its worker, and who leaves unserved before it, by CAS. */
	uint64_t start;
	uint64_t tokens; /* it finishes that much later */
};
static_assert(sizeof(struct queue_slot) == 48, "eight waiters to three lines");
static_assert(sizeof(struct flag_slot) == 16, "four flags to a cache line");
static_assert(sizeof(struct row) == 16, "as drawn in shm/README");
static_assert(sizeof(struct quota_set) == 3 * SHM_LINE, "as drawn in shm/README");
