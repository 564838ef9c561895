/* A file of the user is replaced whole, or stays as another program has made it. */
#include "master/pdfleet/rewrite.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/pdr-rewrite-XXXXXX";

static void
put(const char *text)
{
	FILE *f = fopen("file", "w");

	cr_assert_not_null(f);
	(void)fputs(text, f);
	cr_assert_eq(fclose(f), 0);
}

static void
expect_file(const char *text)
{
	char buf[64] = "";
	FILE *f = fopen("file", "r");

	cr_assert_not_null(f);
	(void)fread(buf, 1, sizeof(buf) - 1, f);
	(void)fclose(f);
	cr_expect_str_eq(buf, text);
}

static void
enter(void)
{
	cr_assert_not_null(mkdtemp(dir));
	cr_assert_eq(chdir(dir), 0);
	(void)freopen("/dev/null", "w", stderr);
}

/* No temporary file is left. */
static void
leave(void)
{
	(void)unlink("file");
	cr_expect_eq(rmdir(dir), 0);
}

TestSuite(rewrite, .init = enter, .fini = leave);

Test(rewrite, whole)
{
	struct rewrite r;
	struct stat st;

	put("a\n");
	cr_assert_eq(chmod("file", 0604), 0);
	cr_assert_eq(rewrite_begin("file", &r), 0);
	cr_expect(r.n == 2 && memcmp(r.text, "a\n", 2) == 0);
	cr_expect_eq(rewrite_end(&r, "longer\n", 7), 0);
	expect_file("longer\n");
	cr_expect(stat("file", &st) == 0 && (st.st_mode & 07777) == 0604);
	cr_expect_neq(st.st_ino, r.was.st_ino);
	rewrite_free(&r);
}

Test(rewrite, a_file_that_has_changed)
{
	struct rewrite r;

	put("a\n");
	cr_assert_eq(rewrite_begin("file", &r), 0);
	put("another\n");
	cr_expect_eq(rewrite_end(&r, "b\n", 2), -1);
	expect_file("another\n");
	cr_assert_eq(unlink("file"), 0);
	cr_expect_eq(rewrite_end(&r, "b\n", 2), -1);
	cr_expect_eq(access("file", F_OK), -1);
	rewrite_free(&r);
}

Test(rewrite, what_cannot_be_read)
{
	struct rewrite r;

	cr_expect_eq(rewrite_begin("none", &r), -1);
	rewrite_free(&r);
	cr_expect_eq(rewrite_begin("/dev/null", &r), -1);
	rewrite_free(&r);
}
