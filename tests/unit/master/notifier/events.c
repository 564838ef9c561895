/* Subscriptions to KV events, turn by turn. */
#include "master/notifier/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zmq.h>

#include "shm/base/clock.h"
#include "shm/kv_events.h"
#include "shm/load.h"
#include "shm/prefix.h"
#include "tests/unit/shm/fixture.h"

#define WAIT_MS 10000
#define FLOOD 200         /* messages before each turn: more than it reads of a publisher */
#define FLOOD_BYTES 20000 /* so that these fill the turn */
#define TURNS 500
#define TURN_US 10000

static void *ctx;
static struct events *events;
static uint64_t stands_ms; /* 0: the clock goes */

/* Instead of libc's: in this thread the clock may stand, at stands_ms.  libzmq's threads have the real one. */
int
clock_gettime(clockid_t id, struct timespec *ts)
{
	if (stands_ms == 0 || id != CLOCK_MONOTONIC || gettid() != getpid())
		return (int)syscall(SYS_clock_gettime, id, ts);
	*ts = (struct timespec){.tv_sec = (time_t)(stands_ms / 1000),
		.tv_nsec = (long)(stands_ms % 1000 * 1000000)};
	return 0;
}

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

static void
publish_at(void *pub, uint32_t ep)
{
	int linger = 0;
	struct kv_source s;
	char address[64];
	size_t n = sizeof(address);

	(void)zmq_setsockopt(pub, ZMQ_LINGER, &linger, sizeof(linger));
	cr_assert_eq(zmq_bind(pub, "tcp://127.0.0.1:*"), 0);
	cr_assert_eq(zmq_getsockopt(pub, ZMQ_LAST_ENDPOINT, address, &n), 0);
	s = source_at(ep, address);
	kv_source_put(seg, ep, &s);
}

static void *
publisher(uint32_t ep)
{
	void *pub = zmq_socket(ctx, ZMQ_PUB);

	publish_at(pub, ep);
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

/* A batch without events. */
static void
publish_number(void *pub, uint8_t number)
{
	const uint8_t bytes[8] = {[7] = number};

	(void)zmq_send(pub, "", 0, ZMQ_SNDMORE);
	(void)zmq_send(pub, bytes, sizeof(bytes), ZMQ_SNDMORE);
	(void)zmq_send(pub, "\x92\x00\x90", 3, 0);
}

static uint64_t
messages_of(uint32_t ep)
{
	struct kv_counts c;

	return kv_counts_get(seg, ep, &c) ? c.messages : 0;
}

static void
until_subscribed(void *pub, uint32_t ep)
{
	for (unsigned i = 0; i < WAIT_MS && bad_of(ep) == 0; i++) {
		publish(pub, 1);
		(void)events_take(events);
		(void)usleep(1000);
	}
}

/* Until it is subscribed to, all that it has sent is read, and its message 0, too.  From then on the clock stands: a slow
 * machine makes no publisher silent. */
static void
until_read(void *pub, uint32_t ep)
{
	stands_ms = 0;
	until_subscribed(pub, ep);
	publish_number(pub, 0);
	for (unsigned i = 0; i < WAIT_MS && messages_of(ep) == 0; i++) {
		(void)events_take(events);
		(void)usleep(1000);
	}
	cr_expect_eq(messages_of(ep), 1);
	stands_ms = clock_ms();
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
		(void)usleep(TURN_US); /* libzmq's thread fills its queue */
		(void)events_take(events);
	}
	cr_expect_eq(bad_of(1), before + 1);
	(void)zmq_close(flood);
	(void)zmq_close(quiet);
}

/* The publisher of that endpoint sends again what was missed. */
static void *
replay_of(uint32_t ep)
{
	void *replay = zmq_socket(ctx, ZMQ_ROUTER);
	int linger = 0;
	struct kv_source s;
	uint64_t seq = 0;
	size_t n = sizeof(s.replay);

	(void)zmq_setsockopt(replay, ZMQ_LINGER, &linger, sizeof(linger));
	cr_assert_eq(zmq_bind(replay, "tcp://127.0.0.1:*"), 0);
	cr_assert(kv_source_get(seg, ep, &seq, &s));
	cr_assert_eq(zmq_getsockopt(replay, ZMQ_LAST_ENDPOINT, s.replay, &n), 0);
	kv_source_put(seg, ep, &s);
	return replay;
}

