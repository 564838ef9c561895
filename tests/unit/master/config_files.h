/* Configurations that name other files: each test is in a folder of its own, where main.yaml is the configuration. */
#pragma once
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/config/conf.h"
#include "shm/base/conf.h"

#define NELEMS(v) (sizeof(v) / sizeof((v)[0]))

static char folder[] = "/tmp/pdrouter_conf_XXXXXX";

static inline void
put(const char *name, const char *text)
{
	FILE *f = fopen(name, "w");

	cr_assert_not_null(f);
	cr_assert_geq(fputs(text, f), 0);
	cr_assert_eq(fclose(f), 0);
}

static inline void
folder_enter(void)
{
	cr_assert_not_null(mkdtemp(folder));
	cr_assert_eq(chdir(folder), 0);
}

/* `names`: all files that the tests may have made. */
static inline void
folder_remove(const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		(void)unlink(names[i]);
	cr_expect_eq(rmdir(folder), 0);
}

static inline struct conf *
load(const char *text)
{
	struct conf_error err;
	struct conf *c = NULL;
	char buf[800];

	put("main.yaml", text);
	cr_assert_eq(
		conf_load("main.yaml", &c, &err), 0, "%s", conf_error_text(&err, buf, sizeof(buf)));
	return c;
}

/* Reads the text in force again, as for a watched file. */
static inline struct conf *
again(const struct conf *c)
{
	static const struct conf_args args = {.file = "main.yaml"};
	struct conf_error err;
	struct conf *next = NULL;
	char buf[800];

	cr_assert_eq(conf_again(&args, c, &next, &err), 0, "%s",
		conf_error_text(&err, buf, sizeof(buf)));
	return next;
}

/* What is wrong with a text: where, and a part of what is said. */
struct wrong_text {
	const char *text;
	int line;
	const char *key, *word;
};

static inline void
expect_refused(const struct wrong_text *wrong, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct conf_error err = {.line = -1};
		struct conf *c = NULL;

		put("main.yaml", wrong[i].text);
		cr_assert_eq(conf_load("main.yaml", &c, &err), -1, "%s", wrong[i].text);
		cr_expect(err.line == wrong[i].line && strcmp(err.key, wrong[i].key) == 0 &&
				  strstr(err.what, wrong[i].word) != NULL,
			"%s%d: %s: %s", wrong[i].text, err.line, err.key, err.what);
	}
}

/* What `text` would change, and of which classes; the caller frees *ret_changes. */
static inline int
changes_to(const struct conf *old, const char *text, char **ret_changes)
{
	struct conf *next = load(text);
	struct conf_error err;
	size_t n;
	FILE *f = open_memstream(ret_changes, &n);
	int got;

	(void)conf_changes(old, next, f);
	(void)fclose(f);
	got = conf_diff(old, next, NULL, NULL, &err);
	conf_free(&next);
	return got;
}
