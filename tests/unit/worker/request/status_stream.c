/* The stream of the status page: what a sample says, and what becomes of viewers that do not read. */
#include "worker/request/status_stream.h"

#include <event2/event.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/core/heritage.h"
#include "shm/core/rcu.h"
#include "shm/load.h"
#include "shm/notes.h"
#include "shm/table.h"
#include "worker/base/core.h"
#include "worker/request/client.h"
#include "worker/request/request.h"
#include "worker/request/status_sample.h"

#include "tests/unit/shm/fixture.h" /* last: its `seg` is a parameter's name above */

#define SLOT 1
#define ENDPOINTS 200 /* more than three steps */
#define HOSTILE "http://\"</script>\n\r\xff\xe2\x80\xa8"

static const struct heritage heritage = {.version = "1\"2"};
static struct conf conf = {
	.live = {.client_head_ms = 1000, .client_write_ms = 60000, .max_head = 1000}};
static struct rcu_writer *writer;
static struct worker *w;
static struct status_sample *sample;

static void
set_up(void)
{
	static const struct seg_sizes sizes = {.max_workers = 2,
		.max_endpoints = ENDPOINTS,
		.max_pools = 2,
		.flags_per_worker = 64,
		.queue_slots = 100,
		.running_requests = 300,
		.kept_requests = 300};

	cr_assert_eq(seg_new(&sizes, 1, &seg), 0);
	writer = rcu_writer_new(seg);
	w = calloc(1, sizeof(*w));
	*w = (struct worker){.h = &heritage,
		.slot = SLOT,
		.seg = seg,
		.conf = &conf,
		.followed = &conf,
		.followed_seq = settings_seq(seg),
		.slab = seg_slab(seg, SLOT),
		.base = event_base_new(),
		.buf = malloc(WORKER_BUF),
		.ticking = true}; /* no clock helps */
	rounds_init(&w->client_rounds, 0);
	rounds_init(&w->req_rounds, 0);
	TAILQ_INIT(&w->clients);
	TAILQ_INIT(&w->ended_clients);
	TAILQ_INIT(&w->reqs);
	TAILQ_INIT(&w->ended_reqs);
	w->notes = notes_new(seg, SLOT);
	sample = status_sample_new(w);
}

static void
tear_down(void)
{
	status_sample_free(&sample);
	notes_free(&w->notes);
	rcu_writer_free(&writer);
	seg_free(&seg);
}

TestSuite(status_stream, .init = set_up, .fini = tear_down);

static void
publish(uint64_t version, uint32_t nendpoints)
{
	static const char *const groups[] = {"rack"};
	struct table_builder b;
	void *arena = rcu_arena_get(writer);
	struct table *t = table_begin(&b, arena, seg->arena_bytes, 1, nendpoints);
	struct table_pool *tp = table_pool_at(&b, 0);

	t->version = version;
	(void)strcpy(seg_pool_name(seg, 0), "chat");
	tp->name = table_str(&b, "chat");
	tp->groups = table_strv(&b, groups, 1);
	for (uint32_t i = 0; i < nendpoints; i++) {
		struct table_endpoint *te = table_endpoint_at(&b, i);

		te->slot = i;
		te->weight = 1;
		te->role = i % 2 == 0 ? ROLE_PREFILL : ROLE_DECODE;
		te->group = i % 2;
		te->url = table_str(&b, HOSTILE);
		te->version = table_str(&b, "");
		if (version == 1)
			ep_slot_begin(seg, i);
		te->tag = (uint32_t)ep_tag(seg, i);
	}
	cr_assert_eq(table_end(&b), 0);
	rcu_publish(writer, arena);
}

/* The next sample; the number of its steps. */
static int
take(void)
{
	int steps = 1;

	status_sample_begin(sample);
	while (status_sample_step(sample))
		steps++;
	return steps;
}

/* The data of an event, which is one line.  The caller puts it. */
static struct json_object *
data_of(struct span text, const char *event)
{
	char begin[64], *data;
	struct json_object *o;
	int n = snprintf(begin, sizeof(begin), "event: %s\ndata: ", event);

	cr_assert_gt(text.n, (size_t)n);
	cr_assert_eq(memcmp(text.p, begin, (size_t)n), 0);
	data = strndup(text.p + n, text.n - (size_t)n);
	cr_assert_eq(strcmp(strchr(data, '\n'), "\n\n"), 0);
	o = json_tokener_parse(data);
	cr_assert_not_null(o);
	free(data);
	return o;
}

static struct json_object *
member(struct json_object *o, const char *name)
{
	return json_object_object_get(o, name);
}

static uint64_t
word(struct json_object *list, size_t row, size_t column)
{
	return json_object_get_uint64(
		json_object_array_get_idx(json_object_array_get_idx(list, row), column));
}

