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

/* What one part does at most. */
#define PART_NOTES 4096
#define PART_ROWS 256

/* A request in flight: where its note is. */
struct place {
	uint64_t from_us;
	uint32_t worker, note;
};

/* The ended requests of a worker: from `next` down to `last` are left. */
struct ring {
	uint64_t next, last;
	bool ready; /* `note` is the one before `next`: the newest that is left */
	struct note note;
};

enum phase { LOOK, SHOW, ENDED, OVER };

/* Which notes are wanted, and how far the answer is. */
struct requests {
	struct fleet *fleet;
	char *id;          /* NULL: all */
	uint64_t least_us; /* that a request has taken */
	uint64_t since_us; /* when it has ended at the earliest */
	bool ended;        /* those in the rings, too */
	bool json;
	uint64_t now_us;
	const struct endpoint **engines; /* slots_map(), in a part: each engine is looked at once */
	enum phase phase;
	struct place *running; /* LOOK fills it, SHOW shows it */
	size_t nrunning, room, shown;
	uint32_t worker, note; /* LOOK: the next one */
	uint64_t nleft_out;    /* in flight, beyond REQUESTS_RUNNING_MAX */
	struct ring *rings;    /* ENDED: of each worker */
	size_t nrows;          /* written */
};

struct shown {
	struct note note;
	uint32_t worker;
};

/* --- one request -------------------------------------------------------------------------- */

/* NULL: it has none.  The slot of an engine that is no longer there has another tag. */
static const char *
engine_of(const struct requests *w, const struct note *n, enum role role)
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
pool_of(const struct requests *w, const struct note *n)
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
print_row(const struct requests *w, const struct shown *row, struct evbuffer *out)
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
write_row(const struct requests *w, const struct shown *row, struct evbuffer *out, size_t *nwritten)
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
	if (*nwritten == 0)
		(void)evbuffer_add_printf(out, "{\"requests\":[");
	json_out_write(out, nwritten, o);
}

static void
write_one(struct requests *w, const struct shown *row, struct evbuffer *out)
{
	if (w->json) {
		write_row(w, row, out, &w->nrows);
		return;
	}
	print_row(w, row, out);
	w->nrows++;
}

/* An id that was longer than a note has room for is compared as far as it was kept. */
static bool
is_wanted(const struct requests *w, const struct note *n)
{
	const uint64_t until = n->now.state == NOTE_ENDED ? n->now.at_us : w->now_us;

	if (n->now.state == NOTE_ENDED && until < w->since_us)
		return false;
	return (w->id == NULL || strncmp(w->id, n->id, NOTE_ID - 1) == 0) &&
	       until >= n->from_us + w->least_us;
}

/* --- those in flight, the oldest first ------------------------------------------------------- */

static void
remember(struct requests *w, uint64_t from_us)
{
	if (w->nrunning == REQUESTS_RUNNING_MAX) {
		w->nleft_out++;
		return;
	}
	if (w->nrunning == w->room) {
		w->room = w->room == 0 ? 64 : 2 * w->room;
		w->running = mem_resize(w->running, w->room, sizeof(*w->running));
	}
	w->running[w->nrunning++] = (struct place){from_us, w->worker, w->note};
}

static int
compare(const void *pa, const void *pb)
{
	const struct place *a = pa, *b = pb;

	return (a->from_us > b->from_us) - (a->from_us < b->from_us);
}

static void
look(struct requests *w)
{
	const struct seg *seg = w->fleet->seg;
	struct note n;

	for (int left = PART_NOTES; left > 0 && w->worker < SLOT_WORKERS(seg); left--) {
		if (w->note >= notes_in_flight(seg, w->worker)) {
			w->worker++;
			w->note = 0;
			continue;
		}
		if (note_running(seg, w->worker, w->note, &n) && is_wanted(w, &n))
			remember(w, n.from_us);
		w->note++;
	}
	if (w->worker < SLOT_WORKERS(seg))
		return;
	if (w->nrunning > 0)
		qsort(w->running, w->nrunning, sizeof(*w->running), compare);
	w->phase = SHOW;
}

/* A note may have another request by now. */
static void
show(struct requests *w, struct evbuffer *out)
{
	struct shown row;

	for (int left = PART_ROWS; left > 0 && w->shown < w->nrunning; left--) {
		const struct place *p = &w->running[w->shown++];

		row.worker = p->worker;
		if (note_running(w->fleet->seg, p->worker, p->note, &row.note) &&
			row.note.from_us == p->from_us && is_wanted(w, &row.note))
			write_one(w, &row, out);
	}
	if (w->shown == w->nrunning)
		w->phase = ENDED;
}

