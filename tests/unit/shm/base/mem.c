/* Bytes that grow. */
#include "shm/base/mem.h"

#include <criterion/criterion.h>
#include <string.h>

Test(membuf, grows)
{
	struct membuf b = {0};
	size_t grown = 0;

	membuf_add(&b, NULL, 0);
	cr_assert_null(b.p);
	for (unsigned i = 0; i < 5000; i++) {
		size_t cap = b.cap;
		char c = (char)(i % 251);

		membuf_add(&b, &c, 1);
		grown += b.cap != cap;
		cr_assert_eq(b.n, i + 1);
		cr_assert_geq(b.cap, b.n);
	}
	cr_assert_leq(grown, 6); /* it doubles */
	for (unsigned i = 0; i < 5000; i++)
		cr_assert_eq(b.p[i], (char)(i % 251));
	membuf_free(&b);
	cr_assert_null(b.p);
	cr_assert_eq(b.n + b.cap, 0);
	membuf_free(&b);
	membuf_free(NULL);
}

Test(membuf, room_is_used_again)
{
	struct membuf b = {0};
	char big[10000];
	char *p;

	memset(big, 'x', sizeof(big));
	membuf_add(&b, big, sizeof(big));
	p = b.p;
	b.n = 2;
	membuf_add(&b, "yz", 2);
	cr_assert_eq(b.p, p);
	cr_assert_eq(b.n, 4);
	cr_assert_arr_eq(b.p, "xxyz", 4);
	membuf_free(&b);
}
