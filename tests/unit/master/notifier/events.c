/* Subscriptions to KV events, turn by turn. */
#include "master/notifier/events.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "shm/base/clock.h"
#include "shm/kv_events.h"
#include "shm/load.h"
#include "shm/prefix.h"
#include "tests/unit/shm/fixture.h"

#define WAIT_MS 10000
#define FLOOD 100         /* messages before each turn: more than it reads of a publisher */
#define FLOOD_BYTES 20000 /* so that these fill the turn */
#define TURNS 100

static void *ctx;
static struct events *events;

static void
setup(void)
{
	small_seg();
	ctx = zmq_ctx_new();
	events = events_new(seg, seg_slab(seg, SLOT_NOTIFIER(seg)), ctx);
	cr_assert(events != NULL);
}

static void
teardown(void)
{
	events_free(&events);
	(void)zmq_ctx_term(ctx);
	small_seg_end();
}

TestSuite(notifier_events, .init = setup, .fini = teardown);

static struct kv_source
source_at(uint32_t ep, const char *address)
{
	struct kv_source s = {.tag = (uint32_t)ep_tag(seg, ep), .ranks = 1};

	(void)snprintf(s.events, sizeof(s.events), "%s", address);
	return s;
}

static void *
publisher(uint32_t ep)
{
	void *pub = zmq_socket(ctx, ZMQ_PUB);
	int linger = 0;
	struct kv_source s;
	char address[64];
	size_t n = sizeof(address);

	(void)zmq_setsockopt(pub, ZMQ_LINGER, &linger, sizeof(linger));
	cr_assert_eq(zmq_bind(pub, "tcp://127.0.0.1:*"), 0);
	cr_assert_eq(zmq_getsockopt(pub, ZMQ_LAST_ENDPOINT, address, &n), 0);
	s = source_at(ep, address);
	kv_source_put(seg, ep, &s);
	return pub;
}

/* One that is no batch, with so many bytes: it counts as a message all the same. */
static void
publish(void *pub, size_t n)
{
	static const char nonsense[FLOOD_BYTES];

	(void)zmq_send(pub, nonsense, n, ZMQ_DONTWAIT);
}

static uint64_t
bad_of(uint32_t ep)
{
	struct kv_counts c;

	(void)kv_counts_get(seg, ep, &c);
	return c.bad;
}

static void
until_read(void *pub, uint32_t ep)
{
	const uint64_t end_ms = clock_ms() + WAIT_MS;

	while (bad_of(ep) == 0) {
		cr_assert_lt(clock_ms(), end_ms);
		publish(pub, 1);
		(void)events_take(events);
		(void)usleep(1000);
	}
	(void)usleep(100000); /* what is under way */
	while (events_take(events))
		;
}

Test(notifier_events, a_flood_of_one_publisher_does_not_shut_out_another)
{
	void *flood = publisher(0), *quiet = publisher(1);
	uint64_t before;

	until_read(flood, 0);
	until_read(quiet, 1);
	before = bad_of(1);
	for (unsigned i = 0; i < 10 * FLOOD; i++)
		publish(flood, FLOOD_BYTES);
	(void)usleep(100000);
	(void)events_take(events); /* the flood has its turn, and is not at its end */
	publish(quiet, 1);
	(void)usleep(100000);
	for (unsigned i = 0; i < TURNS && bad_of(1) == before; i++) {
		for (unsigned k = 0; k < FLOOD; k++)
			publish(flood, FLOOD_BYTES);
		(void)usleep(2000); /* libzmq's thread fills its queue */
		(void)events_take(events);
	}
	cr_expect_eq(bad_of(1), before + 1);
	(void)zmq_close(flood);
	(void)zmq_close(quiet);
}

Test(notifier_events, a_silent_publisher_is_not_followed_because_a_killed_predecessor_did)
{
	struct kv_source s = source_at(2, "tcp://127.0.0.1:9");
	uint64_t held;

	prefix_follow(seg, 2, 100, 100);
	cr_assert(prefix_held(seg, 2, &held));
	kv_source_put(seg, 2, &s);
	(void)events_take(events);
	cr_expect_not(prefix_held(seg, 2, &held));
}
