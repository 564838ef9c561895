/*
 * The simulator's one state: options, counters, and who hangs where.  One process, one loop, no
 * threads; everything hangs from the struct sim that main() owns.
 */
#pragma once
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/queue.h>

#include "tests/engine/buf.h"

struct conn;
struct fault;
struct gen;
struct kv;
struct last;
struct prefix;
struct publish;
struct seen;
struct shake;
struct side;

enum role { ROLE_BOTH, ROLE_PREFILL, ROLE_DECODE };
enum ids_form { IDS_INTS, IDS_STRINGS, IDS_NESTED };
enum vllm { VLLM_0_33, VLLM_0_19, VLLM_0_13, VLLM_0_11 }; /* as the command line names them */
enum transfer { TRANSFER_PULL, TRANSFER_PUSH };
enum notice_form { NOTICE_PROXY, NOTICE_NIXL, NOTICE_DICT };
enum load_failure { LOAD_FAILURE_FAIL, LOAD_FAILURE_RECOMPUTE }; /* kv_load_failure_policy */
enum start_time { START_TIME_AUTO, START_TIME_YES, START_TIME_NO };
enum kv_form { KV_FORM_BYTES, KV_FORM_INTS, KV_FORM_MAP }; /* of KV events */
enum flavour { FLAVOUR_VLLM, FLAVOUR_SGLANG };

#define MAX_MODELS 1024

struct opts {
	enum role role;
	enum ids_form ids;
	enum flavour engine;
	enum transfer transfer;
	enum vllm vllm;
	enum notice_form notice_form;
	enum load_failure load_failure;
	enum start_time start_time;
	enum kv_form kv_form;
	int kv_events, kv_replay, kv_buffer;
	int port, side_port, bootstrap_port;
	const char *host, *advertise, *name, *api_key, *handshake, *announce;
	const char *receiver_ports, *alloc_ports, *proxy, *storage;
	const char *models[MAX_MODELS];
	unsigned nmodels;
	int block_size, blocks, cache_blocks, max_running, sndbuf, load, load_waiting;
	int tp, notices, skip_last, no_id_suffix, refuse_local, usage_details, notice_late;
	int64_t keep_body, max_body, max_model_len;
	double token_delay_ms, prefill_delay_ms, prefill_us_per_token, fetch_delay_ms;
	double kv_delay_ms, notice_delay_ms, notice_gap_ms;
	double announce_ms, kv_timeout_s, fetch_timeout_s, idle_timeout_s;
	int bootstrap_stream, follow_room, dp_size;
	int store, big_ids, flat_errors, late_errors, echo_request_id, old_server_info;
};

/* name, help: /metrics prints them as pdsim:<name>_total */
#define COUNTERS(X)                                                                                \
	X(kv_held, "KV holds made for a later fetch")                                              \
	X(kv_fetched, "KV holds fetched from this engine by a decode engine")                      \
	X(kv_loaded, "KV holds this engine fetched from a prefill engine")                         \
	X(kv_refused, "requests refused because their remote KV was missing or differed")          \
	X(kv_recomputed, "requests whose remote KV could not be fetched, computed here instead")   \
	X(kv_replayed, "fetches of KV whose hold had ended: a handoff that was used again")        \
	X(kv_released,                                                                             \
		"KV holds freed without a fetch, by a decode engine that will not use them")       \
	X(kv_expired, "KV holds freed by the timeout")                                             \
	X(kv_null, "prefill legs answered without kv_transfer_params")                             \
	X(aborted, "generation requests whose client left before the answer was complete")         \
	X(duplicate_request_ids, "requests whose X-Request-Id this engine had seen before")        \
	X(request_id_mismatch, "decode legs whose X-Request-Id differs from their prefill leg's")  \
	X(prefill_violations, "prefill legs that asked for more than one token, or for a stream")  \
	X(decode_violations,                                                                       \
		"decode legs that asked for logprobs of a prompt that was not computed here")      \
	X(role_violations, "requests for the other role's half of a handoff")                      \
	X(local_prefills, "generations a decode engine began without remote KV")                   \
	X(plain_prefills, "requests to a prefill engine without a handoff")                        \
	X(rooms_missing, "requests to one engine of a pair without a room to meet the other in")   \
	X(rooms_invalid, "rooms that are not in 1..2^63-1, or too few for the prompts")            \
	X(rooms_shared, "requests that would meet in one room more than once (n > 1)")             \
	X(duplicate_rooms, "rooms that are live or were seen before")                              \
	X(rank_mismatch, "handoffs whose data-parallel rank contradicts the room or engine id")    \
	X(kv_foreign, "handoffs that name no KV address, or another engine's")                     \
	X(notices, "notices sent to the router")                                                   \
	X(notices_lost, "notices that could not be sent")                                          \
	X(kv_stored, "prompts whose KV was written to the shared folder")                          \
	X(spec_violations, "requests to an LMCache sender whose disagg_spec is absent or wrong")   \
	X(kv_push_failed, "KV of prompts that its decode engine did not take")                     \
	X(aborted_by_rid, "generation requests ended by /abort_request")                           \
	X(controlled, "requests to paths by which an engine is controlled")                        \
	X(unauthorized, "requests without the API key")                                            \
	X(connections, "connections accepted")                                                     \
	X(bad_requests, "bytes that were no HTTP request")                                         \
	X(events, "events streamed")                                                               \
	X(prompt_tokens, "prompt tokens computed or loaded")                                       \
	X(prefix_queries, "prompt tokens looked up in the prefix cache")                           \
	X(prefix_hits, "prompt tokens found there")                                                \
	X(blocks_stored, "blocks put into the prefix cache")                                       \
	X(blocks_evicted, "blocks whose place in the prefix cache another block took")             \
	X(kv_batches, "batches of KV events made")                                                 \
	X(kv_replays, "requests for batches that were missed")                                     \
	X(generation_tokens, "tokens generated")                                                   \
	X(faults, "faults acted out")

