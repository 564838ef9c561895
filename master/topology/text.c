#include "master/topology/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_read.h"

void
topo_add(struct membuf *out, const char *fmt, ...)
{
	char *text;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0)
		abort(); /* out of memory, as in mem.h */
	membuf_add(out, text, (size_t)n);
	free(text);
}

void
topo_add_yaml(struct membuf *out, const char *s)
{
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (f == NULL)
		abort(); /* out of memory, as in mem.h */
	conf_write_text(f, s);
	(void)fclose(f);
	membuf_add(out, text, n);
	free(text);
}

/* In double quotes: the bytes of `escaped` behind a backslash, those of `doubled` twice. */
static void
add_quoted(struct membuf *out, const char *s, const char *escaped, const char *doubled)
{
	membuf_add(out, "\"", 1);
	for (; *s != '\0'; s++) {
		if (strchr(escaped, *s) != NULL)
			membuf_add(out, "\\", 1);
		if (strchr(doubled, *s) != NULL)
			membuf_add(out, s, 1);
		membuf_add(out, s, 1);
	}
	membuf_add(out, "\"", 1);
}

void
topo_add_exec(struct membuf *out, const char *arg)
{
	add_quoted(out, arg, "\"\\", "%$");
}

void
topo_add_env(struct membuf *out, const char *value)
{
	add_quoted(out, value, "\"\\$`", "");
}
