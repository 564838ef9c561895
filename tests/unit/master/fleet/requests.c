/* `pdctl requests` of a hundred thousand requests: in parts, in order, and with no more than is asked for. */
#include "master/fleet/requests.h"

#include <criterion/criterion.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <stdio.h>
#include <string.h>

#include "master/fleet/fleet.h"
#include "shm/base/clock.h"
#include "shm/core/seg.h"
#include "shm/notes.h"

#define WORKERS 2
#define KEPT 25000 /* of each worker */
#define RUNNING (REQUESTS_RUNNING_MAX / WORKERS + 3)
#define PART_LINES 256

static struct event_base *base;
static struct seg *seg;
static struct fleet *fleet;
static struct notes *notes[WORKERS];
static struct evbuffer *out;
static uint64_t now_us;

static void
setup(void)
{
	struct seg_sizes sizes = {.max_workers = WORKERS,
		.max_endpoints = 2,
		.max_pools = 1,
		.flags_per_worker = 64,
		.running_requests = RUNNING,
		.kept_requests = KEPT};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	base = event_base_new();
	fleet = fleet_new(base, seg);
	out = evbuffer_new();
	now_us = clock_us();
	for (uint32_t i = 0; i < WORKERS; i++) {
		notes[i] = notes_new(seg, i);
		seg->proc_records[i].pid = 1;
		seg->proc_records[i].state = PROC_READY;
	}
}

static void
teardown(void)
{
	for (uint32_t i = 0; i < WORKERS; i++)
		notes_free(&notes[i]);
	evbuffer_free(out);
	fleet_free(&fleet);
	event_base_free(base);
	seg_free(&seg);
}

TestSuite(requests, .init = setup, .fini = teardown, .timeout = 60);

/* A request that has ended so long ago, and took so long. */
static void
ended(uint32_t worker, const char *id, uint64_t ago_us, uint64_t took_us)
{
	const struct note_now now = {.state = NOTE_ENDED,
		.at_us = now_us - ago_us,
		.engines = {{NOTE_NONE, NOTE_NONE}, {0, 0}}};
	const struct note_end end = {.status = 200, .reason = "ok"};

	note_end(notes[worker], 0, id, "m", now.at_us - took_us, &now, &end);
}

/* One that came so long ago. */
static uint32_t
began(uint32_t worker, const char *id, uint64_t ago_us)
{
	const struct note_now now = {.state = NOTE_BODY,
		.at_us = now_us - ago_us,
		.engines = {{NOTE_NONE, NOTE_NONE}, {0, 0}}};

	return note_begin(notes[worker], id, "m", &now, now.at_us);
}

static unsigned
lines(const char *text)
{
	unsigned n = 0;

	for (; *text != '\0'; text++)
		n += *text == '\n';
	return n;
}

static const char *
text(void)
{
	cr_assert_eq(evbuffer_add(out, "", 1), 0);
	return (const char *)evbuffer_pullup(out, -1);
}

/* The whole answer; *ret_parts: the parts it took.  No part writes more than a part may. */
static int
ask(bool find, const char *what, unsigned *ret_parts)
{
	struct requests *w = requests_new(fleet, find, what, out);
	struct evbuffer *part = evbuffer_new();
	int r;

	cr_assert_not_null(w);
	*ret_parts = 0;
	do {
		r = requests_step(w, part);
		++*ret_parts;
		cr_assert_eq(evbuffer_add(part, "", 1), 0);
		cr_assert_leq(lines((const char *)evbuffer_pullup(part, -1)), PART_LINES + 1);
		(void)evbuffer_add(out, evbuffer_pullup(part, -1), evbuffer_get_length(part) - 1);
		(void)evbuffer_drain(part, evbuffer_get_length(part));
	} while (r > 0);
	evbuffer_free(part);
	requests_free(&w);
	return r;
}

