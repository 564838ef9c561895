/* A program that pdfleet runs to its end. */
#include "master/pdfleet/program.h"

#include <criterion/criterion.h>

Test(program, output_is_bounded)
{
	const char *const argv[] = {"head", "-c", "20000000", "/dev/zero", NULL};
	struct membuf b = {.p = NULL};

	cr_expect_eq(program_run(argv, &b), 0, "it is read to its end");
	cr_expect(b.n > 0 && b.n < 10000000, "%zu", b.n);
	membuf_free(&b);
}
