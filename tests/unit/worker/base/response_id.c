/* Ids of responses: each names its engine, no two are the same, and nothing else is taken for one. */
#include "worker/base/response_id.h"

#include <criterion/criterion.h>
#include <string.h>

#include "shm/table.h"

static const char url[] = "http://10.0.0.1:8200";

Test(response_id, names_its_engine)
{
	char a[RESPONSE_ID_LEN + 1], b[RESPONSE_ID_LEN + 1];

	response_id_make(url, a);
	response_id_make(url, b);
	cr_assert_eq(strlen(a), RESPONSE_ID_LEN);
	cr_assert_eq(strncmp(a, "resp_", 5), 0);
	cr_assert_str_neq(a, b);
	cr_assert_eq(response_id_engine(a), table_url_hash(url));
	cr_assert_eq(response_id_engine(b), table_url_hash(url));
	response_id_make("http://10.0.0.2:8200", b);
	cr_assert_neq(response_id_engine(a), response_id_engine(b));
}

Test(response_id, and_no_other)
{
	char id[RESPONSE_ID_LEN + 2];

	cr_assert_eq(response_id_engine(""), 0);
	cr_assert_eq(response_id_engine("resp_"), 0);
	cr_assert_eq(response_id_engine("resp_0123456789abcdef0123456789abcdef"), 0, "vLLM's own");
	for (size_t i = 0; i < RESPONSE_ID_LEN; i++) {
		response_id_make(url, id);
		id[i] = i < 5 ? '0' : 'G';
		cr_assert_eq(response_id_engine(id), 0, "byte %zu", i);
	}
	response_id_make(url, id);
	memcpy(id + RESPONSE_ID_LEN, "0", 2);
	cr_assert_eq(response_id_engine(id), 0, "longer");
	id[RESPONSE_ID_LEN - 1] = '\0';
	cr_assert_eq(response_id_engine(id), 0, "shorter");
}
