/*
 * Generation requests: what they ask for (gen_parse.c), their life (gen.c), their bytes
 * (gen_text.c).  How their KV changes hands is the hand-shake's (shake.h).
 *
 *	 parse --> QUEUED --> [TRAVEL: the hand-shake waits] --> [TURN: another prompt is being computed]
 *	       --> COMPUTE --> [STREAM] --> done
 *
 * Ownership: a gen belongs to its connection's request; gen.c alone frees it, when it has answered
 * (gen_done) or when the connection is gone (gen_gone).  Spans point into the connection's body,
 * which stays until the request is finished.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "tests/engine/buf.h"
#include "tests/engine/json.h"
#include "tests/engine/shake.h"
#include "tests/engine/sim.h"

struct conn;
struct gen;
struct word;

enum gen_mode { GEN_PLAIN, GEN_PREFILL, GEN_DECODE };
enum gen_state { GEN_NEW, GEN_QUEUED, GEN_TRAVEL, GEN_REST, GEN_TURN, GEN_COMPUTE, GEN_STREAM };
enum gen_api { API_OPENAI, API_MESSAGES, API_RESPONSES };
enum gen_phase { PHASE_ROLE, PHASE_TOKENS, PHASE_USAGE, PHASE_DONE, PHASE_END };

struct prompt {
	uint64_t seed;   /* hash of its token ids */
	uint64_t before; /* the same without the last one */
	uint32_t last;   /* which is this */
	uint64_t ntokens;
	struct buf ids;  /* four bytes each, where there is a prefix cache */
	uint64_t cached; /* ids at its beginning whose KV was there already */
	bool eos;        /* the model's first token is the end of the text */
	struct jv span;  /* for echo: a string or an array of ids; absent for chat */
};

struct choice {
	uint64_t state;
	const struct prompt *prompt;
	uint64_t offset; /* characters said, where log probabilities count them */
	uint32_t ntokens, done;
	bool eos;
};

struct gen {
	struct conn *c;
	struct sim *sim;
	TAILQ_ENTRY(gen) all, queued; /* queued: for its admission, then for its turn */
	enum gen_state state;
	enum gen_mode mode;
	enum gen_phase phase;
	enum gen_api api; /* but for OpenAI's: gen_agent.c; `chat` is true for these too */
	bool chat, stream, include_usage, echo, logprobs, running, stalled;
	bool structured, continuous_usage;
	uint32_t top_logprobs;
	struct jv tool;  /* the name of the function to call, quotes included; absent: none */
	const char *cut; /* it ends at once, for this reason; in quotes */
	bool native;     /* SGLang's /generate */
	bool unread;     /* refused for its form, before anybody saw what it hands off */
	bool bare_id;    /* the answer's id is rid alone */
	bool headed;     /* its stream's head is out, before there is anything to say */
	bool aborted;    /* by its rid: it ends with what it has */
	bool resting;    /* running, but for --max-running it is not */
	int64_t max_tokens, min_tokens, n, event_bytes, override_tokens;
	struct prompt *prompts;
	unsigned nprompts;
	struct choice *choices;
	unsigned nchoices, at; /* at: the next choice to emit for */
	uint32_t step;         /* tokens emitted of each choice */
	uint64_t credit, events, reserved, due_us;
	uint64_t arrived_us; /* when its turn to be computed could have begun */
	uint64_t cache_key;  /* what KV depends on besides token ids */
	uint64_t model_key;  /* ... where it is found by token ids alone */
	uint32_t cached; /* prompt tokens of which it tells that P had them already, if asked to */
	struct jv model, salt;
	struct jv rids; /* a list, when each prompt of a batch has its own */
	int64_t logprob_start;
	struct buf rid, pre; /* the id's variable part; what each event starts with */
	long created;
	unsigned pre_base;
	struct jv handed[SHAKE_MEMBERS]; /* sim->shake->members, as they were sent */
	void *deal;                      /* the hand-shake's own; NULL: none */
};

/* gen.c */
void gen_chat(struct conn *c);
void gen_completion(struct conn *c);
void gen_generate(struct conn *c); /* SGLang's /generate */
/* /v1/messages and /v1/responses: with KV parameters; without them oneleg.c answers. */
void gen_agent(struct conn *c);
/* Ends all whose rid begins with this one, as SGLang does; 200 for them, with what they have. */
void gen_abort(struct sim *sim, const char *rid, size_t n);
bool gen_fresh_id(struct conn *c); /* false: refused and answered */
void gen_gone(struct gen *g);
void gen_go_on(struct gen *g);             /* the socket has room again */
void gen_pump(struct sim *sim);            /* something has become free */
void gen_step(struct sim *sim, int64_t n); /* lets paused streams emit n events; -1: go on */

/* gen.c, for hand-shakes: each request goes TRAVEL (perhaps), compute, reply, or fails */
void gen_travel(struct gen *g);  /* it waits for its KV, or for the other engine */
void gen_rest(struct gen *g);    /* the same, and it takes no place of --max-running */
void gen_compute(struct gen *g); /* now its prompt is computed, on D loaded */
void gen_reply(struct gen *g);   /* now it is answered, or its stream begins */
void gen_fail(struct gen *g, enum counter why, const char *what); /* 500, or --late-errors */
/* Before it is admitted: counts and answers. */
bool gen_refuse(struct gen *g, enum counter why, int status, const char *msg);

/* gen_parse.c: false: refused and answered */
bool gen_parse(struct gen *g);

/* gen_text.c */
uint64_t gen_prompt_key(const struct gen *g);              /* what KV blocks are computed from */
uint64_t gen_key_of(const struct gen *g, unsigned prompt); /* the same of another prompt */
void gen_begin_text(struct gen *g);
void gen_answer(struct gen *g, struct buf *out, struct shake_extra *x);
/* The next event, at out->p + CHUNK_ROOM, with 2 bytes of room behind it; false: there is none. */
bool gen_event(struct gen *g, struct buf *out, size_t *ret_len);
const char *gen_finish_reason(const struct gen *g, const struct choice *ch); /* with quotes */

/* gen_content.c */
void content_put(
	const struct gen *g, const struct choice *ch, const struct word *w, struct buf *out);
void content_call(const struct gen *g, const struct choice *ch, struct buf *out);
void gen_logprob(uint32_t id, struct buf *out);
void content_logprobs(const struct gen *g, struct choice *ch, const struct word *const *w,
	uint32_t n, struct buf *out);

/* gen_native.c: the same for /generate */
void native_answer(struct gen *g, struct buf *out);
void native_failure(struct gen *g, const char *msg, struct buf *out);
void native_delta(struct gen *g, unsigned i, struct buf *out); /* without its last brace */

/* gen_agent.c: the same for the paths of agents */
bool gen_is_agent(struct conn *c); /* the body has KV parameters that this engine reads */
void agent_answer(struct gen *g, struct buf *out, const struct buf *kv);
/* Events, the last one without its last brace. */
void agent_begin(struct gen *g, struct buf *out);
void agent_delta(struct gen *g, struct buf *out);
void agent_usage(struct gen *g, struct buf *out);
void agent_end(struct buf *out);                      /* of /v1/messages; whole */
void agent_failure(const char *msg, struct buf *out); /* whole */
