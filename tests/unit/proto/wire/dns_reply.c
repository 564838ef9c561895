/* Name servers' answers, byte by byte: good ones, odd ones, and those that want us to read too far. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/dns_reply.h"

static uint8_t msg[70000];
static size_t len;

static void
put(const void *p, size_t n)
{
	memcpy(msg + len, p, n);
	len += n;
}
#define PUT(text) put(text, sizeof(text) - 1)

static void
put16(unsigned v)
{
	put((uint8_t[]){(uint8_t)(v >> 8), (uint8_t)v}, 2);
}

static void
put32(uint32_t v)
{
	put16(v >> 16);
	put16(v & 0xffff);
}

/* "a.b" as labels, with the root's. */
static void
put_name(const char *name)
{
	while (*name != '\0') {
		size_t n = strcspn(name, ".");

		put((uint8_t[]){(uint8_t)n}, 1);
		put(name, n);
		name += n + (name[n] == '.');
	}
	PUT("\0");
}

/* An answer to a DNS question for "x.test", whose name stands at 12. */
static void
begin(unsigned flags, unsigned nanswers, unsigned nauthorities)
{
	len = 0;
	put16(4711);
	put16(0x8180u | flags);
	put16(1);
	put16(nanswers);
	put16(nauthorities);
	put16(0);
	put_name("x.test");
	put16(DNS_A);
	put16(1);
}

/* Up to the data, whose length is given. */
static void
put_head(unsigned type, uint32_t ttl, size_t n)
{
	put16(0xc00c); /* the name in the DNS question */
	put16(type);
	put16(1);
	put32(ttl);
	put16((unsigned)n);
}

static void
put_a(uint32_t ttl, const char *ip)
{
	put_head(DNS_A, ttl, 4);
	put(ip, 4);
}

static void
put_srv(uint32_t ttl, unsigned priority, unsigned weight, unsigned port, const char *target)
{
	put_head(DNS_SRV, ttl, 6 + strlen(target) + (target[0] != '\0' ? 2 : 1));
	put16(priority);
	put16(weight);
	put16(port);
	put_name(target);
}

static void
put_soa(uint32_t ttl, uint32_t minimum)
{
	put_head(DNS_SOA, ttl, 2 * 2 + 20);
	put16(0xc00c);
	put16(0xc00c);
	for (int i = 0; i < 4; i++)
		put32(1);
	put32(minimum);
}

static struct dns_record records[64];
static struct dns_reply reply;

/* A copy of exactly n bytes, so that ASan sees a byte too many. */
static int
read_n(enum dns_type type, size_t n)
{
	uint8_t *copy = malloc(n > 0 ? n : 1);
	int rc;

	memcpy(copy, msg, n);
	rc = dns_reply_read(copy, n, type, records, 64, &reply);
	free(copy);
	return rc;
}

static int
read_all(enum dns_type type)
{
	return read_n(type, len);
}

Test(dns_reply, addresses_with_the_least_ttl)
{
	begin(0, 2, 0);
	put_a(300, "\x0a\0\0\1");
	put_a(20, "\x0a\0\0\2");
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.rcode, DNS_NOERROR);
	cr_assert_not(reply.truncated);
	cr_assert_eq(reply.n, 2);
	cr_assert_eq(reply.ttl, 20);
	cr_assert_not(reply.has_negative_ttl);
	cr_assert_arr_eq(records[1].ip, "\x0a\0\0\2", 4);
}

Test(dns_reply, ipv6)
{
	begin(0, 1, 0);
	put_head(DNS_AAAA, 7, 16);
	PUT("\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1");
	cr_assert_eq(read_all(DNS_AAAA), 0);
	cr_assert_eq(reply.n, 1);
	cr_assert_arr_eq(records[0].ip, "\xfd\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1", 16);
}

Test(dns_reply, the_ttl_of_an_alias_counts)
{
	begin(0, 2, 0);
	put_head(5, 3, 8); /* CNAME */
	put_name("y.test");
	put_a(300, "\x0a\0\0\1");
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.n, 1);
	cr_assert_eq(reply.ttl, 3);
}

Test(dns_reply, services)
{
	begin(0, 2, 0);
	put_srv(30, 1, 10, 8100, "P-1.Example_x.TEST");
	put_srv(30, 2, 0, 65535, "");
	cr_assert_eq(read_all(DNS_SRV), 0);
	cr_assert_eq(reply.n, 2);
	cr_assert_eq(records[0].priority, 1);
	cr_assert_eq(records[0].weight, 10);
	cr_assert_eq(records[0].port, 8100);
	cr_assert_str_eq(records[0].target, "p-1.example_x.test");
	cr_assert_str_eq(records[1].target, "");
}

Test(dns_reply, a_target_may_end_in_a_pointer)
{
	begin(0, 1, 0);
	put_head(DNS_SRV, 30, 6 + 4);
	put16(0), put16(0), put16(80);
	PUT("\1p\xc0\x0c");
	cr_assert_eq(read_all(DNS_SRV), 0);
	cr_assert_eq(reply.n, 1);
	cr_assert_str_eq(records[0].target, "p.x.test");
}

