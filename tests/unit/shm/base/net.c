/* Networks as configuration writes them. */
#include <arpa/inet.h>
#include <criterion/criterion.h>

#include "shm/base/net.h"

static bool
has(const char *network, const char *address)
{
	const int family = inet_pton(AF_INET, address, (uint8_t[4]){0}) == 1 ? AF_INET : AF_INET6;
	struct net n;
	uint8_t ip[16];

	cr_assert(net_parse(network, &n), "%s", network);
	cr_assert_eq(inet_pton(family, address, ip), 1);
	return net_has(&n, (uint16_t)family, ip);
}

Test(net, an_address_is_in_or_out)
{
	cr_assert(has("10.1.0.0/16", "10.1.255.255"));
	cr_assert_not(has("10.1.0.0/16", "10.2.0.0"));
	cr_assert(has("10.1.2.128/25", "10.1.2.129"));
	cr_assert_not(has("10.1.2.128/25", "10.1.2.127"));
	cr_assert(has("0.0.0.0/0", "255.1.2.3"));
	cr_assert(has("10.1.2.3", "10.1.2.3"));
	cr_assert_not(has("10.1.2.3", "10.1.2.2"));
	cr_assert(has("10.1.2.3/32", "10.1.2.3"));
	cr_assert(has("2001:db8::/33", "2001:db8:7fff::1"));
	cr_assert_not(has("2001:db8::/33", "2001:db8:8000::1"));
	cr_assert(has("::/0", "fe80::1"));
	cr_assert_not(has("::/0", "10.0.0.1"));
	cr_assert_not(has("0.0.0.0/0", "::1"));
}

static bool
may(const char *rule, const char *peer, const char *engine)
{
	const int peer_family = inet_pton(AF_INET, peer, (uint8_t[4]){0}) == 1 ? AF_INET : AF_INET6;
	const int family = inet_pton(AF_INET, engine, (uint8_t[4]){0}) == 1 ? AF_INET : AF_INET6;
	struct net_announced a;
	uint8_t from[16], ip[16];

	cr_assert(net_announced_parse(rule, &a), "%s", rule);
	cr_assert_eq(inet_pton(peer_family, peer, from), 1);
	cr_assert_eq(inet_pton(family, engine, ip), 1);
	return net_announced_allows(&a, (uint16_t)peer_family, from, (uint16_t)family, ip);
}

Test(net, an_engine_announces_itself_unless_a_rule_says_otherwise)
{
	cr_assert(may("10.1.0.0/16", "10.1.2.3", "10.1.2.3"));
	cr_assert_not(may("10.1.0.0/16", "10.1.2.4", "10.1.2.3"));
	cr_assert_not(may("10.1.0.0/16", "10.2.0.1", "10.2.0.1"));
	cr_assert(may("10.1.0.0/16 from 10.9.0.0/24", "10.9.0.7", "10.1.2.3"));
	cr_assert_not(may("10.1.0.0/16 from 10.9.0.0/24", "10.9.1.7", "10.1.2.3"));
	cr_assert_not(may("10.1.0.0/16 from 10.9.0.0/24", "10.1.2.3", "10.1.2.3"));
	cr_assert_not(may("10.1.0.0/16 from 10.9.0.0/24", "10.9.0.7", "10.9.0.7"));
	cr_assert(may("2001:db8::/32", "2001:db8::1", "2001:db8::1"));
	cr_assert_not(may("2001:db8::/32", "2001:db8::2", "2001:db8::1"));
	cr_assert(may("2001:db8::/32 from 10.0.0.1", "10.0.0.1", "2001:db8::1"));
}

Test(net, what_is_no_rule_is_refused)
{
	static const char *const bad[] = {"", " from ", "10.1.0.0/16 from ", " from 10.1.0.0/16",
		"10.1.0.0/16 from  10.1.0.0/16", "10.1.0.0/16 from a from b",
		"10.1.0.0/16 by 10.0.0.1"};
	struct net_announced a;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_not(net_announced_parse(bad[i], &a), "%s", bad[i]);
}

Test(net, what_is_no_network_is_refused)
{
	static const char *const bad[] = {"", "/", "10.1.0.0/", "10.1.0.0/33", "10.1.0.0/016",
		"10.1.0.0/1 ", "10.1.0.1/16", "10.1.0.0/-1", "10.1/16", "2001:db8::/129",
		"2001:db8::1/64", "example.net", "10.1.0.0/16/8", "10.1.0.0/9999", " 10.1.0.0/16",
		"1111:2222:3333:4444:5555:6666:7777:8888:9999:0000:aaaa:bbbb:cccc/1"};
	struct net n;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_not(net_parse(bad[i], &n), "%s", bad[i]);
}
