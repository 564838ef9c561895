/* Notices of all LMCache versions are read; anything malformed is refused without reading beyond
 * it. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "proto/wire/notif.h"

#define UUID "3f2c1b9a-5d7e-4c8b-9a10-0f1e2d3c4b5a"

/* Reads a copy of exactly n bytes, so that ASan sees a byte too many. */
static int
read_copy(const char *msg, size_t n, struct notif *ret)
{
	char *copy = calloc(1, n > 0 ? n : 1);
	int r;

	memcpy(copy, msg, n);
	r = notif_read(copy, n, ret);
	free(copy);
	return r;
}

/* `text` is a string literal with the message's bytes. */
#define READ(text, ret) read_copy(text, sizeof(text) - 1, ret)
#define ACCEPTS(text, id)                                                                          \
	do {                                                                                       \
		struct notif got;                                                                  \
		cr_assert_eq(READ(text, &got), 0);                                                 \
		cr_assert_str_eq(got.req_id, id);                                                  \
	} while (0)
#define REFUSES(text, why)                                                                         \
	do {                                                                                       \
		struct notif got = {.req_id = "untouched"};                                        \
		cr_assert_eq(READ(text, &got), why);                                               \
		cr_assert_str_eq(got.req_id, "untouched");                                         \
	} while (0)

#define TYPE_NEW "\xa4type\xaaProxyNotif"
#define ID_1                                                                                       \
	"\xa6req_id\xa1"                                                                           \
	"1"

Test(notif, real_messages)
{
	ACCEPTS("\x82\xa4type\xaeNixlProxyNotif\xa6req_id\xa1"
		"1",
		"1");
	ACCEPTS("\x82" TYPE_NEW ID_1, "1");
	ACCEPTS("\x82" TYPE_NEW "\xa6req_id\xd9\x24" UUID, UUID);
	ACCEPTS("\x82\xa4type\xaeNixlProxyNotif\xa6req_id\xd9\x24" UUID, UUID);
}

Test(notif, other_forms)
{
	ACCEPTS("\x81" ID_1, "1");
	ACCEPTS("\x82" ID_1 TYPE_NEW, "1");
	ACCEPTS("\xde\x00\x02" TYPE_NEW ID_1, "1");
	ACCEPTS("\xdf\x00\x00\x00\x02" TYPE_NEW ID_1, "1");
	ACCEPTS("\x82\xc4\x04type\xc4\x0aProxyNotif\xc5\x00\x06req_id\xc6\x00\x00\x00\x01"
		"1",
		"1");
	ACCEPTS("\x82\xda\x00\x04type\xdb\x00\x00\x00\x0aProxyNotif\xd9\x06req_id\xda\x00\x01"
		"1",
		"1");
	ACCEPTS("\x82\xa6req_id\xa1"
		"0\xa6req_id\xa1"
		"1",
		"1"); /* the last, as msgspec takes it */
}

/* One value of every type there is, under an unknown key, before the id. */
Test(notif, unknown_values_are_passed)
{
#define PASSES(value) ACCEPTS("\x82\xa1k" value ID_1, "1")
	PASSES("\x00");
	PASSES("\x7f");
	PASSES("\xff");
	PASSES("\xc0");
	PASSES("\xc2");
	PASSES("\xc3");
	PASSES("\xc4\x01x");
	PASSES("\xc5\x00\x01x");
	PASSES("\xc6\x00\x00\x00\x01x");
	PASSES("\xc7\x01\x05x");
	PASSES("\xc8\x00\x01\x05x");
	PASSES("\xc9\x00\x00\x00\x01\x05x");
	PASSES("\xca"
	       "1234");
	PASSES("\xcb"
	       "12345678");
	PASSES("\xcc"
	       "1");
	PASSES("\xcd"
	       "12");
	PASSES("\xce"
	       "1234");
	PASSES("\xcf"
	       "12345678");
	PASSES("\xd0"
	       "1");
	PASSES("\xd1"
	       "12");
	PASSES("\xd2"
	       "1234");
	PASSES("\xd3"
	       "12345678");
	PASSES("\xd4\x05"
	       "1");
	PASSES("\xd5\x05"
	       "12");
	PASSES("\xd6\x05"
	       "1234");
	PASSES("\xd7\x05"
	       "12345678");
	PASSES("\xd8\x05"
	       "1234567812345678");
	PASSES("\xa0");
	PASSES("\xd9\x00");
	PASSES("\x90");
	PASSES("\x93\x01\x92\xa1x\xc0\x80");
	PASSES("\xdc\x00\x02\x01\x02");
	PASSES("\xdd\x00\x00\x00\x01\xc0");
	PASSES("\x81\x01\x81\x02\x91\x91\x03");
	PASSES("\xde\x00\x01\x01\x02");
	PASSES("\xdf\x00\x00\x00\x01\x01\x02");
	ACCEPTS("\x82\x92\x01\x02\xc0" ID_1, "1"); /* a key may be anything too */
#undef PASSES
}

