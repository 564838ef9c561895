/* Changes a fleet file as a person would: one value, and no other byte. */
#pragma once
#include "master/topology/topology.h"
#include "shm/base/mem.h"

/*
 * Appends the text to *out, with so many replicas of the group.  Returns 0, or -1 with *err filled: the text
 * is no fleet file, has no such group, or would not be a fleet file any more.
 */
int topo_scale(const char *path, const char *text, size_t n, enum topo_role role, uint32_t replicas,
	struct membuf *out, struct conf_error *err);
