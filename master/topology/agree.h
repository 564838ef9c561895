/* Inside master/topology/: what must be the same in all engines of a fleet. */
#pragma once
#include "master/topology/engine.h"

/*
 * Compares the flags and variables that the connector's row names, in the composed command lines and
 * environments.  `--dtype`: a flag; `--config.size`: the member of the JSON that is the value of --config;
 * any other word: a variable.
 */
void topo_agree(struct topo_plan *p);
/* `a` is a word of the user, `b` a flag: engines take --block_size for --block-size. */
bool topo_same_flag(const char *a, size_t na, const char *b, size_t nb);
