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
