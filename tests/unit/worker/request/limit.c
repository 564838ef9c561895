/* Which addresses are one client. */
#include "worker/request/limit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/unit/shm/fixture.h"
#include "worker/base/address.h"

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
