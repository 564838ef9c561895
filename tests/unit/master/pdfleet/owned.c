/* Files of a fleet on this host, and files of others that stand beside them. */
#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "master/pdfleet/owned.h"
#include "master/pdfleet/tree.h"
#include "shm/base/mem.h"

#define HEAD "# Written by pdctl fleet for the fleet f: change the fleet file instead.\n"
#define OLD HEAD "old\n"
#define NEW HEAD "new\n"
#define MINE "mine\n"

static char dir[] = "/tmp/pdfleet-owned-XXXXXX";
static char *path; /* DIR/a */
static char bytes[] = NEW;
static struct topo_file file = {.mode = 0644, .bytes = bytes, .n = sizeof(bytes) - 1};
static const struct topo_files files = {.v = &file, .n = 1};

static void
setup(void)
{
	cr_assert_not_null(mkdtemp(dir));
	path = mem_printf("%s/a", dir);
	file.path = path + 1;
}

static void
teardown(void)
{
	char *command = mem_printf("rm -rf %s", dir);

	cr_expect_eq(system(command), 0);
	free(command);
	free(path);
}

TestSuite(owned, .init = setup, .fini = teardown);

static void
put(const char *ext, const char *text)
{
	char *full = mem_printf("%s%s", path, ext);
	int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	cr_assert(fd != -1 && tree_write_all(fd, text, strlen(text)) == 0);
	(void)close(fd);
	free(full);
}

/* NULL: there is none. */
static void
expect(const char *ext, const char *text)
{
	char *full = mem_printf("%s%s", path, ext), *have = tree_read(full, NULL);

	cr_expect(mem_text_equal(have, text) || (have == NULL && text == NULL), "%s: %s", full,
		have != NULL ? have : "none");
	free(have);
	free(full);
}

Test(owned, what_ran_well_comes_back)
{
	bool changed;

	put("", OLD);
	cr_expect_eq(owned_write(&files, "f", &changed), 0);
	cr_expect(changed && owned_has_former(&files));
	expect("", NEW);
	expect(".former", OLD);
	cr_expect_eq(owned_restore(&files), 0);
	expect("", OLD);
	cr_expect(!owned_has_former(&files));
	cr_expect_eq(owned_write(&files, "f", &changed), 0);
	cr_expect_eq(owned_confirm(&files), 0);
	expect(".former", NULL);
}

Test(owned, what_a_killed_write_left_is_written_over)
{
	static const char *const left[] = {"", "# Written by", OLD};
	bool changed;

	for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
		put("", OLD);
		put(".new", left[i]);
		cr_expect_eq(owned_write(&files, "f", &changed), 0);
		expect("", NEW);
		expect(".new", NULL);
	}
}

Test(owned, a_new_or_former_file_of_another_is_kept)
{
	static const char *const beside[] = {".new", ".former"};
	bool changed;

	for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]); i++) {
		char *full = mem_printf("%s%s", path, beside[i]);

		put("", OLD);
		put(beside[i], MINE);
		cr_expect_eq(owned_write(&files, "f", &changed), -1, "%s", full);
		expect("", OLD);
		cr_expect(!owned_has_former(&files));
		cr_expect_eq(owned_confirm(&files), 0);
		cr_expect_eq(owned_restore(&files), 0);
		expect("", OLD);
		expect(beside[i], MINE);
		cr_expect_eq(unlink(full), 0);
		free(full);
	}
}

Test(owned, a_link_is_not_followed)
{
	char *full = mem_printf("%s.new", path), *other = mem_printf("%s.other", path);
	bool changed;

	put("", OLD);
	put(".other", OLD);
	cr_assert_eq(symlink(other, full), 0);
	cr_expect_eq(owned_write(&files, "f", &changed), -1);
	expect("", OLD);
	expect(".other", OLD);
	free(full);
	free(other);
}

Test(owned, what_is_no_file_of_ours_is_not_read_for_ever, .timeout = 20)
{
	char *former = mem_printf("%s.former", path);
	bool changed;

	put("", OLD);
	cr_assert_eq(mkfifo(former, 0644), 0);
	cr_expect_eq(owned_write(&files, "f", &changed), -1);
	cr_assert_eq(unlink(path) + mkfifo(path, 0644), 0);
	cr_expect_eq(owned_look(&file, "f"), OWNED_FOREIGN);
	cr_assert_eq(unlink(path), 0);
	put("", OLD);
	cr_assert_eq(truncate(path, TREE_MAX + 1), 0);
	cr_expect_eq(owned_look(&file, "f"), OWNED_FOREIGN);
	free(former);
}

Test(owned, what_cannot_be_read_is_not_called_foreign)
{
	char *said;

	cr_redirect_stderr();
	cr_assert_eq(symlink(path, path), 0);
	cr_expect_eq(owned_look(&file, "f"), OWNED_UNKNOWN);
	cr_expect_eq(owned_refuse(&files, "f"), -1);
	(void)fflush(stderr);
	said = mem_printf("pdctl fleet: %s: %s\n", path, strerror(ELOOP));
	cr_expect_stderr_eq_str(said);
	free(said);
}
