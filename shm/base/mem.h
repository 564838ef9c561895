/*
 * Small objects of our own: out of memory aborts (a worker is disposable, the master restarts it).
 * Sizes a client controls are bounded by a configured limit first.
 *
 * The master is not disposable.  It has a reserve, which small objects use when an allocation fails, and it asks for room
 * before it does what needs much memory.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_zero(size_t size);                      /* calloc or abort */
void *mem_array(size_t n, size_t size);           /* calloc(n, size) or abort; overflow aborts */
void *mem_resize(void *p, size_t n, size_t size); /* reallocarray or abort */
/* `size` bytes, not cleared, at an address that is a multiple of it; a power of two */
void *mem_aligned(size_t size);
char *mem_strdup(const char *s);        /* NULL stays NULL */
void *mem_dup(const void *p, size_t n); /* of n bytes; never NULL */
char *mem_strndup(const char *s, size_t n);
/* Overwrites the text first, so that no freed memory shows it.  NULL is fine. */
void mem_free_secret(char *s);
char *mem_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define MEM_NEW(type) ((type *)mem_zero(sizeof(type)))
/* Whether two texts are equal; no text (NULL) is equal to none alone. */
bool mem_text_equal(const char *a, const char *b);

/*
 * Keeps so many bytes in reserve from now on, or has them again; 0: no longer.  An allocation that fails gives the
 * reserve up and is tried again.  Each failure is added to *counter, which no other process writes (NULL: none).
 * False: there is no memory for the reserve.
 */
#define MEM_RESERVE (16u << 20)
#define MEM_ROOM (64u << 20) /* more than a command, a reload or a status takes */
bool mem_reserve(size_t bytes, uint64_t *counter);
bool mem_has_reserve(void);
/* Whether so many bytes can be had beside the reserve.  If not, a failure is counted. */
bool mem_has_room(size_t bytes);
/* An allocation by other means has failed.  True: the reserve was given up, try again. */
bool mem_give_up_reserve(void);
/* For libraries that know what to do without memory: NULL if the reserve is gone too. */
void *mem_or_null(size_t size);
void *mem_resize_or_null(void *p, size_t size);

/*
 * Debug and sanitizer builds: an allocation inside a read section (I6 of shm/README.md) aborts, in a process that has
 * called mem_check_sections().  Unit tests do not call it: they play several processes in one.
 */
void mem_check_sections(void);
/* shm/core/rcu.c: a read section begins, or ends. */
void mem_section(bool begins);
/* The allocations between mem_exempt(true) and mem_exempt(false) are the exceptions that I6 names. */
void mem_exempt(bool on);

/* Bytes that grow; zeroed is empty.  The owner may set n back to use the room again. */
struct membuf {
	char *p;
	size_t n, cap;
};

void membuf_add(struct membuf *b, const void *p, size_t n); /* p may be NULL if n is 0 */
void membuf_free(struct membuf *b);                         /* empty again; NULL is fine */
