#include "master/fleet/requests.h"

#include <event2/buffer.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/fleet/endpoint.h"
#include "master/fleet/json_out.h"
#include "master/fleet/slots.h"
#include "shm/base/clock.h"
#include "shm/base/decimal.h"
#include "shm/base/mem.h"
#include "shm/core/seg.h"
#include "shm/load.h"
#include "shm/notes.h"

/* Which notes are wanted. */
struct query {
	struct fleet *fleet;
	const char *id;    /* NULL: all */
	uint64_t least_us; /* that a request has taken */
	uint64_t since_us; /* when it has ended at the earliest */
	bool ended;        /* those in the rings, too */
	bool json;
	uint64_t now_us;
	const struct endpoint **engines; /* slots_map(): each engine is looked at once */
};

struct shown {
	struct note note;
	uint32_t worker;
};

struct rows {
	struct shown *all;
	size_t n, room;
};

/* --- collecting --------------------------------------------------------------------------- */

/* An id that was longer than a note has room for is compared as far as it was kept. */
static bool
is_wanted(const struct query *w, const struct note *n)
{
	const uint64_t until = n->now.state == NOTE_ENDED ? n->now.at_us : w->now_us;

	if (n->now.state == NOTE_ENDED && until < w->since_us)
		return false;
	return (w->id == NULL || strncmp(w->id, n->id, NOTE_ID - 1) == 0) &&
	       until >= n->from_us + w->least_us;
}

static void
take(struct rows *rows, const struct query *w, const struct note *n, uint32_t worker)
{
	if (!is_wanted(w, n))
		return;
	if (rows->n == rows->room) {
		rows->room = rows->room == 0 ? 64 : 2 * rows->room;
		rows->all = mem_resize(rows->all, rows->room, sizeof(*rows->all));
	}
	rows->all[rows->n++] = (struct shown){*n, worker};
}

/* Requests in flight of a worker that has died are not there. */
static bool
serves(const struct seg *seg, uint32_t worker)
{
	const struct proc_record *p = &seg->proc_records[worker];

	return p->pid != 0 && (p->state == PROC_READY || p->state == PROC_DRAINING);
}

static void
take_worker(struct rows *rows, const struct query *w, uint32_t worker)
{
	const struct seg *seg = w->fleet->seg;
	const uint32_t running = serves(seg, worker) ? notes_in_use(seg, worker) : 0;
	const uint32_t kept = w->ended ? notes_kept(seg, worker) : 0;
	struct note n;

	for (uint32_t i = 0; i < running; i++)
		if (note_running(seg, worker, i, &n))
			take(rows, w, &n, worker);
	for (uint32_t i = 0; i < kept; i++)
		if (note_kept(seg, worker, i, &n))
			take(rows, w, &n, worker);
}

/* Those in flight first, the oldest first; then those that have ended, the last first. */
static int
compare(const void *pa, const void *pb)
{
	const struct note *a = &((const struct shown *)pa)->note,
			  *b = &((const struct shown *)pb)->note;
	const bool over_a = a->now.state == NOTE_ENDED, over_b = b->now.state == NOTE_ENDED;

	if (over_a != over_b)
		return over_a - over_b;
	if (over_a)
		return (a->now.at_us < b->now.at_us) - (a->now.at_us > b->now.at_us);
	return (a->from_us > b->from_us) - (a->from_us < b->from_us);
}

static struct rows
collect(const struct query *w)
{
	struct rows rows = {0};

	for (uint32_t worker = 0; worker < SLOT_WORKERS(w->fleet->seg); worker++)
		take_worker(&rows, w, worker);
	if (rows.n > 0)
		qsort(rows.all, rows.n, sizeof(*rows.all), compare);
	return rows;
}

/* --- one request -------------------------------------------------------------------------- */

