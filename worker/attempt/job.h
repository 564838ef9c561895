/*
 * A job: a request as its attempts see it.  What the branches of a request share, and the functions by which their
 * answers go to the client.
 *
 * The attempt room knows no clients and no connections: it calls job->ops, which the request room fills.
 *
 * Process: worker.
 * Ownership: part of the request (request/request.h).  serve_free() frees what hangs from it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/answer/answer.h"
#include "worker/base/end_list.h"
#include "worker/base/facts.h"

struct attempt;
struct connector;
struct job;
struct leg;
struct leg_ops;
struct resume;
struct sse;
struct suspects;
struct text;
struct worker;

/* What served the request after failures, or would have; the last value counts. */
enum rescue {
	RESCUE_NONE,  /* other engines, if an attempt has failed */
	RESCUE_ALONE, /* no prefill engine was up: the decode engine serves alone from the start */
	RESCUE_FALLBACK, /* prefill engines have failed: the decode engine serves alone */
	RESCUE_RESUME,   /* another engine continues the stream */
};

/* How much of the answer the client has.  The functions of job_ops write it. */
enum sent {
	SENT_NOTHING, /* the status can still be chosen */
	SENT_WHOLE,   /* the head, and whole events or plain bytes */
	SENT_HALF,    /* the start of an event has gone out without its end */
	SENT_ALL,     /* the job is over: no more bytes are sent */
};

/* An engine's own answer, with its header lines for the client. */
struct reply {
	int status;
	struct span head, body;
};

/* Functions that send to the client, for the attempts of a job.  Only cut(), pass_on() and
 * end() end the job. */
struct job_ops {
	/* A time limit may have begun: the tick must look at the job. */
	void (*look)(struct job *job);
	/* A step of the job, for the log: `letter` is its first letter. */
	void (*step)(struct job *job, char letter);
	/* Its engines, or what they do, may have changed. */
	void (*moved)(struct job *job);
	/* The head and the first byte of decode's answer are here, and the answer passes
	 * unchanged. */
	void (*begin)(struct job *job, const struct leg *d);
	/* Payload of that answer; `done` with its last byte.  `sse` follows the stream. */
	void (*payload)(struct job *job, struct leg *d, struct sse *sse, const struct span *pieces,
		size_t n, bool done);
	/* Whole events, rewritten or followed.  The answer's head goes out with the first of them: decode's where
	 * job->answer is NULL. */
	void (*events)(struct job *job, const char *p, size_t n);
	void (*end_events)(struct job *job); /* after the last events() */
	/* A whole answer, made of several: application/json with status 200. */
	void (*reply)(struct job *job, const char *body, size_t n);
	/* The answer that was begun is void; none of its bytes were sent. */
	void (*reset)(struct job *job);
	/* The engine has broken off.  Returns true if its stream had sent [DONE] before, so
	 * that the answer is complete; the answer is then ended properly. */
	bool (*complete)(struct job *job, const struct sse *sse);
	/* Returns true if bytes of the decode answer are held until an event or a short answer
	 * is complete. */
	bool (*holds)(const struct job *job);
	/* Returns true if these bytes, with these pieces behind them, contain `word`. */
	bool (*contains)(
		const struct job *job, const struct span *pieces, size_t n, const char *word);
	/* Returns true while the client does not read: whole events should wait. */
	bool (*full)(const struct job *job);

	/* Sends an engine's own refusal to the client unchanged, or as an event if a stream has
	 * begun. */
	void (*pass_on)(struct job *job, const struct reply *refusal);
	/* Ends an answer that cannot be completed: with an error status while the status can
	 * still be chosen, else with an error event or the close.  `message`: an engine's own,
	 * or NULL for the message of `end`. */
	void (*cut)(struct job *job, enum req_end end, const char *message);
	void (*end)(struct job *job, enum req_end end);
};

/* One sample or one prompt of a request; usually there is one branch. */
struct branch {
	struct job *job;
	uint32_t index; /* `index` of its choice in the answer */
	struct attempt *attempt;
	struct span prompt; /* the branch's element of a list of prompts, else NULL */
	int64_t seed;
	bool seeded; /* property: `seed` replaces the client's; cleared when decode serves alone */
	/* Fact: the client's answer has the prefill engine's part, so a later attempt does not
	 * repeat it.  No state implies it, since the attempt that sent the part may be gone. */
	bool prefill_part_sent;
	/* of an answer in one piece: the end of decode's time limit, which all attempts share; in
	 * clock_ms(), 0: the limit has not begun */
	uint64_t answer_by_ms;
	struct suspects
		*suspects; /* engines that failed or refused this branch (suspects.h), or NULL */
};

struct job {
	struct worker *w;
	const struct job_ops *ops;
	const struct leg_ops *leg_ops; /* of the attempts' legs: serve.c */

	struct facts facts;
	struct text *text; /* the client's bytes; NULL once no engine will be sent more of them */
	char *key;         /* the Authorization line, once the text is dropped; or NULL */
	const struct connector *connector;
	const char *direct; /* why the decode engine serves alone, for the log; NULL: it does not */
	struct branch *branches;
	uint32_t nbranches;

	/* the answer (rewrite.h) */
	struct answer
		*answer; /* rewrites the engines' answers; NULL: the answer passes unchanged */
	struct answer_how how; /* the parameters that `answer` was made with */
	/* property of the plan: the client's answer contains a part of the prefill answer */
	bool takes_prefill;
	bool needs_prefill; /* property of the plan: decode's events wait for that part */
	enum sent sent;

	/* when engines fail (failover.h, resume.h) */
	uint32_t tries; /* attempts after the first */
	/* of these, moves to engines that were not busy: they cost neither a retry nor budget */
	uint32_t moves;
	enum rescue rescue;
	/* follows the stream so that another engine can continue it; or NULL */
	struct resume *resume;
	/* of a followed stream: the member that engines are sent; or NULL */
	struct span stream_options;
	/* why no other engine could continue the stream; NULL: one could, or the pool has no
	 * `resume` */
	const char *not_resumed;
	/* fact, for the log: an engine has failed, and `not_resumed` prevented a resume */
	bool resume_refused;

	/* how it went */
	enum req_end end;
	const char *detail; /* static text for the log and the error body, or NULL */
	const char *kv;     /* for the log: what was wrong with the KV parameters, or NULL */
	uint64_t t_prefill_us, t_prefilled_us;
};

/* Returns true if bytes of the answer have been sent to the client, so that the status is
 * fixed. */
static inline bool
job_started(const struct job *job)
{
	return job->sent == SENT_WHOLE || job->sent == SENT_HALF;
}

static inline bool
job_over(const struct job *job)
{
	return job->sent == SENT_ALL;
}

void job_init(struct job *job, struct worker *w, const struct job_ops *ops);
/* Frees what hangs from the job except job->resume, which the caller frees before. */
void job_free(struct job *job);

/* Gives the job `n` branches without attempts. */
void job_make_branches(struct job *job, uint32_t n);
/* Gives each of several branches its prompt and its sample: samples of one prompt are adjacent. */
void job_share_out(struct job *job);
/* Returns a copy of the client's Authorization line, for requests sent in the client's name; ""
 * if there is none.  The caller frees it. */
char *job_copy_key(const struct job *job);