/* Ids are numbers: the number in each line is `step` more than in the line before. */
static void
expect_order(const char *at, int first, int step, int n)
{
	for (int i = 0; i < n; i++) {
		/* strstr() and sscanf() may read all that follows, each time */
		const char *end = strchr(at, '\n'), *id;

		cr_assert_not_null(end);
		id = memmem(at, (size_t)(end - at), " req=", 5);
		cr_assert_not_null(id);
		cr_assert_eq(atoi(id + 5), first + i * step, "%d of %d: %d", i, n, atoi(id + 5));
		at = end + 1;
	}
	cr_assert_null(strstr(at, " req="));
}

/* The workers end them in turn. */
Test(requests, the_ended_ones_come_in_parts_and_in_order)
{
	unsigned parts;
	char id[16];

	for (int i = 0; i < WORKERS * (KEPT + 1000); i++) {
		(void)snprintf(id, sizeof(id), "%d", i);
		ended((uint32_t)i % WORKERS, id, 1000000 - (uint64_t)i, 5000);
	}
	cr_assert_eq(ask(false, "slower=1", &parts), 0);
	cr_expect_geq(parts, WORKERS * KEPT / PART_LINES);
	expect_order(text(), WORKERS * (KEPT + 1000) - 1, -1, WORKERS * KEPT);
}

Test(requests, few_are_found_among_many)
{
	unsigned parts;

	for (int i = 0; i < KEPT; i++)
		ended(0, i == 17 ? "slow" : "fast", 3000000, i == 17 ? 9000000 : 5000);
	ended(1, "1", 2000000, 9000000);
	ended(1, "0", 1000000, 9000000);
	cr_assert_eq(ask(false, "slower=8000", &parts), 0);
	cr_expect_geq(parts, KEPT / 4096, "not all at once");
	cr_assert_eq(lines(text()), 3);
	(void)evbuffer_drain(out, evbuffer_get_length(out));
	cr_assert_eq(ask(false, "within=2500", &parts), 0);
	expect_order(text(), 0, 1, 2);
	(void)evbuffer_drain(out, evbuffer_get_length(out));
	cr_assert_eq(ask(true, "slow", &parts), 0);
	cr_assert_eq(lines(text()), 1);
	(void)evbuffer_drain(out, evbuffer_get_length(out));
	cr_assert_eq(ask(true, "none", &parts), -1);
	cr_expect_str_eq(text(), "no request none runs, or is among the last that have ended");
}

Test(requests, those_in_flight_are_bounded)
{
	unsigned parts;
	char id[16];

	for (int i = 0; i < WORKERS * RUNNING; i++) {
		(void)snprintf(id, sizeof(id), "%d", i);
		(void)began((uint32_t)i % WORKERS, id, 1000 + (uint64_t)i);
	}
	cr_assert_eq(ask(false, "json slower=1", &parts), 0);
	cr_expect_geq(parts, REQUESTS_RUNNING_MAX / PART_LINES);
	cr_assert_not_null(strstr(text(), "],\"left_out\":6}\n"));
	(void)evbuffer_drain(out, evbuffer_get_length(out));
	cr_assert_eq(ask(false, "", &parts), 0);
	cr_assert_not_null(strstr(text(), "\n6 more in flight are left out: use --slower\n"));
	(void)evbuffer_drain(out, evbuffer_get_length(out));
	cr_assert_eq(ask(false, "slower=60000", &parts), 0);
	cr_expect_str_eq(text(), "");
}

/* The note of `gone` has another request by the time its line is due. */
Test(requests, the_oldest_comes_first_and_none_is_mistaken)
{
	struct requests *w = requests_new(fleet, false, "", out);
	uint32_t gone;

	(void)began(0, "0", 3000);
	gone = began(0, "gone", 2500);
	(void)began(0, "2", 1000);
	(void)began(1, "1", 2000);
	cr_assert_eq(requests_step(w, out), 1);
	note_end(
		notes[0], gone, "gone", "m", now_us, &(struct note_now){.state = NOTE_ENDED}, NULL);
	cr_assert_eq(began(0, "new", 500), gone);
	while (requests_step(w, out) > 0)
		;
	requests_free(&w);
	expect_order(text(), 0, 1, 3);
}
