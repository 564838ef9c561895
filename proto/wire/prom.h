/*
 * Prometheus text format: picks load figures out of an engine's /metrics, and writes our own.
 *
 * Reading rules (protocols.md 9.1, 9.3): one series per data-parallel rank: counts are summed, usage is
 * averaged; label order is free; values may be 3.0, 1e+06, NaN, +Inf; label values hold escapes, commas
 * and braces inside quotes; of several SGLang tp_rank series only the lowest counts; of a figure's old
 * and new name only the new one counts.
 *
 * A page is read piece by piece as it arrives, so 5 MB are never in memory at once, and no piece takes long.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prom_load {
	double running;  /* requests being computed; sum over ranks */
	double waiting;  /* requests queued, PD queues of SGLang included; sum over ranks */
	double kv_usage; /* 0..1, average over ranks */
	double capacity; /* tokens that the KV cache keeps for later prompts; sum over ranks; 0: not on the page */
	/* counters since the engine's start, of all its clients; sums over ranks */
	double prompt_tokens, generated_tokens;
	bool has_running, has_waiting, has_kv_usage, has_tokens;
	bool sglang; /* figures came under sglang: names */
	/* process_start_time_seconds, of which Python's client library has one series; 0: none */
	double start_s;
};

/* The capacity of a vLLM rank without prefix caching: less than any block, and not 0. */
#define PROM_KEEPS_NONE 1.

/* What other engines call them; NULL: the names of vLLM and SGLang. */
struct prom_names {
	const char *running, *waiting;
};

#define PROM_LINE_MAX 8192 /* bytes; a longer line is skipped and counted as bad */
#define PROM_FIGURES 20    /* rows of prom.c's table */
#define PROM_RANKS 64      /* data-parallel ranks behind one address: a host has 8 or 16 GPUs */

/* A page that is being read.  Private to prom.c but for its size. */
struct prom_page {
	struct prom_names names;
	uint64_t bad;
	size_t nranks; /* data-parallel ranks whose cells are in use; the others are not even zeroed */
	bool too_long; /* the line that has begun */
	size_t nline;
	/* by data-parallel rank, of each figure, known or named: its lowest other rank's series */
	struct prom_cell {
		uint64_t rank; /* tp, pp, moe_ep from high to low */
		double sum;
		uint64_t n; /* series; 0: none yet */
	} cells[PROM_RANKS][PROM_FIGURES + 2];
	char line[PROM_LINE_MAX];
};

/* The names must live until prom_end(). */
void prom_begin(struct prom_page *page, const struct prom_names *names);
void prom_feed(struct prom_page *page, const char *text, size_t len);
/*
 * The page has ended.  Lines that were not understood were skipped and are counted in *ret_bad (may be
 * NULL).  Returns 0, or -1 if no figure of a known name was found.
 */
int prom_end(struct prom_page *page, struct prom_load *ret, uint64_t *ret_bad);

/* Escapes a label value (backslash, quote, newline; bad UTF-8 becomes '?').  Returns bytes written excl.
 * NUL; always terminated, clipped to size. */
size_t prom_label(char *buf, size_t size, const char *text, size_t len);
