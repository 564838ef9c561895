/*
 * master/saved: the input is a state_file.
 *
 * Held against it: what is accepted are keys that an endpoint may have; written and read again they are
 * the same, in one order and each once; what is refused has a reason and leaves nothing.
 */
#include "master/fleet/saved.h"

#include "proto/http/http.h"
#include "shm/base/mem.h"
#include "tests/fuzz/check.h"

static void
check_again(struct saved *s)
{
	struct membuf text = {0}, twice = {0};
	struct saved again;
	const char *why;

	saved_write(s->all, s->n, &text);
	if (text.n <= SAVED_BYTES_MAX) { /* escapes may be longer than what they stand for */
		CHECK(saved_parse(text.p, text.n, &again, &why) == 0);
		CHECK(again.n <= s->n && (again.n > 0) == (s->n > 0));
		saved_write(again.all, again.n, &twice);
		CHECK(text.n == twice.n && memcmp(text.p, twice.p, text.n) == 0);
		saved_free(&again);
	}
	membuf_free(&text);
	membuf_free(&twice);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = exact_copy(data, size);
	const char *why = NULL;
	struct http_url at;
	struct saved s;
	int rc = saved_parse(copy, size, &s, &why);

	free(copy);
	if (rc != 0) {
		CHECK(why != NULL && why[0] != '\0' && s.n == 0 && s.all == NULL);
		return 0;
	}
	for (size_t i = 0; i < s.n; i++) {
		CHECK(s.all[i].role == ROLE_PREFILL || s.all[i].role == ROLE_DECODE);
		CHECK(http_url_parse(s.all[i].url, &at, &why) == 0);
		CHECK(s.all[i].weight <= CONF_WEIGHT_MAX &&
			(s.all[i].weight == 0) == (s.all[i].configured == 0));
		CHECK(s.all[i].pool[0] != '\0' && strlen(s.all[i].pool) < 64);
	}
	check_again(&s);
	saved_free(&s);
	return 0;
}