Test(notif, refused)
{
	REFUSES("", NOTIF_E_SYNTAX);
	REFUSES("\x92\xa1x\xa1y", NOTIF_E_SYNTAX);            /* an array */
	REFUSES("{\"req_id\":\"1\"}", NOTIF_E_SYNTAX);        /* JSON */
	REFUSES("\x81" ID_1 "\xc0", NOTIF_E_SYNTAX);          /* a byte behind it */
	REFUSES("\x82\xa1k\xc1" ID_1, NOTIF_E_SYNTAX);        /* the tag that never is */
	REFUSES("\xdf\xff\xff\xff\xff" ID_1, NOTIF_E_SYNTAX); /* counts without their bytes */
	REFUSES("\x82\xa1k\xdd\xff\xff\xff\xff" ID_1, NOTIF_E_SYNTAX);
	REFUSES("\x82\xa1k\xdf\x80\x00\x00\x00" ID_1, NOTIF_E_SYNTAX);
	REFUSES("\x82\xa1k\xc6\xff\xff\xff\xff" ID_1, NOTIF_E_SYNTAX);
	REFUSES("\x82\xa1k\xc9\xff\xff\xff\xff" ID_1, NOTIF_E_SYNTAX);
	REFUSES("\x83\xa4type\xab"
		"CancelNotif\xa6req_id\xa1"
		"1\xa4keys\x91\xa1k",
		NOTIF_E_TYPE);
	REFUSES("\x82\xa4type\x05" ID_1, NOTIF_E_TYPE);
	REFUSES("\x80", NOTIF_E_ID);
	REFUSES("\x81" TYPE_NEW, NOTIF_E_ID);
	REFUSES("\x81\xa6req_id\x01", NOTIF_E_ID);
	REFUSES("\x81\xa6req_id\x91\xa1x", NOTIF_E_ID);
	REFUSES("\x81\xa6req_id\xa0", NOTIF_E_ID);
	REFUSES("\x81\xa6req_id\xa3"
		"a\0b",
		NOTIF_E_ID);
	REFUSES("\x81\xa6req_id\xa3"
		"a\nb",
		NOTIF_E_ID);
}

Test(notif, every_cut_is_refused)
{
	static const char whole[] = "\x83" TYPE_NEW "\xa1k\x92\xca"
				    "1234\x81\x01\xc0\xa6req_id\xd9\x24" UUID;
	struct notif got;

	cr_assert_eq(read_copy(whole, sizeof(whole) - 1, &got), 0);
	cr_assert_str_eq(got.req_id, UUID);
	for (size_t n = 0; n < sizeof(whole) - 1; n++)
		cr_assert_eq(read_copy(whole, n, &got), NOTIF_E_SYNTAX, "cut at %zu", n);
}

Test(notif, longest_id)
{
	char msg[10 + NOTIF_MAX_ID + 1] = "\x81\xa6req_id\xd9";
	struct notif got;

	memset(msg + 10, 'a', NOTIF_MAX_ID + 1);
	msg[9] = (char)NOTIF_MAX_ID;
	cr_assert_eq(read_copy(msg, 10 + NOTIF_MAX_ID, &got), 0);
	cr_assert_eq(strlen(got.req_id), NOTIF_MAX_ID);
	msg[9] = (char)(NOTIF_MAX_ID + 1);
	cr_assert_eq(read_copy(msg, 10 + NOTIF_MAX_ID + 1, &got), NOTIF_E_ID);
}

/* A level costs one byte and no stack: what is as deep as a message is long must neither crash nor
 * be slow. */
Test(notif, deep_nesting)
{
	size_t n = 1 << 20;
	char *msg = malloc(n + 12);
	struct notif got;

	memcpy(msg, "\x82\xa1k", 3);
	memset(msg + 3, '\x91', n);
	msg[3 + n] = '\xc0';
	memcpy(msg + 4 + n, "\xa6req_id", 7);
	cr_assert_eq(notif_read(msg, n + 11, &got), NOTIF_E_SYNTAX);
	msg[n + 11] = '\xa0';
	cr_assert_eq(notif_read(msg, n + 12, &got), NOTIF_E_ID);
	free(msg);
}
