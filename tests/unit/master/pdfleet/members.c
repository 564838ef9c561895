/* What has to be done with an engine of this host, and the table of steps. */
#include <criterion/criterion.h>
#include <string.h>

#include "master/pdfleet/members.h"
#include "master/pdfleet/steps.h"

enum { WANTED = 1, RUNS = 2, CURRENT = 4, DRAINED = 8, AGAIN = 16, ALL = 31 };

/* The first row that fits counts: of the facts in `mask`, those in `facts` hold. */
static const struct {
	unsigned mask, facts;
	enum change change;
} rows[] = {
	{WANTED, 0, CHANGE_REMOVE},
	{WANTED | RUNS, WANTED, CHANGE_START},
	{AGAIN, AGAIN, CHANGE_RESTART},
	{CURRENT, 0, CHANGE_RESTART},
	{DRAINED, DRAINED, CHANGE_UNDRAIN},
	{0, 0, CHANGE_NONE},
};

Test(members, the_change_of_an_engine)
{
	for (unsigned bits = 0; bits <= ALL; bits++) {
		const struct member_facts f = {
			.wanted = (bits & WANTED) != 0,
			.runs = (bits & RUNS) != 0,
			.current = (bits & CURRENT) != 0,
			.drained = (bits & DRAINED) != 0,
			.again = (bits & AGAIN) != 0,
		};
		size_t i = 0;

		while ((bits & rows[i].mask) != rows[i].facts)
			i++;
		cr_expect_eq(member_change(&f), rows[i].change, "facts %u", bits);
	}
}

Test(members, every_step_has_its_row)
{
	for (unsigned i = 0; i < STEP_N; i++) {
		cr_assert_not_null(step_name((enum step)i), "step %u", i);
		for (unsigned k = 0; k < i; k++)
			cr_expect_str_neq(step_name((enum step)i), step_name((enum step)k));
		cr_expect_eq(
			step_is_last((enum step)i), i >= STEP_DONE, "%s", step_name((enum step)i));
	}
}
