/*
 * The form of a stream's events: an engine writes event after event with the same bytes around two values, the text and
 * the usage.  An event of the same form needs no parsing but of these two.
 *
 * Ownership: a form copies an event, of at most FORM_MAX bytes.  All zeros is a form that no event has.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "proto/json/splice.h"
#include "shm/base/mem.h"

#define FORM_MAX 2048 /* bytes of an event; real ones have some 300 */

struct form {
	struct membuf event;
	size_t head;   /* bytes before the text, a string */
	size_t middle; /* between the text and the usage */
	size_t tail;   /* behind the usage; no usage: 0 */
};

/* Later events are compared with this one, which was valid.  `usage` comes after `text`, both are spans of the event; it has
 * no bytes if there is none.  An event that is longer than FORM_MAX makes a form that no event has. */
void form_learn(struct form *f, const char *event, size_t n, const struct splice_seg *text,
	const struct splice_seg *usage);
/*
 * Whether an event has the same bytes around a string in place of the text and any bytes in place of the usage: then these
 * are *ret_text and *ret_usage.  The event is valid JSON if its usage is.
 */
bool form_match(const struct form *f, const char *event, size_t n, struct splice_seg *ret_text,
	struct splice_seg *ret_usage);
void form_free(struct form *f);
