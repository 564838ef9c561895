/* Replaces the text of a file that a person owns: whole or not at all, with the same mode and owner. */
#pragma once
#include <stddef.h>
#include <sys/stat.h>

struct rewrite {
	char *path; /* where the file is, behind symbolic links */
	char *text;
	size_t n;
	struct stat was; /* when it was read */
};

/* Reads the file.  0, or -1 after a message. */
int rewrite_begin(const char *path, struct rewrite *ret);
/* Refuses to write a file that has changed since rewrite_begin().  0, or -1 after a message. */
int rewrite_end(const struct rewrite *r, const char *bytes, size_t n);
void rewrite_free(struct rewrite *r);
