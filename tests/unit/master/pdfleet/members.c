/* What has to be done with an engine of this host, and the table of steps. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/pdfleet/members.h"
#include "master/pdfleet/steps.h"
#include "master/pdfleet/tree.h"

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
	for (unsigned i = 0; i < STEP_N; i++)
		cr_expect_eq(step_is_last((enum step)i), i >= STEP_DONE, "step %u", i);
}

/* --- which files an engine runs with
 * ---------------------------------------------------------------- */

#define UNIT TOPO_UNIT "f-decode-0"

/* The files of the engine, of which the digest is the letter so many times. */
static struct topo_files
files_of(const struct runner *r, char letter)
{
	struct topo_files f = {.v = mem_array(2, sizeof(*f.v)), .n = 2};
	char digest[17], *drop_in = runner_drop_in(r, UNIT);

	memset(digest, letter, sizeof(digest));
	digest[16] = '\0';
	f.v[0].path = mem_printf("%sf-decode-0.env", r->paths.fleet + 1);
	f.v[0].bytes = mem_printf("# ours\n" TOPO_ENV_DIGEST "=\"%s\"\n", digest);
	f.v[1].path = mem_printf("%s", drop_in + 1);
	f.v[1].bytes =
		mem_printf("[Service]\nEnvironmentFile=/%s\nExecStart=\"/bin/sleep\" \"60\"\n"
			   "Environment=\"" TOPO_ENV_UNIT "=%s\"\n",
			f.v[0].path, digest);
	for (size_t i = 0; i < f.n; i++) {
		f.v[i].n = strlen(f.v[i].bytes);
		f.v[i].mode = 0644;
	}
	free(drop_in);
	return f;
}

/* A write that was interrupted, and a start by the machine: the engine runs with one file of each, and fits neither plan. */
Test(members, an_engine_that_started_between_two_writes_is_not_current)
{
	static const struct {
		char env, drop_in, plan;
		bool current;
	} rows_of_files[] = {{'a', 'a', 'a', true}, {'a', 'a', 'b', false}, {'b', 'a', 'b', false},
		{'b', 'a', 'a', false}, {'a', 'b', 'b', false}, {'b', 'b', 'b', true}};
	char dir[] = "/tmp/pdfleet-members-XXXXXX", unit[] = UNIT, *command;
	struct runner *r;

	cr_assert_not_null(mkdtemp(dir));
	r = runner_plain(dir);
	for (size_t i = 0; i < sizeof(rows_of_files) / sizeof(rows_of_files[0]); i++) {
		struct topo_files env = files_of(r, rows_of_files[i].env);
		struct topo_files drop_in = files_of(r, rows_of_files[i].drop_in);
		struct member m = {.unit = unit, .name = unit + strlen(TOPO_UNIT)};

		m.files = files_of(r, rows_of_files[i].plan);
		cr_assert_eq(tree_write("/", &env.v[0]) + tree_write("/", &drop_in.v[1]), 0);
		cr_assert_eq(r->ops->start(r, unit) + r->ops->status(r, unit, &m.status), 0);
		cr_expect_eq(member_is_current(r, &m), rows_of_files[i].current, "row %zu", i);
		cr_assert_eq(r->ops->stop(r, unit), 0);
		topo_files_free(&env);
		topo_files_free(&drop_in);
		topo_files_free(&m.files);
	}
	runner_free(&r);
	command = mem_printf("rm -rf %s", dir);
	cr_expect_eq(system(command), 0);
	free(command);
}

Test(members, when_an_engine_counts_as_down)
{
	for (unsigned failed = 0; failed < 10; failed++)
		for (unsigned view = ROUTERS_NONE; view <= ROUTERS_DOWN; view++) {
			const bool down = failed >= 3 && view != ROUTERS_UP;

			cr_expect_eq(member_is_down(failed, (enum routers_view)view), down,
				"%u probes, view %u", failed, view);
		}
}
