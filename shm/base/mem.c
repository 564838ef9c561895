#include "shm/base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Thread_local struct {
	bool checked, open, exempt;
} section;

void
mem_check_sections(void)
{
	section.checked = true;
}

void
mem_section(bool begins)
{
	section.open = begins;
}

void
mem_exempt(bool on)
{
	section.exempt = on;
}

/* Says so with write(2): a heap that just refused us is no place for stdio. */
static void *
must(void *p)
{
	static const char text[] = "out of memory\n";

#ifdef PDROUTER_DEBUG
	assert(!section.checked || !section.open || section.exempt);
#endif
	if (p != NULL)
		return p;
	if (write(STDERR_FILENO, text, sizeof(text) - 1) < 0)
		abort(); /* nowhere to say it: the same end */
	abort();
}

void *
mem_zero(size_t size)
{
	return must(calloc(1, size > 0 ? size : 1));
}

void *
mem_array(size_t n, size_t size)
{
	if (n == 0 || size == 0)
		return mem_zero(1);
	return must(calloc(n, size));
}

void *
mem_resize(void *p, size_t n, size_t size)
{
	/* never 0 bytes: reallocarray(p, 0, ..) frees p and returns NULL */
	if (n == 0 || size == 0)
		n = size = 1;
	return must(reallocarray(p, n, size));
}

char *
mem_strdup(const char *s)
{
	return s == NULL ? NULL : must(strdup(s));
}

void *
mem_dup(const void *p, size_t n)
{
	void *copy = mem_zero(n > 0 ? n : 1);

	if (n > 0)
		memcpy(copy, p, n);
	return copy;
}

char *
mem_strndup(const char *s, size_t n)
{
	return must(strndup(s, n));
}

char *
mem_printf(const char *fmt, ...)
{
	va_list ap;
	char *s = NULL;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&s, fmt, ap);
	va_end(ap);
	return must(n < 0 ? NULL : s);
}

void
mem_free_secret(char *s)
{
	if (s != NULL)
		explicit_bzero(s, strlen(s));
	free(s);
}

bool
mem_text_equal(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

void
membuf_add(struct membuf *b, const void *p, size_t n)
{
	if (n == 0)
		return;
	if (n > b->cap - b->n) {
		size_t cap = b->cap > 0 ? b->cap : 256;

		if (n > SIZE_MAX / 4 - b->n) /* more than any address space holds: as if refused */
			(void)must(NULL);
		while (cap - b->n < n)
			cap *= 2;
		b->p = mem_resize(b->p, cap, 1);
		b->cap = cap;
	}
	memcpy(b->p + b->n, p, n);
	b->n += n;
}

void
membuf_free(struct membuf *b)
{
	if (b == NULL)
		return;
	free(b->p);
	*b = (struct membuf){0};
}
