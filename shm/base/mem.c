#include "shm/base/mem.h"

#include <assert.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SMALL 1032 /* bytes: the most that glibc keeps in that list, cleared() */

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

/* --- the reserve -------------------------------------------------------------------------------- */

static struct {
	void *p; /* NULL: there is none, or it was given up */
	size_t bytes;
	uint64_t *failures;
} reserve;

/* Not by malloc(): freed memory of that may stay with the process, and its owner. */
static void *
map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p != MAP_FAILED ? p : NULL;
}

static void
count_failure(void)
{
	if (reserve.failures != NULL)
		++*reserve.failures;
}

bool
mem_give_up_reserve(void)
{
	if (reserve.p == NULL)
		return false;
	(void)munmap(reserve.p, reserve.bytes);
	reserve.p = NULL;
	count_failure();
	return true;
}

bool
mem_reserve(size_t bytes, uint64_t *counter)
{
	if (reserve.p != NULL && reserve.bytes != bytes) {
		(void)munmap(reserve.p, reserve.bytes);
		reserve.p = NULL;
	}
	reserve.bytes = bytes;
	reserve.failures = counter;
	if (reserve.p == NULL && bytes > 0)
		reserve.p = map(bytes);
	return reserve.p != NULL || bytes == 0;
}

bool
mem_has_reserve(void)
{
	return reserve.p != NULL;
}

bool
mem_has_room(size_t bytes)
{
	void *p = map(bytes);

	if (p == NULL)
		count_failure();
	else
		(void)munmap(p, bytes);
	return p != NULL;
}

/* --- allocations -------------------------------------------------------------------------------- */

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

/* glibc's calloc() takes nothing from the list of small pieces that were freed last, which malloc() takes from at once. */
static void *
cleared(size_t n, size_t size)
{
	size_t bytes;
	void *p;

	if (__builtin_mul_overflow(n, size, &bytes) || bytes > SMALL)
		return calloc(n, size);
	p = malloc(bytes);
	return p != NULL ? memset(p, 0, bytes) : NULL;
}

static void *
zero(size_t n, size_t size)
{
	void *p = cleared(n, size);

	if (p == NULL && mem_give_up_reserve())
		p = cleared(n, size);
	return p;
}

static void *
resize(void *p, size_t n, size_t size)
{
	void *q = reallocarray(p, n, size);

	if (q == NULL && mem_give_up_reserve())
		q = reallocarray(p, n, size);
	return q;
}

void *
mem_or_null(size_t size)
{
	return resize(NULL, size > 0 ? size : 1, 1);
}

void *
mem_resize_or_null(void *p, size_t size)
{
	return resize(p, size > 0 ? size : 1, 1);
}

void *
mem_zero(size_t size)
{
	return must(zero(1, size > 0 ? size : 1));
}

void *
mem_array(size_t n, size_t size)
{
	if (n == 0 || size == 0)
		return mem_zero(1);
	return must(zero(n, size));
}

void *
mem_resize(void *p, size_t n, size_t size)
{
	/* never 0 bytes: reallocarray(p, 0, ..) frees p and returns NULL */
	if (n == 0 || size == 0)
		n = size = 1;
	return must(resize(p, n, size));
}

void *
mem_aligned(size_t size)
{
	void *p = aligned_alloc(size, size);

	if (p == NULL && mem_give_up_reserve())
		p = aligned_alloc(size, size);
	return must(p);
}

char *
mem_strdup(const char *s)
{
	return s == NULL ? NULL : mem_dup(s, strlen(s) + 1);
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
	const size_t len = strnlen(s, n);
	char *copy = mem_zero(len + 1);

	memcpy(copy, s, len);
	return copy;
}

char *
mem_printf(const char *fmt, ...)
{
	char *s = NULL;
	int n;

	do {
		va_list ap;

		va_start(ap, fmt);
		n = vasprintf(&s, fmt, ap);
		va_end(ap);
	} while (n < 0 && mem_give_up_reserve());
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
