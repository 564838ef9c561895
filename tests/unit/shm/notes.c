/* Notes of requests: what a worker writes is read; no reader trusts a byte. */
#include "shm/notes.h"

#include <criterion/criterion.h>
#include <string.h>

#define RUNNING 4
#define KEPT 3

static struct seg *seg;
static struct notes *notes;

static void
setup(void)
{
	struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = 2,
		.max_pools = 1,
		.flags_per_worker = 64,
		.running_requests = RUNNING,
		.kept_requests = KEPT};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	notes = notes_new(seg, 1);
}

static void
teardown(void)
{
	notes_free(&notes);
	seg_free(&seg);
}

TestSuite(notes, .init = setup, .fini = teardown);

static const struct note_now reads = {
	.state = NOTE_BODY, .at_us = 100, .engines = {{NOTE_NONE, NOTE_NONE}, {0, 0}}, .pool = 3};

static uint32_t
begin(const char *id)
{
	return note_begin(notes, id, "", &reads, 100);
}

static void
end_it(uint32_t note, const char *id)
{
	const struct note_now now = {.state = NOTE_ENDED, .at_us = 500, .tries = 2};
	const struct note_end end = {.status = 503,
		.reason = "prefill_connect_timeout",
		.states = "hbpd",
		.queued_ms = 7,
		.first_ms = 8,
		.prompt = 9,
		.completion = NOTE_NONE};

	note_end(notes, note, id, "m", 100, &now, &end);
}

/* It had no note in the table. */
static void
ended(const char *id)
{
	end_it(0, id);
}

Test(notes, a_request_on_its_way)
{
	struct note_now now = reads;
	struct note n;
	const uint32_t note = begin("some-id");

	cr_assert_eq(note, 1);
	cr_assert_eq(notes_in_use(seg, 1), 1);
	cr_assert_eq(notes_in_use(seg, 0), 0, "of another worker");
	cr_assert(note_running(seg, 1, 0, &n));
	cr_expect_str_eq(n.id, "some-id");
	cr_expect_str_eq(n.model, "");
	cr_expect(n.now.state == NOTE_BODY && n.from_us == 100 && n.now.pool == 3);
	cr_expect(n.now.engines.slot[ROLE_PREFILL] == NOTE_NONE);
	note_model(notes, note, "model-of-8");
	now.state = NOTE_DECODE;
	now.at_us = 300;
	now.tries = 1;
	now.engines = (struct note_engines){{4, 5}, {6, 7}};
	note_move(notes, note, &now);
	cr_assert(note_running(seg, 1, 0, &n));
	cr_expect_str_eq(n.id, "some-id");
	cr_expect_str_eq(n.model, "model-of-8");
	cr_expect(n.now.state == NOTE_DECODE && n.now.at_us == 300 && n.now.tries == 1);
	cr_expect(n.now.engines.slot[ROLE_PREFILL] == 4 && n.now.engines.slot[ROLE_DECODE] == 5 &&
		  n.now.engines.tag[ROLE_PREFILL] == 6 && n.now.engines.tag[ROLE_DECODE] == 7);
	end_it(note, "some-id");
	cr_expect_not(note_running(seg, 1, 0, &n));
	cr_assert(note_ended(seg, 1, 1, &n));
	cr_expect_str_eq(n.id, "some-id");
	cr_expect_str_eq(n.model, "model-of-8");
}

Test(notes, a_request_without_room_is_not_in_the_table)
{
	for (uint32_t i = 1; i <= RUNNING; i++)
		cr_assert_eq(begin("x"), i);
	cr_assert_eq(begin("x"), 0);
	note_model(notes, 0, "m");
	note_move(notes, 0, &reads);
	note_end(notes, 0, "x", "m", 100, &reads, NULL);
	note_end(notes, 2, "x", "m", 100, &reads, NULL);
	cr_assert_eq(notes_ended(seg, 1), 0, "the router has answered these by itself");
	cr_assert_eq(begin("y"), 2);
	cr_assert_eq(begin("y"), 0);
}

Test(notes, the_ring_has_the_last_ones)
{
	static const char *const ids[] = {"a", "b", "c", "d", "e"};
	struct note n;

	cr_assert_eq(notes_ended(seg, 1), 0);
	for (uint32_t i = 0; i < 5; i++) {
		ended(ids[i]);
		cr_assert_eq(notes_ended(seg, 1), i + 1);
		cr_assert_eq(notes_kept(seg, i + 1), i < KEPT ? i + 1 : KEPT);
	}
	cr_expect_not(note_ended(seg, 1, 5 - KEPT, &n), "the fifth is in its place");
	for (uint32_t i = 0; i < KEPT; i++) {
		cr_assert(note_ended(seg, 1, 5 - i, &n));
		cr_expect_str_eq(n.id, ids[4 - i]);
	}
	cr_expect(n.status == 503 && n.queued_ms == 7 && n.first_ms == 8 && n.prompt == 9 &&
		  n.completion == NOTE_NONE && n.now.tries == 2 && n.from_us == 100 &&
		  n.now.at_us == 500);
	cr_expect_str_eq(n.reason, "prefill_connect_timeout");
	cr_expect_str_eq(n.states, "hbpd");
}