/* --- those that have ended, the last first ------------------------------------------------------ */

static void
begin_rings(struct requests *w)
{
	const struct seg *seg = w->fleet->seg;

	w->rings = mem_array(SLOT_WORKERS(seg), sizeof(*w->rings));
	for (uint32_t i = 0; i < SLOT_WORKERS(seg) && w->ended; i++) {
		w->rings[i].next = notes_ended(seg, i);
		w->rings[i].last = w->rings[i].next - notes_kept(seg, w->rings[i].next);
	}
}

/* Until the ring's newest wanted note is there, or none is left; looks at `most` notes at most and returns how many. */
static int
advance(const struct requests *w, uint32_t worker, int most)
{
	struct ring *r = &w->rings[worker];
	int n = 0;

	while (!r->ready && r->next != r->last && n < most) {
		n++;
		if (!note_ended(w->fleet->seg, worker, r->next--, &r->note))
			continue;
		r->ready = is_wanted(w, &r->note);
		if (r->note.now.at_us < w->since_us)
			r->next = r->last; /* nor are those that ended before it */
	}
	return n;
}

/* The number of the worker whose note comes next; no ring has an unknown one.  UINT32_MAX: there is none. */
static uint32_t
newest(const struct requests *w)
{
	uint32_t found = UINT32_MAX;

	for (uint32_t i = 0; i < SLOT_WORKERS(w->fleet->seg); i++)
		if (w->rings[i].ready &&
			(found == UINT32_MAX ||
				w->rings[i].note.now.at_us > w->rings[found].note.now.at_us))
			found = i;
	return found;
}

static void
merge(struct requests *w, struct evbuffer *out)
{
	int notes = PART_NOTES;

	if (w->rings == NULL)
		begin_rings(w);
	for (uint32_t i = 0; i < SLOT_WORKERS(w->fleet->seg); i++)
		notes -= advance(w, i, notes);
	for (int rows = PART_ROWS; rows > 0 && notes > 0; rows--) {
		const uint32_t i = newest(w);

		if (i == UINT32_MAX) {
			w->phase = OVER;
			return;
		}
		write_one(w, &(struct shown){w->rings[i].note, i}, out);
		w->rings[i].ready = false;
		notes -= advance(w, i, notes);
	}
}

static int
finish(const struct requests *w, struct evbuffer *out)
{
	if (w->id != NULL && w->nrows == 0) {
		(void)evbuffer_add_printf(
			out, "no request %.100s runs, or is among the last that have ended", w->id);
		return -1;
	}
	if (w->json)
		(void)evbuffer_add_printf(out, "%s],\"left_out\":%" PRIu64 "}\n",
			w->nrows > 0 ? "" : "{\"requests\":[", w->nleft_out);
	else if (w->nleft_out > 0)
		(void)evbuffer_add_printf(out,
			"%" PRIu64 " more in flight are left out: use --slower\n", w->nleft_out);
	return 0;
}

int
requests_step(struct requests *w, struct evbuffer *out)
{
	w->engines = slots_map(w->fleet);
	if (w->phase == LOOK)
		look(w);
	else if (w->phase == SHOW)
		show(w, out);
	else
		merge(w, out);
	free(w->engines);
	w->engines = NULL;
	return w->phase != OVER ? 1 : finish(w, out);
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

/* NULL, or what is wrong. */
static const char *
read_options(struct requests *w, const char *what, bool find)
{
	uint64_t within_us;

	w->json = take_word(&what, "json");
	if (find) {
		w->id = mem_strdup(what);
		w->ended = true;
		return *what != '\0' ? NULL : "the id of a request is needed";
	}
	w->ended = take_ms(&what, "slower=", &w->least_us);
	if (take_ms(&what, "within=", &within_us)) {
		w->since_us = w->now_us > within_us ? w->now_us - within_us : 0;
		w->ended = true;
	}
	return *what == '\0' ? NULL : "slower=MILLISECONDS or within=MILLISECONDS is expected";
}

struct requests *
requests_new(struct fleet *f, bool find, const char *what, struct evbuffer *out)
{
	struct requests *w = MEM_NEW(struct requests);
	const char *wrong;

	w->fleet = f;
	w->now_us = clock_us();
	wrong = read_options(w, what, find);
	if (wrong != NULL) {
		(void)evbuffer_add_printf(out, "%s", wrong);
		requests_free(&w);
	}
	return w;
}

void
requests_free(struct requests **pw)
{
	struct requests *w = *pw;

	if (w == NULL)
		return;
	free(w->id);
	free(w->running);
	free(w->rings);
	free(w);
	*pw = NULL;
}
