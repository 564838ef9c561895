/*
 * A batch: the JSON form of one ExportTraceServiceRequest (OTLP), made of span records.
 *
 * Process: exporter.
 * Source: opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding": ids are hex, 64-bit numbers are texts, enums are
 * numbers.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* The most that one span adds, whatever its record says: SPAN_MAX bytes of it, each key once, a byte of a text as six. */
#define BATCH_SPAN_TEXT_MAX (20u << 10) /* bytes of the text */
#define BATCH_SPAN_HEAP_MAX (80u << 10) /* bytes of memory, with the text */

struct batch;
struct span_record;

/* Who sends the spans. */
struct batch_source {
	const char *version; /* of the program */
	const char *host, *instance;
};

/* Returns an empty batch, which the caller frees. */
struct batch *batch_new(const struct batch_source *from);
void batch_free(struct batch **b); /* NULL is fine */

/* Adds a span that spans_next() has returned.  `wall_ns`: the wall clock less clock_us(), in nanoseconds. */
void batch_add(struct batch *b, const struct span_record *s, uint64_t wall_ns);
/* Returns the number of spans. */
uint32_t batch_count(const struct batch *b);
/* Returns the text, which stays until the batch changes. */
const char *batch_text(struct batch *b, size_t *ret_len);

/* Returns how many spans a collector that answered 200 has rejected, at most `most`; 0 if the answer does not say. */
uint32_t batch_rejected(const char *answer, size_t len, uint32_t most);