enum counter {
#define X(name, help) CTR_##name,
	COUNTERS(X)
#undef X
		CTR_N
};

#define MAX_LISTENERS 4
#define NSTATUS 16
#define NROUTES 96

TAILQ_HEAD(conn_head, conn);
TAILQ_HEAD(gen_head, gen);
TAILQ_HEAD(fault_head, fault);

#define TWICE_MAX 8
#define TWICE_ID 160

struct sim {
	struct event_base *base;
	struct opts o;
	char engine_id[37];
	int port, side_port, bootstrap_port; /* as bound */
	uint64_t rng;
	uint64_t counters[CTR_N];
	uint64_t requests[NROUTES][NSTATUS];

	struct event *listeners[MAX_LISTENERS];
	unsigned nlisteners;
	struct conn_head conns, idle, dead;
	struct event idle_timer;
	uint64_t nconns, next_conn;

	struct gen_head gens, queue, turns;
	struct gen *computing;  /* whose prompt is being computed, where prompts take turns */
	uint64_t computed_us;   /* when the prompt before it was done */
	uint64_t waiting_turns; /* length of turns */
	bool pumping;
	uint64_t running, running_max, travelling, resting, queued, streams, paused;

	struct fault_head faults;
	struct kv *kv;
	struct prefix *prefix;   /* NULL: there is none */
	struct publish *publish; /* NULL: it publishes no KV events */
	struct side *side;
	const struct shake *shake;
	struct buf more_ports; /* of the hand-shake, for the listening line: " name=port..." */
	void *deals;           /* the hand-shake's own; NULL: none */
	uint64_t open_rooms;   /* meetings of P and D that have begun and not ended */
	struct last *last[2];  /* generation requests; all others */
	struct seen *seen;

	bool pause;
	bool load_fixed;   /* /metrics says o.load and o.load_waiting, whatever there is to do */
	double born;       /* when this process began, in seconds since 1970 */
	uint32_t seed;     /* SGLang's random_seed, another one in each life */
	int health, ready; /* the status the probes get */
	bool quit;
	char rbuf[256 * 1024];
	char twice[TWICE_MAX][TWICE_ID]; /* the last ids that came twice, of requests and of KV */
	unsigned ntwice;
	struct buf scratch; /* of whoever builds an answer; valid until its next use */
};

/* Counts an id that came twice, and remembers it. */
static inline void
count_twice(struct sim *sim, enum counter c, const char *id, size_t n)
{
	(void)snprintf(sim->twice[sim->ntwice++ % TWICE_MAX], TWICE_ID, "%.*s", (int)n, id);
	sim->counters[c]++;
}

static inline void
count(struct sim *sim, enum counter c)
{
	sim->counters[c]++;
}

uint64_t sim_now_us(void); /* CLOCK_MONOTONIC */
uint64_t sim_random(struct sim *sim);
/* A listening socket and its port; 0 takes a free one.  Exits with a message when it cannot be had. */
int sim_listen(const char *host, int port, int *ret_port);
void sim_serve(struct sim *sim, int fd); /* accepts HTTP there until the process ends */
void sim_bad_option(const char *name, const char *val) __attribute__((noreturn));
