#include "master/pdctl/print.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct {
	enum print_form form;
	unsigned long nlines;
	char error[1024]; /* "": none */
	bool quiet;
} answer;

static void
put_text(const char *text)
{
	(void)putchar('"');
	for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++)
		if (*p == '"' || *p == '\\')
			(void)printf("\\%c", *p);
		else if (*p < 0x20 || *p == 0x7f)
			(void)printf("\\u%04x", *p);
		else
			(void)putchar(*p);
	(void)putchar('"');
}

void
print_begin(enum print_form form)
{
	answer.form = form;
	if (form == PRINT_LINES)
		(void)printf("{\"lines\":[");
}

void
print_line(const char *line)
{
	if (answer.form == PRINT_LINES) {
		(void)printf("%s", answer.nlines > 0 ? "," : "");
		put_text(line);
	} else if (answer.form == PRINT_TEXT || line[0] != '\0') {
		(void)puts(line);
	}
	answer.nlines++;
}

int
print_error(const char *text)
{
	(void)snprintf(answer.error, sizeof(answer.error), "%s", text);
	if (!answer.quiet)
		(void)fprintf(stderr, "%s\n", text);
	return 1;
}

int
print_fail(const char *what, const char *why)
{
	char text[sizeof(answer.error)];

	(void)snprintf(text, sizeof(text), "pdctl: %s: %s", what, why);
	return print_error(text);
}

void
print_hint(const char *text)
{
	if (!answer.quiet)
		(void)fprintf(stderr, "%s\n", text);
}

void
print_quiet(void)
{
	answer.quiet = true;
}

const char *
print_last_error(void)
{
	return answer.error;
}

int
print_end(int code)
{
	const bool failed = answer.error[0] != '\0';

	if (answer.form == PRINT_LINES || (answer.form == PRINT_OBJECT && failed)) {
		(void)printf("%s\"error\":", answer.form == PRINT_LINES ? "]," : "{");
		if (failed)
			put_text(answer.error);
		else
			(void)printf("null");
		(void)printf("}\n");
	}
	if (fflush(stdout) == 0)
		return code;
	(void)fprintf(stderr, "pdctl: stdout: %s\n", strerror(errno));
	return 1;
}
