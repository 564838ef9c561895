/*
 * proto/json_small: the input is a text an engine answered.
 *
 * Held against it: what is no JSON object yields nothing; ids are told as often as they are
 * counted, up to what was asked for; members of a flat object are whole, in bounds and in their
 * buffer; a message is whole UTF-8, and clipping it only shortens it.
 */
#include "proto/json/json_small.h"

#include "proto/json/splice.h"
#include "proto/json/utf8.h"
#include "tests/fuzz/check.h"

#define MAX_IDS 3

static bool
count_id(const struct json_model *m, void *arg)
{
	CHECK(strlen(m->id) <= JSON_ID_MAX);
	return ++*(int *)arg < MAX_IDS;
}

static void
check_utf8(const char *text)
{
	for (size_t n = strlen(text), i = 0; i < n;) {
		size_t seq = utf8_seq((const uint8_t *)text + i, n - i);

		CHECK(seq > 0);
		i += seq;
	}
}

static void
check_message(const char *text, size_t size, bool object)
{
	size_t room = 6 * size + 1; /* no escape grows when undone */
	char *message = malloc(room);

	CHECK(message != NULL);
	if (json_error_message(text, size, message, room)) {
		CHECK(object);
		check_utf8(message);
		for (size_t clip = 1; clip < 9; clip++) {
			char *clipped = malloc(clip);

			CHECK(clipped != NULL);
			CHECK(json_error_message(text, size, clipped, clip));
			check_utf8(clipped);
			CHECK(strlen(clipped) < clip &&
				strncmp(clipped, message, strlen(clipped)) == 0);
			free(clipped);
		}
	}
	free(message);
}

/* The members learn.c asks for, each in a buffer that fits it exactly and in one that is a byte short. */
static void
check_members(const char *text, size_t size, bool object)
{
	static const char *const names[] = {
		"version", "disaggregation_mode", "disaggregation_bootstrap_port"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		uint64_t n = 65536;
		char *buf = malloc(size + 1), *exact;
		size_t len;

		CHECK(buf != NULL);
		if (json_member_text(text, size, names[i], buf, size + 1)) {
			CHECK(object);
			check_utf8(buf);
			len = strlen(buf);
			exact = malloc(len + 1);
			CHECK(exact != NULL);
			CHECK(json_member_text(text, size, names[i], exact, len + 1));
			CHECK(strcmp(buf, exact) == 0);
			CHECK(len == 0 || !json_member_text(text, size, names[i], exact, len));
			free(exact);
		} else {
			CHECK(buf[0] == '\0');
		}
		CHECK(json_member_number(text, size, names[i], 65535, &n) == (n < 65536));
		CHECK(object || n == 65536);
		free(buf);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = exact_copy(data, size);
	struct splice_seg unused;
	bool object = splice_member_raw(text, size, "", &unused) >= 0;
	int told = 0, n = json_models(text, size, count_id, &told);

	CHECK(n >= -1 && (n < 0 ? told <= MAX_IDS : told == (n < MAX_IDS ? n : MAX_IDS)));
	CHECK(object || n < 0);
	check_members(text, size, object);
	check_message(text, size, object);
	free(text);
	return 0;
}
