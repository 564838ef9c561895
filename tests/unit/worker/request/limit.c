/* Which addresses are one client; which bodies find room beside those of all workers. */
#include "worker/request/limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "shm/core/heritage.h"
#include "worker/base/address.h"
#include "worker/base/buffered.h"
#include "worker/base/text.h"
#include "worker/request/req.h"
#include "tests/unit/shm/fixture.h"

TestSuite(worker_limit, .init = small_seg, .fini = small_seg_end);

static uint64_t
client_at(const char *address)
{
	struct sockaddr_storage ss = {.ss_family = AF_INET};
	struct sockaddr_in *in = (void *)&ss;
	struct sockaddr_in6 *in6 = (void *)&ss;
	struct address a;

	in->sin_port = 4711;
	if (inet_pton(AF_INET, address, &in->sin_addr) != 1) {
		ss.ss_family = AF_INET6;
		cr_assert_eq(inet_pton(AF_INET6, address, &in6->sin6_addr), 1, "%s", address);
	}
	a = address_of(&ss);
	return limit_hash_address(seg, &a);
}

Test(worker_limit, an_ipv4_address_is_one_client_however_it_is_written)
{
	cr_assert_eq(client_at("10.0.0.1"), client_at("10.0.0.1"));
	cr_assert_neq(client_at("10.0.0.1"), client_at("10.0.0.2"));
	cr_assert_eq(client_at("10.0.0.1"), client_at("::ffff:10.0.0.1"));
	cr_assert_neq(client_at("::ffff:10.0.0.2"), client_at("::ffff:10.0.0.1"));
}

Test(worker_limit, an_ipv6_network_of_64_bits_is_one_client)
{
	cr_assert_eq(client_at("2001:db8:1:2::1"), client_at("2001:db8:1:2:3:4:5:6"));
	cr_assert_neq(client_at("2001:db8:1:2::1"), client_at("2001:db8:1:3::1"));
	cr_assert_neq(client_at("::1"), client_at("0.0.0.1"));
	cr_assert_neq(client_at("a00:1::"), client_at("10.0.0.1"));
}

/* --- room for bodies ------------------------------------------------------------------------ */

#define MIB (UINT64_C(1) << 20)
#define NREQS 8

static struct conf conf = {.live.max_buffered = 64 * MIB, .live.max_body = 64 * MIB};
static struct heritage heritage;
static struct worker workers[2];
static struct text texts[NREQS];
static struct req reqs[NREQS];

static void
two_workers(void)
{
	small_seg();
	for (uint32_t i = 0; i < 2; i++) {
		proc_slot_set(seg, i, 1 + i, PROC_READY, 1);
		workers[i] = (struct worker){.h = &heritage,
			.conf = &conf,
			.seg = seg,
			.slot = i,
			.slab = seg_slab(seg, i)};
	}
}

TestSuite(worker_room, .init = two_workers, .fini = small_seg_end);

/* Request `i` is one of worker `i` % 2. */
static struct req *
request(uint32_t i)
{
	texts[i] = (struct text){.w = &workers[i % 2]};
	reqs[i] = (struct req){.w = &workers[i % 2], .job.text = &texts[i]};
	return &reqs[i];
}

static bool
declare(uint32_t i, uint64_t bytes)
{
	return limit_declare(request(i), bytes);
}

/* More of the body is here. */
static bool
grow(uint32_t i, uint64_t bytes)
{
	if (!limit_grow(&reqs[i], bytes))
		return false;
	texts[i].body_cap += bytes;
	return true;
}

Test(worker_room, one_bound_for_all_workers)
{
	cr_assert(declare(0, 20 * MIB));
	cr_assert(declare(1, 20 * MIB));
	cr_assert(declare(2, 16 * MIB), "seven eighths together");
	cr_assert_not(declare(3, MIB), "the other worker has none either");
	cr_assert(declare(3, 100 << 10));
	cr_assert(grow(3, 100 << 10), "a small one");
	limit_drop_declared(&reqs[2]);
	cr_assert(declare(5, 15 * MIB));
}

Test(worker_room, bytes_that_are_here_count_as_those_declared)
{
	cr_assert(declare(0, 20 * MIB));
	cr_assert(declare(1, 36 * MIB - 512 * 1024));
	cr_assert(grow(0, 20 * MIB));
	cr_assert(grow(1, 1 * MIB));
	cr_assert_not(declare(2, MIB));
	request(4); /* its length is unknown */
	cr_assert(grow(4, 100 << 10));
	cr_assert_not(grow(4, 1 * MIB));
	cr_assert_eq(workers[0].stored.bytes[STORED_BUFFERED], 20 * MIB + (100 << 10));
	cr_assert_eq(workers[0].stored.bytes[STORED_DECLARED], 0);
	cr_assert_not(limit_full(&workers[0]));
	cr_assert(declare(6, 200 << 10));
	buffered_add(&workers[1], (int64_t)(43 * MIB)); /* an answer */
	cr_assert(limit_full(&workers[0]));
	cr_assert(limit_full(&workers[1]));
	cr_assert_not(grow(6, 200 << 10), "not even a small one");
}

Test(worker_room, a_body_that_is_alone_has_room)
{
	cr_assert(declare(0, 64 * MIB));
	cr_assert_not(declare(1, MIB));
	cr_assert(grow(0, 64 * MIB));
	cr_assert_not(declare(1, MIB));
	buffered_add(&workers[0], -(int64_t)(64 * MIB));
	stored_restore(seg, 0, &workers[0].stored, stored_step(64 * MIB), &workers[0].shown);
	buffered_add(&workers[1], 1000); /* a head */
	cr_assert(declare(2, 64 * MIB));
}

Test(worker_room, who_is_killed_holds_nothing)
{
	cr_assert(declare(0, 40 * MIB));
	cr_assert_not(declare(1, 40 * MIB));
	proc_slot_set(seg, 0, 0, PROC_EMPTY, 0);
	cr_assert(declare(1, 40 * MIB));
}