/* NULL: it has none.  The slot of an engine that is no longer there has another tag. */
static const char *
engine_of(const struct query *w, const struct note *n, enum role role)
{
	const struct note_engines *e = &n->now.engines;
	const struct endpoint *ep;

	if (e->slot[role] == NOTE_NONE)
		return NULL;
	if (e->slot[role] >= w->fleet->seg->hdr->max_endpoints ||
		(uint32_t)ep_tag(w->fleet->seg, e->slot[role]) != e->tag[role])
		return "(removed)";
	ep = w->engines[e->slot[role]];
	return ep != NULL ? ep->engine.url : "(removed)";
}

static const char *
pool_of(const struct query *w, const struct note *n)
{
	const struct seg *seg = w->fleet->seg;

	return n->now.state > NOTE_PLAN && n->now.pool < seg->hdr->max_pools
		       ? seg_pool_name(seg, n->now.pool)
		       : "";
}

static uint64_t
since(uint64_t from_us, uint64_t until_us)
{
	return until_us > from_us ? until_us - from_us : 0;
}

static void
put(struct evbuffer *out, const char *key, const char *value)
{
	if (value != NULL && value[0] != '\0')
		(void)evbuffer_add_printf(out, " %s=%s", key, value);
}

/* As a text of one word: a log line would put quotes round it. */
static void
put_name(struct evbuffer *out, const char *key, const char *value)
{
	char clean[NOTE_ID];
	size_t i = 0;

	for (; value[i] != '\0' && i + 1 < sizeof(clean); i++)
		clean[i] = value[i] > ' ' && value[i] < 0x7f ? value[i] : '?';
	clean[i] = '\0';
	put(out, key, clean);
}

static void
put_count(struct evbuffer *out, const char *key, uint32_t n)
{
	if (n != NOTE_NONE)
		(void)evbuffer_add_printf(out, " %s=%" PRIu32, key, n);
}

static void
print_row(const struct query *w, const struct shown *row, struct evbuffer *out)
{
	const struct note *n = &row->note;
	const bool over = n->now.state == NOTE_ENDED;
	const double in_s = (double)since(n->now.at_us, w->now_us) / 1e6;
	const uint64_t until = over ? n->now.at_us : w->now_us;

	(void)evbuffer_add_printf(out, "%s %s=%.1fs total=%.3fs", note_state_word(n->now.state),
		over ? "ago" : "for", in_s, (double)since(n->from_us, until) / 1e6);
	put_name(out, "req", n->id);
	put_name(out, "model", n->model);
	put(out, "pool", pool_of(w, n));
	put(out, "prefill", engine_of(w, n, ROLE_PREFILL));
	put(out, "decode", engine_of(w, n, ROLE_DECODE));
	put_count(out, "tries", n->now.tries > 0 ? n->now.tries : NOTE_NONE);
	if (over) {
		put_count(out, "status", n->status);
		put_name(out, "reason", n->reason);
		put_name(out, "states", n->states);
		put_count(out, "queued_ms", n->queued_ms > 0 ? n->queued_ms : NOTE_NONE);
		put_count(out, "first_ms", n->first_ms);
		put_count(out, "prompt_tokens", n->prompt);
		put_count(out, "completion_tokens", n->completion);
	}
	(void)evbuffer_add_printf(out, " worker=%" PRIu32 "\n", row->worker);
}

static void
add_end(struct json_object *o, const struct note *n)
{
	json_out_number(o, "status", true, n->status);
	json_out_add(o, "reason", n->reason);
	json_out_add(o, "states", n->states);
	json_out_number(o, "queued_ms", true, n->queued_ms);
	json_out_number(o, "first_ms", true, n->first_ms);
	json_out_number(o, "prompt_tokens", n->prompt != NOTE_NONE, n->prompt);
	json_out_number(o, "completion_tokens", n->completion != NOTE_NONE, n->completion);
}