/* The worker writes a note, and then counts it: in between the oldest number's place has the
 * newest note. */
Test(notes, the_newest_is_not_shown_as_the_oldest)
{
	struct notes_head *head = seg_notes(seg, 1);
	struct note n;

	for (uint32_t lap = 0; lap < 3; lap++) {
		for (uint32_t i = 0; i < KEPT; i++)
			ended("old");
		cr_assert(note_ended(seg, 1, head->ended - KEPT + 1, &n));
		ended("new");
		head->ended--;
		cr_expect_not(note_ended(seg, 1, head->ended - KEPT + 1, &n));
		cr_expect(note_ended(seg, 1, head->ended, &n));
		head->ended++;
		cr_expect(note_ended(seg, 1, head->ended, &n));
		cr_expect_str_eq(n.id, "new");
	}
}

Test(notes, long_texts_are_cut)
{
	char id[200], model[200];
	struct note n;
	uint32_t note;

	memset(id, 'i', sizeof(id) - 1);
	memset(model, 'm', sizeof(model) - 1);
	id[sizeof(id) - 1] = model[sizeof(model) - 1] = '\0';
	note = begin(id);
	note_model(notes, note, model);
	cr_assert(note_running(seg, 1, note - 1, &n));
	cr_expect(strlen(n.id) == NOTE_ID - 1 && strlen(n.model) == NOTE_MODEL - 1);
	note_model(notes, note, "1234567"); /* its end stands in the first word */
	cr_assert(note_running(seg, 1, note - 1, &n));
	cr_expect_str_eq(n.model, "1234567");
	note_model(notes, note, "12345678");
	cr_assert(note_running(seg, 1, note - 1, &n));
	cr_expect_str_eq(n.model, "12345678");
}

/* The next process of the slot begins with an empty table, and goes on in the ring. */
Test(notes, after_a_death)
{
	struct note n;

	(void)begin("gone");
	ended("a");
	seg_note(seg, 1, 0)->seq |= 1; /* killed while it wrote */
	cr_expect_not(note_running(seg, 1, 0, &n), "no consistent note");
	notes_free(&notes);
	notes = notes_new(seg, 1);
	cr_assert_eq(notes_in_use(seg, 1), 0);
	ended("b");
	cr_assert_eq(notes_ended(seg, 1), 2);
	cr_assert_eq(begin("next"), 1);
	cr_assert(note_running(seg, 1, 0, &n));
	cr_expect_str_eq(n.id, "next");
}

/* Any process may have stored anything there. */
Test(notes, a_reader_trusts_nothing)
{
	struct notes_head *head = seg_notes(seg, 1);
	struct note_words *w = seg_note(seg, 1, 0);
	struct note n;

	(void)begin("x");
	head->high = UINT64_MAX;
	cr_expect_eq(notes_in_use(seg, 1), RUNNING);
	head->ended = UINT64_MAX;
	cr_expect_eq(notes_kept(seg, notes_ended(seg, 1)), KEPT);
	for (uint32_t i = 0; i < KEPT; i++)
		cr_expect_not(note_ended(seg, 1, UINT64_MAX - i, &n));
	memset(w->id, 'x', sizeof(w->id));
	memset(w->states, 'x', sizeof(w->states));
	cr_assert(note_running(seg, 1, 0, &n));
	cr_expect(strlen(n.id) == NOTE_ID - 1 && strlen(n.states) == NOTE_LETTERS - 1);
	w->what = 0xff;
	cr_expect_not(note_running(seg, 1, 0, &n));
	w->what = NOTE_DECODE;
	w->from_us = UINT64_MAX;
	cr_expect_not(note_running(seg, 1, 0, &n), "it began after its state");
}

Test(notes, none_is_wanted)
{
	struct seg_sizes sizes = {
		.max_workers = 1, .max_endpoints = 2, .max_pools = 1, .flags_per_worker = 64};

	notes_free(&notes);
	seg_free(&seg);
	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	notes = notes_new(seg, 0);
	cr_expect_eq(begin("x"), 0);
	ended("x");
	cr_expect(notes_kept(seg, 7) == 0 && !note_ended(seg, 0, 1, &(struct note){0}) &&
		  notes_in_use(seg, 0) == 0);
}
