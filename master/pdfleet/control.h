/* One command to the control socket of a router on this host. */
#pragma once
#include <sys/types.h>

#include "shm/base/mem.h"

enum control_answer { CONTROL_OK, CONTROL_ERR, CONTROL_NONE };

/* *answer: the lines before OK, or the text behind ERR; it ends with a NUL that n does not count.  CONTROL_NONE: no router answers. */
enum control_answer control_say(const char *path, const char *command, struct membuf *answer);
/* The process that has made the socket at `path`; 0: none answers there.  An upgrade of the router hands the socket over. */
pid_t control_peer(const char *path);
