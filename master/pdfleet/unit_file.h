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

/* What a drop-in says: argv of `ExecStart=`, env of `Environment=`, and the path of `EnvironmentFile=`. */
struct unit_file {
	struct words argv, env;
	char *env_path; /* NULL: none */
};

/* -1: pdctl fleet has not written the text.  *ret is to be freed in both cases. */
int unit_file_read(const char *text, struct unit_file *ret);
void unit_file_free(struct unit_file *u);
/* NAME=VALUE of each line of an environment file.  -1: pdctl fleet has not written the text. */
int unit_file_read_env(const char *text, struct words *ret);
