/* Engines that announce themselves: vLLM's own bytes are read, anything else is refused. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/registration.h"

/* Reads a copy of exactly n bytes, so that ASan sees a byte too many. */
static int
read_copy(const char *msg, size_t n, struct registration *ret)
{
	char *copy = calloc(1, n > 0 ? n : 1);
	int r;

	memcpy(copy, msg, n);
	r = registration_read(copy, n, ret);
	free(copy);
	return r;
}
#define READ(text, ret) read_copy(text, sizeof(text) - 1, ret)

/* protocols.md 7.2 */
#define P_SAMPLE                                                                                   \
	"\x83\xa4type\xa1P\xac"                                                                    \
	"http_address\xae"                                                                         \
	"10.0.1.2:20005\xab"                                                                       \
	"zmq_address\xae"                                                                          \
	"10.0.1.2:21001"
#define D_SAMPLE                                                                                   \
	"\x83\xa4type\xa1"                                                                         \
	"D\xac"                                                                                    \
	"http_address\xae"                                                                         \
	"10.0.1.3:20006\xab"                                                                       \
	"zmq_address\xae"                                                                          \
	"10.0.1.3:22001"

Test(registration, the_samples)
{
	struct registration r;

	cr_assert_eq(sizeof(P_SAMPLE) - 1, 63);
	cr_assert_eq(READ(P_SAMPLE, &r), 0);
	cr_assert_eq(r.role, ROLE_PREFILL);
	cr_assert_str_eq(r.http, "10.0.1.2:20005");
	cr_assert_str_eq(r.kv, "10.0.1.2:21001");
	cr_assert_eq(r.family, AF_INET);
	cr_assert_eq(memcmp(r.ip, "\x0a\x00\x01\x02", 4), 0);
	cr_assert_eq(READ(D_SAMPLE, &r), 0);
	cr_assert_eq(r.role, ROLE_DECODE);
}

Test(registration, every_cut_is_refused)
{
	struct registration r;

	for (size_t n = 0; n < sizeof(P_SAMPLE) - 1; n++)
		cr_assert_eq(read_copy(P_SAMPLE, n, &r), -1, "%zu bytes", n);
	cr_assert_eq(READ(P_SAMPLE "\xc0", &r), -1);
}

/* A map of type P with these two addresses, at most 31 bytes each. */
static int
addresses(const char *http, const char *kv, struct registration *ret)
{
	char msg[160];
	int n = snprintf(msg, sizeof(msg),
		"\x83\xa4type\xa1P\xac"
		"http_address%c%s\xab"
		"zmq_address%c%s",
		(int)(0xa0 | strlen(http)), http, (int)(0xa0 | strlen(kv)), kv);

	return read_copy(msg, (size_t)n, ret);
}

Test(registration, addresses_are_rewritten_in_one_form)
{
	struct registration r;

	cr_assert_eq(addresses("[2001:DB8:0::1]:80", "h-1.x:1", &r), 0);
	cr_assert_str_eq(r.http, "[2001:db8::1]:80");
	cr_assert_eq(r.family, AF_INET6);
	cr_assert_eq(addresses("2001:db8::1:80", "[::1]:65535", &r), 0);
	cr_assert_str_eq(r.http, "[2001:db8::1]:80");
	cr_assert_str_eq(r.kv, "[::1]:65535");
}

Test(registration, bad_addresses)
{
	static const char *const http[] = {"", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0",
		"10.0.0.1:65536", "10.0.0.1:8x", "10.0.0.1:000080", "engine:80", "10.0.0:80",
		"[10.0.0.1:80", "[]:80", ":80", "10.0.0.1\n:80"};
	static const char *const kv[] = {
		"", "h", "h:", "h:0", "a b:1", "a\r\nX:1", "h:70000", "\x01:1"};
	struct registration r;

	for (size_t i = 0; i < sizeof(http) / sizeof(http[0]); i++)
		cr_assert_eq(addresses(http[i], "10.0.0.1:1", &r), -1, "%s", http[i]);
	for (size_t i = 0; i < sizeof(kv) / sizeof(kv[0]); i++)
		cr_assert_eq(addresses("10.0.0.1:1", kv[i], &r), -1, "%s", kv[i]);
}

/* Found by the fuzzer. */
Test(registration, a_nul_in_an_address)
{
	char msg[] = P_SAMPLE;
	struct registration r;

	msg[sizeof(P_SAMPLE) - 10] = '\0';
	cr_assert_eq(read_copy(msg, sizeof(P_SAMPLE) - 1, &r), -1);
	memcpy(msg, P_SAMPLE, sizeof(msg));
	msg[25] = '\0';
	cr_assert_eq(read_copy(msg, sizeof(P_SAMPLE) - 1, &r), -1);
}

Test(registration, members_missing_or_of_another_type)
{
	struct registration r;

	cr_assert_eq(READ("\x80", &r), -1);
	cr_assert_eq(READ("\x90", &r), -1);
	cr_assert_eq(READ("\x82\xa4type\xa1P\xac"
			  "http_address\xae"
			  "10.0.1.2:20005",
			     &r),
		-1);
	cr_assert_eq(READ("\x83\xa4type\x01\xac"
			  "http_address\xae"
			  "10.0.1.2:20005\xab"
			  "zmq_address\xae"
			  "10.0.1.2:21001",
			     &r),
		-1);
	cr_assert_eq(READ("\x83\xa4type\xa1X\xac"
			  "http_address\xae"
			  "10.0.1.2:20005\xab"
			  "zmq_address\xae"
			  "10.0.1.2:21001",
			     &r),
		-1);
	cr_assert_eq(READ("\x83\xa4type\xa1P\xac"
			  "http_address\x90\xab"
			  "zmq_address\xae"
			  "10.0.1.2:21001",
			     &r),
		-1);
	/* unknown ones are passed over */
	cr_assert_eq(READ("\x84\xa1x\x81\x01\x02\xa4type\xa1P\xac"
			  "http_address\xae"
			  "10.0.1.2:20005\xab"
			  "zmq_address\xae"
			  "10.0.1.2:21001",
			     &r),
		0);
}
