/* The words one instance of pdrouter passes to the next: written and read back, of other versions, wrong ones. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdlib.h>

#include "master/supervise/inherit.h"
#include "shm/base/mem.h"

#define FULL                                                                                       \
	"instance=3 from=2:7:9 old=1:4:5 state=8 listen=6 systemd=13 control=10:11 state_lock=12"

Test(supervise_inherit, what_is_written_is_read_back)
{
	struct inherit in;
	const char *why;
	char *text;

	cr_assert_eq(inherit_parse(FULL, &in, &why), 0);
	cr_expect_eq(in.instance, 3);
	cr_expect_eq(in.from.instance, 2);
	cr_expect_eq(in.from.talk, 7);
	cr_expect_eq(in.from.notices, 9);
	cr_expect_eq(in.nold, 1);
	cr_expect_eq(in.nlisten, 2);
	cr_expect_eq(in.listen[0].ours, true);
	cr_expect_eq(in.listen[1].ours, false);
	cr_expect_eq(in.control_lock, 11);
	text = inherit_text(&in);
	cr_expect_str_eq(text, FULL);
	free(text);
}

Test(supervise_inherit, words_and_fields_of_other_versions_are_ignored)
{
	struct inherit in;
	const char *why;

	cr_assert_eq(
		inherit_parse("  later=1:x even instance=2 from=1:3:4:5:6 =7 quick= ", &in, &why),
		0);
	cr_expect_eq(in.from.notices, 4);
	cr_expect_eq(in.state, -1);
	cr_expect_eq(in.control, -1);
}

Test(supervise_inherit, a_wrong_text_is_refused)
{
	static const char *const wrong[] = {
		"",
		"instance=2",
		"from=1:3:4",
		"instance=0 from=1:3:4",
		"instance=2 from=1:3",
		"instance=2 from=1:3:2",       /* a standard descriptor */
		"instance=2 from=1:3:1048577", /* more than a process can have */
		"instance=2 from=1:3:-4",
		"instance=2 from=1:3:4x",
		"instance=2 from=1:3:",
		"instance=4294967296 from=1:3:4",
		"instance=2 from=1:3:4 listen=",
		"instance=2 from=1:3:4 listen=3", /* twice */
		"instance=2 from=1:3:4 control=5",
		"instance=2 from=1:3:4 old=1:3:3",
		"instance=2 instance=3 from=1:3:4", /* a word of which there is one */
		"instance=2 from=1:3:4 from=1:5:6",
		"instance=2 from=1:3:4 state=5 state=6",
		"instance=2 from=1:3:4 control=5:6 control=7:8",
		"instance=2 from=1:3:4 state_lock=5 state_lock=6",
	};
	struct inherit in;
	const char *why;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		cr_expect_eq(inherit_parse(wrong[i], &in, &why), -1, "%s", wrong[i]);
}

/* Needs the caller to free it. */
static char *
many(const char *word, const char *end, int n)
{
	char *text = mem_strdup("instance=2 from=1:3:4"), *longer;

	for (int i = 0; i < n; i++) {
		longer = mem_printf("%s %s%d%s%d", text, word, 10 + 2 * i, end, 11 + 2 * i);
		free(text);
		text = longer;
	}
	return text;
}

Test(supervise_inherit, there_are_only_so_many_of_each)
{
	struct inherit in;
	const char *why;

	for (int more = 0; more < 2; more++) {
		char *old = many("old=1:", ":", INHERIT_OLD_MAX + more),
		     *listen = many("listen=", " later=", INHERIT_LISTEN_MAX + more);

		cr_expect_eq(inherit_parse(old, &in, &why), -more);
		cr_expect_eq(inherit_parse(listen, &in, &why), -more);
		free(old);
		free(listen);
	}
}
