/* Files, each written whole or not at all: below a folder, or one; and their bytes. */
#pragma once
#include "master/topology/render.h"

/* Makes the folder; one that has something in it is refused, so that no file of an older plan stays.
 * 0, or -1 after a message. */
int tree_begin(const char *dir);
/* Writes DIR/PATH and the folders on the way; the file is there whole, or not at all.  0, or -1 after a message. */
int tree_write(const char *dir, const struct topo_file *f);
/* Writes the file whole, or not at all: PATH.new, fsync, rename.  The path of `f` does not count. */
int tree_put(const char *path, const struct topo_file *f);
/* The bytes of a file, with a NUL behind them; the caller frees them.  NULL with errno: EINVAL if it is no regular file,
 * EFBIG if it has more than TREE_MAX bytes. */
#define TREE_MAX (8u << 20)
char *tree_read(const char *path, size_t *ret_n);
/* Makes the folders of the path, up to its last slash. */
int tree_folders(const char *path);
/* All bytes, or -1 with errno. */
int tree_write_all(int fd, const char *p, size_t n);
