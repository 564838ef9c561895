/*
 * proto/dns_reply: the first byte chooses the type of the records, the rest is a message.
 *
 * Held against it: never more records than there is room for, targets are host names; and what fits in
 * less room is the same, cut off.
 */
#include "proto/wire/dns_reply.h"

#include "tests/fuzz/check.h"

static int
read_copy(const uint8_t *data, size_t size, enum dns_type type, struct dns_record *records,
	size_t max, struct dns_reply *ret)
{
	char *copy = exact_copy(data, size);
	int rc = dns_reply_read((const uint8_t *)copy, size, type, records, max, ret);

	free(copy);
	return rc;
}

static void
check_target(const struct dns_record *r)
{
	size_t n = strlen(r->target);

	CHECK(n < DNS_NAME);
	CHECK(strspn(r->target, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == n);
	CHECK(n == 0 || (r->target[0] != '.' && r->target[n - 1] != '.'));
	CHECK(strstr(r->target, "..") == NULL);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const enum dns_type types[] = {DNS_A, DNS_AAAA, DNS_SRV, DNS_SRV};
	enum dns_type type = size == 0 ? DNS_A : types[data[0] % 4];
	size_t most = DNS_RECORDS_MOST(size);
	struct dns_record *all = calloc(most, sizeof(*all)), one;
	struct dns_reply reply, less;
	int rc;

	CHECK(all != NULL);
	if (size > 0) {
		data++;
		size--;
	}
	rc = read_copy(data, size, type, all, most, &reply);
	CHECK(read_copy(data, size, type, &one, 1, &less) == rc);
	if (rc == 0) {
		CHECK(reply.n < most);
		CHECK(less.n == (reply.n > 0 ? 1 : 0));
		CHECK(less.n == 0 || memcmp(&one, &all[0], sizeof(one)) == 0);
		CHECK(reply.n == 0 || reply.ttl <= INT32_MAX);
		for (size_t i = 0; i < reply.n; i++)
			check_target(&all[i]);
	}
	free(all);
	return 0;
}
