/*
 * Prometheus text format: picks load figures out of an engine's /metrics, and writes our own.
 *
 * Reading rules (protocols.md 9.1, 9.3): one series per data-parallel rank: counts are summed, usage is
 * averaged; label order is free; values may be 3.0, 1e+06, NaN, +Inf; label values hold escapes, commas
 * and braces inside quotes; of several SGLang tp_rank series only the lowest counts.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prom_load {
	double running;  /* requests being computed; sum over ranks */
	double waiting;  /* requests queued, PD queues of SGLang included; sum over ranks */
	double kv_usage; /* 0..1, average over ranks */
	bool has_running, has_waiting, has_kv_usage;
	bool sglang; /* figures came under sglang: names */
};

/*
 * Reads a whole page.  Lines it does not understand are skipped and counted in *ret_bad (may be NULL).
 * Returns 0, or -1 if no figure of a known name was found.
 */
int prom_read_load(const char *text, size_t len, struct prom_load *ret, uint64_t *ret_bad);

/* Escapes a label value (backslash, quote, newline; bad UTF-8 becomes '?').  Returns bytes written excl.
 * NUL; always terminated, clipped to size. */
size_t prom_label(char *buf, size_t size, const char *text, size_t len);
