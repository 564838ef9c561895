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
struct text;
struct worker;

/* What saved the request, or would: the last of them counts. */
enum rescue {
	RESCUE_NONE,  /* other engines, if any attempt has failed */
	RESCUE_ALONE, /* no prefill engine was up: the decode engine does it alone from the start */
	RESCUE_FALLBACK, /* prefill engines have failed: the decode engine does it alone */
	RESCUE_RESUME,   /* another engine goes on with the stream */
};

/* How much of the answer the client has.  The functions of job_ops write it. */
enum sent {
	SENT_NOTHING, /* its status can still be chosen */
	SENT_WHOLE,   /* the head, and whole events or plain bytes */
	SENT_HALF,    /* the start of an event has gone out without its end */
	SENT_ALL,     /* the job is over: nothing more is sent, whatever the client has */
};

/* The way to the client, for the attempts of a job.  Only cut(), pass_on() and end() end the job. */
struct job_ops {
	/* A step of the job, for the log: `letter` is its first letter. */
	void (*step)(struct job *job, char letter);
	/* The head and the first byte of decode's answer are here, and the answer is passed on as it comes. */
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
	/* What was begun is void; nothing of it had gone out. */
	void (*reset)(struct job *job);
	/* The engine has broken off.  Returns true if its stream had said [DONE] before, so that nothing is missing;
	 * the answer is then ended properly. */
	bool (*complete)(struct job *job, const struct sse *sse);
	/* Returns true if bytes of that answer are kept back, until an event or a short answer is whole. */
	bool (*holds)(const struct job *job);
	/* Returns true while the client does not read: whole events should wait. */
	bool (*full)(const struct job *job);

	/* An engine's own refusal reaches the client as it is, or as an event where a stream has begun. */
	void (*pass_on)(struct job *job, const struct leg *leg);
	/* The answer cannot be completed: an error status where it can still be chosen, else an error event or the close.
	 * `message`: an engine's own, or NULL for the one of `end`. */
	void (*cut)(struct job *job, enum req_end end, const char *message);
	void (*end)(struct job *job, enum req_end end);
};

/* One sample or one prompt of a request; usually there is one branch. */
struct branch {
	struct job *job;
	uint32_t index; /* `index` of its choice in the answer */
	struct attempt *attempt;
	struct span prompt; /* its element of a list of prompts, else NULL */
	int64_t seed;
	bool seeded; /* set once: `seed` replaces the client's */
	bool prefill_part_sent; /* the answer has the prefill engine's part: a later attempt does not repeat it */
};

struct job {
	struct worker *w;
	const struct job_ops *ops;
	const struct leg_ops *leg_ops; /* of the attempts' legs: serve.c */

	struct facts facts;
	struct text *text; /* the client's bytes; NULL once no engine is to be sent anything more */
	char *key;         /* the Authorization line, once the text is dropped; or NULL */
	const struct connector *connector;
	const char
		*direct; /* why the decode engine does it alone, for the log; NULL: it does not */
	struct branch *branches;
	uint32_t nbranches;

	/* the answer (rewrite.h) */
	struct answer
		*answer; /* rewrites what the engines say; NULL: it is passed on as it comes */
	struct answer_how how; /* it was made for */
	bool takes_prefill;    /* the prefill answer is part of it */
	bool needs_prefill;    /* and decode's words wait for it */
	enum sent sent;

	/* when engines fail (failover.h, resume.h) */
	uint32_t tries; /* attempts after the first */
	uint32_t moves; /* of these, to engines that were not busy: no retry, no budget */
	enum rescue rescue;
	struct resume *resume;      /* follows the stream, for others to go on with it; or NULL */
	struct span stream_options; /* of a followed stream: what the engines are sent; or NULL */
	const char *not_resumed;    /* why they could not; NULL: they could, or nobody asked */
	bool resume_refused;        /* ... which has mattered */

	/* how it went */
	enum req_end end;
	const char *detail; /* static text for the log and the error body, or NULL */
	uint64_t t_prefill_us, t_prefilled_us;
};

/* True if bytes of the answer have gone to the client: the status can no longer be chosen. */
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
/* All but job->resume, which is freed before. */
void job_free(struct job *job);

/* Gives the job `n` branches without attempts. */
void job_make_branches(struct job *job, uint32_t n);
/* Each of several branches gets its sample of its prompt: samples of one prompt lie side by side. */
void job_share_out(struct job *job);
/* Returns the client's Authorization line, for what is sent in its name; "" if there is none.  The caller's. */
char *job_copy_key(const struct job *job);
