/* Which peers count as engines while lmcache.networks names none. */
#include "master/notifier/nearby.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "shm/base/mem.h"
#include "shm/kv_events.h"
#include "tests/unit/shm/fixture.h"

static struct nearby *nearby;

static void
setup(void)
{
	small_seg();
	nearby = nearby_new(seg);
}

static void
teardown(void)
{
	nearby_free(&nearby);
	small_seg_end();
}

TestSuite(nearby, .init = setup, .fini = teardown);

static void
interface(const char *own, unsigned bits)
{
	const struct peer_ip ip = peer_ip_of(own);

	cr_assert_neq(ip.family, 0);
	cr_assert(nearby_add_interface(nearby, &ip, bits));
}

/* There are two engines at most; NULL: not this one, or its name is not resolved yet. */
static void
publish(const char *a, const char *b)
{
	const char *const at[] = {a, b};

	for (uint32_t i = 0; i < 2; i++) {
		const struct peer_ip ip = peer_ip_of(at[i]);
		struct kv_sender sender = {.family = ip.family};

		memcpy(sender.ip, ip.ip, sizeof(ip.ip));
		kv_sender_put(seg, i, &sender);
	}
	nearby_refresh(nearby);
}

static bool
has(const char *peer)
{
	const struct peer_ip ip = peer_ip_of(peer);

	cr_assert_neq(ip.family, 0, "%s", peer);
	return nearby_has(nearby, &ip);
}

static bool
knows(const char *peer)
{
	const struct peer_ip ip = peer_ip_of(peer);

	return nearby_knows(nearby, &ip);
}

Test(nearby, before_the_first_engine_it_is_this_machine)
{
	interface("10.1.2.3", 24);
	interface("fd00::3", 64);
	nearby_refresh(nearby);
	cr_expect(has("127.0.0.1") && has("127.8.9.10") && has("::1") && has("::ffff:127.0.0.1"));
	cr_expect(has("10.1.2.3") && has("fd00::3") && has("::ffff:10.1.2.3"));
	cr_expect(knows("10.1.2.3") && knows("127.0.0.1") && knows("::1"));
	cr_expect_not(has("10.1.2.4") || has("fd00::4") || has("::2") || has("::"));
}

Test(nearby, an_engine_brings_the_network_of_the_interface_that_has_it)
{
	interface("10.1.2.3", 16);
	interface("10.2.2.3", 16);
	interface("fd00:1::3", 48);
	publish("10.1.9.9", "fd00:1:0:7::1");
	cr_expect(has("10.1.9.9") && has("10.1.0.1") && has("::ffff:10.1.200.1"));
	cr_expect(has("fd00:1:0:ffff::1"));
	cr_expect_not(has("10.2.0.1") || has("10.0.9.9") || has("fd00:2::1"));
	cr_expect(knows("10.1.9.9") && knows("::ffff:10.1.9.9") && knows("fd00:1:0:7::1"));
	cr_expect_not(knows("10.1.0.1") || knows("fd00:1:0:7::2"));
}

Test(nearby, of_several_interfaces_the_closest_counts)
{
	interface("10.1.2.3", 8);
	interface("10.1.2.3", 24);
	interface("10.1.2.3", 16);
	publish("10.1.2.9", NULL);
	cr_expect(has("10.1.2.77"));
	cr_expect_not(has("10.1.3.1") || has("10.9.9.9"));
}

Test(nearby, an_engine_behind_a_router_brings_its_24_or_64)
{
	interface("192.168.1.1", 24);
	interface("10.1.2.3", 32); /* as some clouds have it */
	interface("fd00:9::3", 128);
	publish("10.1.2.9", "fd00:9::9");
	cr_expect(has("10.1.2.9") && has("10.1.2.250") && has("fd00:9::ffff:1"));
	cr_expect_not(has("10.1.3.1") || has("192.168.1.2") || has("fd00:9:0:1::1"));
}

Test(nearby, an_interface_of_all_addresses_does_not_count)
{
	interface("10.1.2.3", 0);
	publish("10.5.2.9", NULL);
	cr_expect(has("10.1.2.3") && has("10.5.2.1"));
	cr_expect_not(has("10.6.0.1"));
}

Test(nearby, a_new_engine_counts_and_a_former_one_does_not)
{
	interface("10.1.2.3", 24);
	publish("10.1.2.9", NULL);
	cr_expect(has("10.1.2.9"));
	publish("10.7.7.7", NULL);
	cr_expect(has("10.7.7.1"));
	cr_expect_not(has("10.1.2.9") || knows("10.1.2.9"));
}

/* The machine of this test has so many addresses, each of a network of its own. */
static struct ifaddrs *addresses;
static struct sockaddr_in *ips, mask = {.sin_family = AF_INET};

static void
have_addresses(uint32_t n)
{
	addresses = mem_array(n, sizeof(*addresses));
	ips = mem_array(n, sizeof(*ips));
	mask.sin_addr.s_addr = htonl(UINT32_MAX << 8);
	for (uint32_t i = 0; i < n; i++) {
		ips[i] = (struct sockaddr_in){
			.sin_family = AF_INET, .sin_addr.s_addr = htonl(10U << 24 | i << 8 | 3)};
		addresses[i] = (struct ifaddrs){.ifa_next = i + 1 < n ? &addresses[i + 1] : NULL,
			.ifa_addr = (struct sockaddr *)&ips[i],
			.ifa_netmask = (struct sockaddr *)&mask};
	}
}

/* In place of libc's. */
int
getifaddrs(struct ifaddrs **ret)
{
	*ret = addresses;
	return 0;
}

void
freeifaddrs(struct ifaddrs *all)
{
	cr_assert_eq(all, addresses);
	free(addresses);
	free(ips);
}

Test(nearby, a_thousand_interfaces_count)
{
	have_addresses(1024);
	cr_expect_eq(nearby_read_interfaces(nearby), 0);
	publish("10.3.255.9", NULL);
	cr_expect(has("10.0.0.3") && has("10.3.255.3") && has("10.3.255.77"));
	cr_expect_not(has("10.3.254.77"));
}

Test(nearby, more_interfaces_than_fit_are_counted)
{
	have_addresses(1030);
	cr_expect_eq(nearby_read_interfaces(nearby), 6);
	cr_expect(has("10.3.255.3"));
	cr_expect_not(has("10.4.0.3"));
}

Test(nearby, what_is_no_address)
{
	static const char *const none[] = {"", "localhost", ":1000:1000:77", "10.0.0", "%eth0",
		"fe80:::1", "0000:0000:0000:0000:0000:ffff:255.255.255.2555"};

	cr_expect_eq(peer_ip_of(NULL).family, 0);
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		cr_expect_eq(peer_ip_of(none[i]).family, 0, "%s", none[i]);
	cr_expect_eq(peer_ip_of("fe80::1%eth0").family, AF_INET6);
	cr_expect_eq(peer_ip_of("::ffff:10.0.0.1").family, AF_INET);
}