static void
write_row(const struct query *w, const struct shown *row, struct evbuffer *out, size_t *nwritten)
{
	const struct note *n = &row->note;
	const bool over = n->now.state == NOTE_ENDED;
	struct json_object *o = json_object_new_object();

	json_out_add(o, "id", n->id);
	json_out_add(o, "state", note_state_word(n->now.state));
	json_out_number(o, over ? "ago_ms" : "for_ms", true, since(n->now.at_us, w->now_us) / 1000);
	json_out_number(
		o, "total_ms", true, since(n->from_us, over ? n->now.at_us : w->now_us) / 1000);
	json_out_add(o, "model", n->model);
	json_out_add(o, "pool", pool_of(w, n));
	json_out_add(o, "prefill", engine_of(w, n, ROLE_PREFILL));
	json_out_add(o, "decode", engine_of(w, n, ROLE_DECODE));
	json_out_number(o, "tries", true, n->now.tries);
	json_out_number(o, "worker", true, row->worker);
	if (over)
		add_end(o, n);
	json_out_write(out, nwritten, o);
}

static void
answer(struct query *w, const struct rows *rows, struct evbuffer *out)
{
	size_t nwritten = 0;

	w->engines = slots_map(w->fleet);
	if (w->json)
		(void)evbuffer_add_printf(out, "{\"requests\":[");
	for (size_t i = 0; i < rows->n; i++)
		if (w->json)
			write_row(w, &rows->all[i], out, &nwritten);
		else
			print_row(w, &rows->all[i], out);
	if (w->json)
		(void)evbuffer_add_printf(out, "]}\n");
	free(w->engines);
}

/* --- the commands ------------------------------------------------------------------------- */

/* True, and *at is behind the word and its blank. */
static bool
take_word(const char **at, const char *word)
{
	const size_t n = strlen(word);

	if (strncmp(*at, word, n) != 0 || ((*at)[n] != ' ' && (*at)[n] != '\0'))
		return false;
	*at += n + ((*at)[n] == ' ');
	return true;
}

/* True if the word is NAME=MILLISECONDS, and *at is behind it and its blank. */
static bool
take_ms(const char **at, const char *name, uint64_t *ret_us)
{
	const size_t n = strlen(name);
	const char *value = *at + n;
	uint64_t ms;

	if (strncmp(*at, name, n) != 0 ||
		!decimal_read(&value, value + strcspn(value, " "), UINT32_MAX, &ms))
		return false;
	*at = value + (*value == ' ');
	*ret_us = ms * 1000;
	return true;
}

int
requests_list(struct fleet *f, const char *what, struct evbuffer *out)
{
	struct query w = {.fleet = f, .now_us = clock_us()};
	struct rows rows;
	uint64_t within_us;

	w.json = take_word(&what, "json");
	w.ended = take_ms(&what, "slower=", &w.least_us);
	if (take_ms(&what, "within=", &within_us)) {
		w.since_us = w.now_us > within_us ? w.now_us - within_us : 0;
		w.ended = true;
	}
	if (*what != '\0') {
		(void)evbuffer_add_printf(
			out, "slower=MILLISECONDS or within=MILLISECONDS is expected");
		return -1;
	}
	rows = collect(&w);
	answer(&w, &rows, out);
	free(rows.all);
	return 0;
}

int
requests_find(struct fleet *f, const char *what, struct evbuffer *out)
{
	struct query w = {.fleet = f, .now_us = clock_us(), .ended = true};
	struct rows rows;
	bool found;

	w.json = take_word(&what, "json");
	w.id = what;
	if (*what == '\0') {
		(void)evbuffer_add_printf(out, "the id of a request is needed");
		return -1;
	}
	rows = collect(&w);
	found = rows.n > 0;
	if (found)
		answer(&w, &rows, out);
	else
		(void)evbuffer_add_printf(
			out, "no request %.100s runs, or is among the last that have ended", what);
	free(rows.all);
	return found ? 0 : -1;
}