/* Until the publisher is asked for a replay; it has nothing to send again. */
static void
until_asked(void *replay)
{
	uint8_t who[64];
	int n = -1;

	for (unsigned i = 0; i < WAIT_MS && n <= 0; i++) {
		(void)events_take(events);
		n = zmq_recv(replay, who, sizeof(who), ZMQ_DONTWAIT);
		(void)usleep(1000);
	}
	cr_expect_gt(n, 0, "nothing was asked for");
	if (n <= 0)
		return;
	(void)zmq_recv(replay, NULL, 0, 0);
	(void)zmq_recv(replay, NULL, 0, 0);
	(void)zmq_send(replay, who, (size_t)n, ZMQ_SNDMORE);
	(void)zmq_send(replay, "", 0, ZMQ_SNDMORE);
	(void)zmq_send(replay, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, ZMQ_SNDMORE);
	(void)zmq_send(replay, "", 0, 0);
}

/* Until so many messages of that endpoint are given up. */
static void
until_missed(uint32_t ep, uint64_t n)
{
	struct kv_counts c = {0};

	for (unsigned i = 0; i < WAIT_MS && c.missed < n; i++) {
		(void)events_take(events);
		(void)kv_counts_get(seg, ep, &c);
		(void)usleep(1000);
	}
	cr_expect_eq(c.missed, n);
}

Test(notifier_events, gap_after_gap_makes_no_socket_after_socket)
{
	void *pub = publisher(0), *replay = replay_of(0);
	char who[64];

	until_read(pub, 0);
	publish_number(pub, 10); /* 1 to 9 are missing */
	until_asked(replay);
	until_missed(0, 9); /* the replay has ended */
	publish_number(pub, 20);
	until_missed(0, 18);
	cr_expect_eq(zmq_recv(replay, who, sizeof(who), ZMQ_DONTWAIT), -1, "so soon after it");
	stands_ms += 199;
	publish_number(pub, 30);
	until_missed(0, 27);
	stands_ms += 1;
	publish_number(pub, 40);
	until_asked(replay);
	until_missed(0, 36);
	(void)zmq_close(pub);
	(void)zmq_close(replay);
}

/* Counts of replayed messages. */
static uint64_t
replayed_of(uint32_t ep)
{
	struct kv_counts c;

	(void)kv_counts_get(seg, ep, &c);
	return c.replayed;
}

Test(notifier_events, a_flood_of_one_publisher_does_not_shut_out_the_replay_of_another)
{
	void *flood = publisher(0), *pub = publisher(1), *replay = replay_of(1);
	uint8_t who[64];
	int n = -1;

	until_read(flood, 0);
	until_read(pub, 1);
	publish_number(pub, 2);
	for (unsigned i = 0; i < WAIT_MS && n <= 0; i++) {
		(void)usleep(1000);
		(void)events_take(events);
		n = zmq_recv(replay, who, sizeof(who), ZMQ_DONTWAIT);
	}
	cr_expect_gt(n, 0);
	for (unsigned i = 0; n > 0 && i < 10 * FLOOD; i++)
		publish(flood, FLOOD_BYTES);
	(void)usleep(100000);
	(void)events_take(events);
	(void)zmq_send(replay, who, n > 0 ? (size_t)n : 0, ZMQ_SNDMORE);
	publish_number(replay, 1);
	for (unsigned i = 0; n > 0 && i < TURNS && replayed_of(1) == 0; i++) {
		for (unsigned k = 0; k < FLOOD; k++)
			publish(flood, FLOOD_BYTES);
		(void)usleep(TURN_US);
		(void)events_take(events);
	}
	cr_expect_eq(replayed_of(1), 1);
	(void)zmq_close(flood);
	(void)zmq_close(pub);
	(void)zmq_close(replay);
}