Test(status_stream, before_the_first_table_there_are_no_pools)
{
	struct json_object *fleet, *now;

	(void)take();
	fleet = data_of(status_sample_fleet(sample), "fleet");
	now = data_of(status_sample_now(sample), "now");
	cr_assert_eq(json_object_array_length(member(fleet, "pools")), 0);
	cr_assert_str_eq(json_object_get_string(member(fleet, "version")), "1\"2");
	cr_assert_eq(json_object_array_length(member(now, "engines")), 0);
	(void)json_object_put(fleet);
	(void)json_object_put(now);
}

Test(status_stream, names_are_sent_when_they_have_changed)
{
	struct json_object *fleet, *engine;

	publish(1, ENDPOINTS);
	(void)take();
	cr_assert_eq(status_sample_number(sample), 1);
	fleet = data_of(status_sample_fleet(sample), "fleet");
	cr_assert_eq(json_object_array_length(member(fleet, "engines")), ENDPOINTS);
	engine = json_object_array_get_idx(member(fleet, "engines"), 7);
	cr_assert_str_eq(json_object_get_string(json_object_array_get_idx(engine, 1)), "decode");
	/* a byte that is no UTF-8 is replaced */
	cr_assert_str_eq(json_object_get_string(json_object_array_get_idx(engine, 2)),
		"http://\"</script>\n\r\xef\xbf\xbd\xe2\x80\xa8");
	cr_assert_str_eq(json_object_get_string(json_object_array_get_idx(engine, 3)), "rack");
	(void)json_object_put(fleet);
	(void)take();
	cr_assert_eq(status_sample_number(sample), 1);
	publish(2, 3);
	(void)take();
	cr_assert_eq(status_sample_number(sample), 2);
	fleet = data_of(status_sample_fleet(sample), "fleet");
	cr_assert_eq(json_object_array_length(member(fleet, "engines")), 3);
	(void)json_object_put(fleet);
}

Test(status_stream, a_sample_that_is_not_complete_changes_nothing)
{
	publish(1, ENDPOINTS);
	(void)take();
	publish(2, 3);
	status_sample_begin(sample);
	for (int i = 0; i < 3; i++)
		(void)status_sample_step(sample);
	cr_assert_eq(status_sample_number(sample), 1);
	(void)take();
	cr_assert_eq(status_sample_number(sample), 2);
}

static struct note_now
at(uint32_t prefill, uint32_t decode, enum note_state state)
{
	return (struct note_now){.state = state,
		.at_us = clock_us(),
		.engines = {{prefill, decode},
			{(uint32_t)ep_tag(seg, prefill), (uint32_t)ep_tag(seg, decode)}}};
}

Test(status_stream, requests_in_flight_are_flows)
{
	struct json_object *now, *flows;
	uint64_t n = 0;

	publish(1, ENDPOINTS);
	seg->proc_records[SLOT].pid = 1;
	seg->proc_records[SLOT].state = PROC_READY;
	for (uint32_t i = 0; i < 290; i++) {
		struct note_now where = at(i % 3 * 2, 1, NOTE_DECODE);

		if (i == 289) /* of another life of the slot */
			where.engines.tag[ROLE_PREFILL]++, where.engines.tag[ROLE_DECODE]++;
		(void)note_begin(w->notes, "id", "model", &where, clock_us() - 1000);
	}
	cr_assert_gt(take(), 290 / 128 + ENDPOINTS / 64);
	now = data_of(status_sample_now(sample), "now");
	flows = member(now, "flows");
	cr_assert_eq(json_object_array_length(flows), 3);
	for (size_t i = 0; i < 3; i++) {
		cr_assert_eq(word(flows, i, 1), 1);
		n += word(flows, i, 2);
	}
	cr_assert_eq(n, 289);
	(void)json_object_put(now);
}

Test(status_stream, flows_have_a_bound)
{
	struct json_object *now;
	uint64_t n;

	publish(1, ENDPOINTS);
	seg->proc_records[SLOT].pid = 1;
	seg->proc_records[SLOT].state = PROC_READY;
	for (uint32_t i = 0; i < 300; i++) {
		const struct note_now where = at(i % 100 * 2, i * 7 % 100 * 2 + 1, NOTE_DECODE);

		(void)note_begin(w->notes, "id", "model", &where, clock_us() - 1000);
	}
	(void)take();
	now = data_of(status_sample_now(sample), "now");
	n = json_object_get_uint64(member(now, "other_flows"));
	for (size_t i = 0; i < json_object_array_length(member(now, "flows")); i++)
		n += word(member(now, "flows"), i, 2);
	cr_assert_eq(n, 300);
	(void)json_object_put(now);
}

static void
fail(const char *id, uint32_t status, const char *reason, uint64_t ago_us)
{
	struct note_now where = at(0, 1, NOTE_ENDED);
	const struct note_end end = {.status = status, .reason = reason};

	where.at_us -= ago_us;
	note_end(w->notes, 0, id, "a\"model", where.at_us, &where, &end);
}

