/* The ${names} that texts of templates and fleet files may have: a closed list. */
#pragma once
#include <stddef.h>

#include "master/topology/engine.h"

/* The first name in the text that does not exist, with its length, or NULL. */
const char *topo_names_check(const char *text, size_t *ret_n);
/* All names, for a message; the caller frees it. */
char *topo_names_list(void);
/* The next ${name} of the text, and its length with the braces; NULL: none.  The braces are closed. */
const char *topo_names_next(const char *text, size_t *ret_n);
/* The key of the fleet file that decides a name of the plan, for a message; the caller frees it.  NULL: no such name. */
char *topo_names_key(const char *name, size_t n);
#define TOPO_TEXT_MAX                                                                              \
	(128u << 10) /* an argument that Linux passes on is shorter (MAX_ARG_STRLEN) */
/*
 * The text with its names replaced; the caller frees it.  NULL: a name has no value here, and *ret_name
 * is its copy; or the text would be too long, and *ret_name is untouched.  `e`: NULL for texts of the router.
 */
char *topo_names_replace(
	const struct topo_plan *p, const struct topo_engine *e, const char *text, char **ret_name);
