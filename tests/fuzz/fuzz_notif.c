/*
 * proto/notif: the input is a message.
 *
 * Held against it: what is accepted is refused when cut anywhere or longer by a byte; its id,
 * written into a fresh message with the widest forms, is read back.
 */
#include "proto/wire/notif.h"

#include "tests/fuzz/check.h"

static int
read_copy(const void *p, size_t n, struct notif *ret)
{
	char *copy = exact_copy(p, n);
	int r = notif_read(copy, n, ret);

	free(copy);
	return r;
}

static void
check_rewritten(const struct notif *first)
{
	char msg[64 + NOTIF_MAX_ID] = "\xdf\0\0\0\x01\xdb\0\0\0\x06req_id\xdb\0\0\0";
	size_t n = strlen(first->req_id);
	struct notif again;

	CHECK(n > 0 && n <= NOTIF_MAX_ID);
	msg[20] = (char)n;
	memcpy(msg + 21, first->req_id, n);
	CHECK(read_copy(msg, 21 + n, &again) == 0);
	CHECK(strcmp(first->req_id, again.req_id) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct notif first, other;
	int r = read_copy(data, size, &first);
	char *longer;

	CHECK(r <= 0 && r >= NOTIF_E_ID);
	if (r == NOTIF_E_SYNTAX)
		return 0;
	/* a whole map, whatever it says */
	for (size_t cut = 0; cut < size; cut++)
		CHECK(notif_read(data, cut, &other) == NOTIF_E_SYNTAX);
	longer = malloc(size + 1);
	CHECK(longer != NULL);
	memcpy(longer, data, size);
	longer[size] = '\xc0';
	CHECK(notif_read(longer, size + 1, &other) == NOTIF_E_SYNTAX);
	free(longer);
	if (r == 0)
		check_rewritten(&first);
	return 0;
}
