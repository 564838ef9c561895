#include "master/topology/template_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/config/conf_read.h"
#include "shm/base/mem.h"

#define OWN "fleet.d"                   /* from the fleet file's folder */
#define SHARE "../share/pdrouter/fleet" /* from the program's folder */

static char *
own_template(const struct topology *t, const char *dir)
{
	char *beside = dir == NULL ? conf_beside(t->path, OWN) : NULL;
	char *path = mem_printf("%s/%s.yaml", dir != NULL ? dir : beside, t->engine.kind);

	free(beside);
	return path;
}

/* KIND.yaml in the program's share folder. */
static char *
shared_template(const char *kind)
{
	char exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	exe[n > 0 ? n : 0] = '\0';
	slash = strrchr(exe, '/');
	if (slash != NULL)
		*slash = '\0';
	return mem_printf("%s/" SHARE "/%s.yaml", exe, kind);
}

/* A router that follows the file searches the template as if no folder was named. */
static int
refuse_folder(const struct topology *t, struct conf_error *err)
{
	*err = (struct conf_error){.line = t->router.line, .key = "router.fleet_file"};
	(void)snprintf(err->file, sizeof(err->file), "%s", t->path);
	(void)snprintf(err->what, sizeof(err->what),
		"its routers do not know -t: put %.60s.yaml into the folder " OWN
		" beside the fleet file",
		t->engine.kind);
	return -1;
}

/* The user's file comes before the installed one. */
int
topo_template_find(const struct topology *t, const char *dir, struct topo_template **ret,
	struct conf_error *err)
{
	const char *kind = t->engine.kind;
	char *own, *shared;
	const char *path;
	int rc = -1;

	if (dir != NULL && t->router.fleet_file != NULL)
		return refuse_folder(t, err);
	own = own_template(t, dir);
	shared = shared_template(kind);
	path = access(own, F_OK) == 0 ? own : shared;
	*err = (struct conf_error){.line = topo_line(t, "engine.kind"), .key = "engine.kind"};
	(void)snprintf(err->file, sizeof(err->file), "%s", t->path);
	(void)snprintf(err->what, sizeof(err->what),
		"no template for %.60s: neither %.80s nor %.80s", kind, own, shared);
	if (strchr(kind, '/') == NULL && access(path, F_OK) == 0)
		rc = topo_template_load(path, ret, err);
	free(own);
	free(shared);
	return rc;
}