Test(notifier_events, the_only_rank_of_an_endpoint_may_be_any_rank_of_its_engine)
{
	static const uint8_t batch[] = {0x93, 0, 0x90, 3}, number[8] = {[7] = 1};
	void *pub = publisher(0);
	struct kv_counts c = {0};
	uint64_t before;

	until_read(pub, 0);
	before = bad_of(0);
	(void)zmq_send(pub, "", 0, ZMQ_SNDMORE);
	(void)zmq_send(pub, number, sizeof(number), ZMQ_SNDMORE);
	(void)zmq_send(pub, batch, sizeof(batch), 0);
	for (unsigned i = 0; i < WAIT_MS && c.messages < 2 && c.bad <= before; i++) {
		(void)usleep(1000);
		(void)events_take(events);
		(void)kv_counts_get(seg, 0, &c);
	}
	cr_expect(c.messages == 2 && c.bad == before);
	(void)zmq_close(pub);
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

#define BLOCK 16

/* A batch of one event: the first 4 blocks of a prompt, of 64 ids. */
static void
publish_blocks(void *pub, uint8_t number)
{
	static const char head[] = "\x92\x00\x91\x96\xab"
				   "BlockStored"
				   "\x94\x01\x02\x03\x04\xc0\xdc\x00\x40";
	static const char tail[] = "\x10\xc0";
	const uint8_t bytes[8] = {[7] = number};
	uint8_t batch[sizeof(head) + 64 + sizeof(tail)];

	memcpy(batch, head, sizeof(head) - 1);
	memset(batch + sizeof(head) - 1, 7, 64);
	memcpy(batch + sizeof(head) - 1 + 64, tail, sizeof(tail) - 1);
	(void)zmq_send(pub, "", 0, ZMQ_SNDMORE);
	(void)zmq_send(pub, bytes, sizeof(bytes), ZMQ_SNDMORE);
	(void)zmq_send(pub, batch, sizeof(head) - 1 + 64 + sizeof(tail) - 1, 0);
}

static void
until_messages(uint32_t ep, uint64_t n)
{
	for (unsigned i = 0; i < WAIT_MS && messages_of(ep) < n; i++) {
		(void)events_take(events);
		(void)usleep(1000);
	}
	cr_expect_eq(messages_of(ep), n);
}

/* ids of a block, and whether all of them are known */
static void
expect_blocks(uint32_t ep, uint64_t ids, bool all)
{
	cr_expect_eq(seg->prefix_engines[ep].blocks, ids << 1 | all, "%x",
		(unsigned)seg->prefix_engines[ep].blocks);
}

Test(notifier_events, blocks_are_exact_while_all_come_in_order)
{
	void *pub = publisher(0);
	struct kv_source s;
	uint64_t seq = 0;

	cr_assert(kv_source_get(seg, 0, &seq, &s));
	s.row = 1;
	kv_source_put(seg, 0, &s);
	until_read(pub, 0);
	expect_blocks(0, 0, false);
	publish_blocks(pub, 1);
	until_messages(0, 2);
	expect_blocks(0, BLOCK, true);
	s.row = 2; /* its pool has grown: no other subscription */
	s.root = 3;
	kv_source_put(seg, 0, &s);
	stands_ms += 500;
	(void)events_take(events);
	publish_blocks(pub, 2);
	until_messages(0, 3);
	expect_blocks(0, BLOCK, true);
	publish_blocks(pub, 4);
	until_messages(0, 4);
	expect_blocks(0, BLOCK, false);
	stands_ms += 60001;
	(void)events_take(events);
	cr_expect_eq(seg->prefix_engines[0].events, 0, "a minute of silence");
	expect_blocks(0, BLOCK, false);
	(void)zmq_close(pub);
}

/* Each has a cache of its own. */
Test(notifier_events, blocks_of_several_ranks_are_not_followed)
{
	void *pub = publisher(0);
	struct kv_source s;
	uint64_t seq = 0;

	cr_assert(kv_source_get(seg, 0, &seq, &s));
	s.row = 1;
	s.ranks = 2;
	kv_source_put(seg, 0, &s);
	until_read(pub, 0);
	publish_blocks(pub, 1);
	until_messages(0, 2);
	expect_blocks(0, 0, false);
	(void)zmq_close(pub);
}

/* What a publisher sends while nobody reads waits at the publisher, and not in the notifier. */
Test(notifier_events, little_of_each_publisher_is_read_ahead)
{
	enum { BYTES = 1000000, MESSAGES = 100 };
	void *pub = zmq_socket(ctx, ZMQ_PUB);
	char *big = calloc(1, BYTES);
	const int few = 1;
	uint64_t before;

	(void)zmq_setsockopt(pub, ZMQ_SNDHWM, &few, sizeof(few));
	publish_at(pub, 0);
	until_subscribed(pub, 0); /* a number might find no room */
	stands_ms = clock_ms();
	before = bad_of(0);
	for (unsigned i = 0; i < MESSAGES; i++) {
		(void)zmq_send(pub, big, BYTES, ZMQ_DONTWAIT);
		(void)usleep(5000);
	}
	for (unsigned i = 0; i < 50; i++) {
		(void)events_take(events);
		(void)usleep(2000);
	}
	cr_expect_gt(bad_of(0), before);
	cr_expect_lt(bad_of(0) - before, 40, "%u", (unsigned)(bad_of(0) - before));
	(void)zmq_close(pub);
	free(big);
}

Test(notifier_events, descriptors_are_counted_for_each_rank)
{
	cr_expect_eq(events_fds(512, 0), 0);
	cr_expect_geq(events_fds(512, 1), 512 * 2);
	cr_expect_geq(events_fds(512, 16), 512 * 17);
	cr_expect_geq(events_fds(65536, 1024), UINT64_C(65536) * 1025);
	cr_expect_eq(events_bytes(512, 0), 0);
	cr_expect_geq(events_bytes(4, 1), 16 << 20);
	cr_expect_eq(events_bytes(65536, 1024), 1 << 30);
}
