/* Writes rendered files below a folder. */
#pragma once
#include "master/topology/render.h"

/* Makes the folder; one that has something in it is refused, so that no file of an older plan stays.
 * 0, or -1 after a message. */
int tree_begin(const char *dir);
/* Writes DIR/PATH and the folders on the way; the file is there whole, or not at all.  0, or -1 after a message. */
int tree_write(const char *dir, const struct topo_file *f);
