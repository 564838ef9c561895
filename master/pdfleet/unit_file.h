/* Reads the files that master/topology/render.c writes for a unit. */
#pragma once
#include <stddef.h>

/* A list that ends with NULL, as execve() takes it. */
struct words {
	char **v;
	size_t n;
};

void words_add(struct words *w, char *word); /* takes it */
void words_free(struct words *w);

/* The words of `ExecStart=` and the path of `EnvironmentFile=` (NULL: none) of a drop-in; the caller frees
 * both.  -1: pdctl fleet has not written the text. */
int unit_file_read(const char *text, struct words *ret_argv, char **ret_env);
/* NAME=VALUE of each line of an environment file.  -1: pdctl fleet has not written the text. */
int unit_file_read_env(const char *text, struct words *ret);