Test(dns_reply, targets_that_are_no_host_names_are_left_out)
{
	static const char *const odd[] = {
		"a b", "a/b", "a\"b", "a%b", "a\\b", "\xff", "a:1", "a@b"};

	for (size_t i = 0; i < sizeof(odd) / sizeof(odd[0]); i++) {
		begin(0, 2, 0);
		put_srv(30, 0, 0, 80, odd[i]);
		put_srv(30, 0, 0, 80, "good.test");
		cr_assert_eq(read_all(DNS_SRV), 0, "%s", odd[i]);
		cr_assert_eq(reply.n, 1, "%s", odd[i]);
		cr_assert_str_eq(records[0].target, "good.test");
	}
	begin(0, 1, 0); /* a dot within a label */
	put_head(DNS_SRV, 30, 6 + 5);
	put16(0), put16(0), put16(80);
	PUT("\3a.b\0");
	cr_assert_eq(read_all(DNS_SRV), 0);
	cr_assert_eq(reply.n, 0);
}

Test(dns_reply, how_long_there_is_nothing)
{
	begin(DNS_NXDOMAIN, 0, 1);
	put_soa(900, 60);
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.rcode, DNS_NXDOMAIN);
	cr_assert_eq(reply.n, 0);
	cr_assert(reply.has_negative_ttl);
	cr_assert_eq(reply.negative_ttl, 60);
	begin(0, 0, 1);
	put_soa(30, 60);
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.negative_ttl, 30, "the record itself holds no longer");
}

Test(dns_reply, other_types_and_classes_are_no_answer)
{
	begin(0, 2, 0);
	put_head(DNS_AAAA, 5, 16);
	PUT("0123456789abcdef");
	put16(0xc00c), put16(DNS_A), put16(3 /* CHAOS */), put32(1), put16(4);
	PUT("\x0a\0\0\1");
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.n, 0);
}

Test(dns_reply, a_negative_ttl_is_none)
{
	begin(0, 1, 0);
	put_a(0x80000001u, "\x0a\0\0\1");
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.ttl, 0);
}

Test(dns_reply, flags)
{
	begin(0x0200, 0, 0);
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert(reply.truncated);
	begin(2, 0, 0);
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.rcode, 2);
	begin(0, 0, 0);
	msg[2] &= 0x7f;
	cr_assert_eq(read_all(DNS_A), -1, "a DNS question is no answer");
}

Test(dns_reply, cut_anywhere_it_is_refused)
{
	begin(0, 2, 1);
	put_a(300, "\x0a\0\0\1");
	put_srv(30, 1, 10, 8100, "p.x.test");
	put_soa(30, 60);
	cr_assert_eq(read_all(DNS_SRV), 0);
	for (size_t n = 0; n < len; n++)
		cr_assert_eq(read_n(DNS_SRV, n), -1, "%zu bytes", n);
}

Test(dns_reply, lengths_that_lie)
{
	begin(0, 1, 0);
	put_a(300, "\x0a\0\0\1");
	for (unsigned n = 0; n < 300; n++) {
		msg[len - 6] = (uint8_t)(n >> 8);
		msg[len - 5] = (uint8_t)n;
		cr_assert_eq(read_all(DNS_A), n == 4 ? 0 : -1, "%u", n);
	}
	begin(0, 0xffff, 0);
	put_a(300, "\x0a\0\0\1");
	cr_assert_eq(read_all(DNS_A), -1, "more answers than bytes");
}

Test(dns_reply, pointers_that_do_not_end)
{
	size_t at;

	begin(0, 1, 0);
	at = len;
	put16(0xc000u | (unsigned)at); /* to itself */
	PUT("\0\1\0\1\0\0\0\1\0\4\x0a\0\0\1");
	cr_assert_eq(read_all(DNS_A), -1);
	begin(0, 1, 0);
	put16(0xc000u | (unsigned)(len + 2)); /* forward */
	PUT("\0\1\0\1\0\0\0\1\0\4\x0a\0\0\1");
	cr_assert_eq(read_all(DNS_A), -1);
	begin(0, 1, 0);
	put_head(DNS_SRV, 1, 6 + 4); /* a label, then back to that label: a name without end */
	put16(0), put16(0), put16(80);
	at = len;
	PUT("\1a");
	put16(0xc000u | (unsigned)at);
	cr_assert_eq(read_all(DNS_SRV), -1);
	begin(0, 1, 0);
	put16(0x8001); /* a kind of label that does not exist */
	PUT("\0\1\0\1\0\0\0\1\0\4\x0a\0\0\1");
	cr_assert_eq(read_all(DNS_A), -1);
}

Test(dns_reply, a_name_may_have_253_characters)
{
	char name[300] = "";

	for (int i = 0; i < 126; i++)
		strcat(name, "a.");
	strcat(name, "a"); /* 127 labels of one: 253 characters */
	begin(0, 1, 0);
	put_srv(1, 0, 0, 80, name);
	cr_assert_eq(read_all(DNS_SRV), 0);
	cr_assert_str_eq(records[0].target, name);
	strcat(name, "a");
	begin(0, 1, 0);
	put_srv(1, 0, 0, 80, name);
	cr_assert_eq(read_all(DNS_SRV), -1);
}

Test(dns_reply, no_more_than_there_is_room_for)
{
	begin(0, 4000, 0);
	for (unsigned i = 0; i < 4000; i++)
		put_a(60, (char[]){10, 0, (char)(i >> 8), (char)i});
	cr_assert_eq(read_all(DNS_A), 0);
	cr_assert_eq(reply.n, 64);
	cr_assert_geq(DNS_RECORDS_MOST(len), 4000);
}