static void
expect_failures(const char *const *ids, size_t n)
{
	struct json_object *now, *list;

	(void)take();
	now = data_of(status_sample_now(sample), "now");
	list = member(now, "failures");
	cr_assert_eq(json_object_array_length(list), n);
	for (size_t i = 0; i < n; i++)
		cr_assert_str_eq(
			json_object_get_string(member(json_object_array_get_idx(list, i), "id")),
			ids[i]);
	(void)json_object_put(now);
}

Test(status_stream, failures_are_remembered_and_shown_once)
{
	static const char *const ids[] = {"late", "cut", "busy", "first"};

	publish(1, ENDPOINTS);
	fail("first", 503, "no_decode_endpoint", 900);
	fail("busy", 429, "queue_full", 800);
	fail("mistake", 404, "model_not_found", 700);
	fail("left", 200, "client_gone", 600);
	fail("cut", 200, "decode_broken", 500);
	fail("good", 200, "ok", 400);
	expect_failures(ids + 1, 3);
	expect_failures(ids + 1, 3);
	fail("late", 502, "decode_broken", 300);
	expect_failures(ids, 4);
	for (int i = 0; i < 299; i++) /* the ring has forgotten all but these and one */
		fail("good", 200, "ok", 200);
	expect_failures(ids, 4);
}

Test(status_stream, the_last_failures_are_kept)
{
	static char ids[300][16];
	static const char *last[20];

	publish(1, ENDPOINTS);
	for (int i = 0; i < 300; i++) {
		(void)snprintf(ids[i], sizeof(ids[i]), "id-%d", i);
		fail(ids[i], 502, "decode_broken", (uint64_t)(1000 - i));
	}
	for (int i = 0; i < 20; i++)
		last[i] = ids[299 - i];
	expect_failures(last, 20);
}

/* --- viewers ------------------------------------------------------------------------------------ */

static int
view(int bytes)
{
	static const char get[] = "GET /status/events HTTP/1.1\r\nHost: r\r\n\r\n";
	int fds[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	cr_assert_eq(setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)), 0);
	client_new(w, fds[0], &(struct client_origin){.door = DOOR_OPERATORS}, &request_client_ops);
	cr_assert_eq(write(fds[1], get, strlen(get)), strlen(get));
	return fds[1];
}

/* Turns of the loop; what has come. */
static size_t
turns(int fd, bool tick)
{
	char buf[4096];
	size_t got = 0;

	if (tick)
		status_stream_tick(w->status);
	for (int i = 0; i < 100; i++) {
		(void)event_base_loop(w->base, EVLOOP_NONBLOCK);
		for (ssize_t n; (n = read(fd, buf, sizeof(buf))) > 0;)
			got += (size_t)n;
	}
	return got;
}

Test(status_stream, a_viewer_that_does_not_read_is_closed_and_others_are_not)
{
	const int slow = view(4096), quick = view(1 << 20);

	publish(1, ENDPOINTS);
	cr_assert_gt(turns(quick, false), 10000);
	cr_assert_eq(w->nreqs, 2);
	for (int i = 0; i < 4; i++)
		cr_assert_gt(turns(quick, true), 1000);
	cr_assert_eq(w->nreqs, 2);
	for (int i = 0; i < 2; i++)
		cr_assert_gt(turns(quick, true), 1000);
	cr_assert_eq(w->nreqs, 1);
	cr_assert_eq(metric_gauge_sum(seg, G_STATUS_VIEWERS), 1);
	(void)close(slow);
	(void)close(quick);
	(void)turns(slow, false);
	cr_assert_eq(w->nreqs, 0);
	cr_assert_eq(metric_gauge_sum(seg, G_STATUS_VIEWERS), 0);
}

Test(status_stream, a_slow_viewer_has_one_sample_queued)
{
	const int slow = view(4096);
	size_t queued;

	publish(1, ENDPOINTS);
	for (int i = 0; i < 100; i++)
		(void)event_base_loop(w->base, EVLOOP_NONBLOCK);
	queued = sock_queued(&TAILQ_FIRST(&w->clients)->sock);
	cr_assert_gt(queued, 0);
	for (int tick = 0; tick < 3; tick++) {
		status_stream_tick(w->status);
		for (int i = 0; i < 100; i++)
			(void)event_base_loop(w->base, EVLOOP_NONBLOCK);
		cr_assert_eq(sock_queued(&TAILQ_FIRST(&w->clients)->sock), queued);
	}
	cr_assert_gt(turns(slow, true), queued);
	cr_assert_gt(turns(slow, true), 1000);
	cr_assert_eq(w->nreqs, 1);
	(void)close(slow);
}

Test(status_stream, a_worker_that_drains_ends_its_streams)
{
	const int fd = view(1 << 20);

	publish(1, ENDPOINTS);
	cr_assert_gt(turns(fd, false), 1000);
	w->phase = WORKER_DRAINS;
	(void)turns(fd, true);
	cr_assert_eq(w->nreqs, 0);
	(void)close(fd);
}
