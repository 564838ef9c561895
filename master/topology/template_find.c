#include "master/topology/template_find.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "master/config/conf_read.h"
#include "shm/base/mem.h"

#define OWN "fleet.d" /* from the fleet file's folder */
/* From the program's folder: where it is installed, and where it is built. */
static const char *const shares[] = {"../share/pdrouter/fleet", "../../etc/fleet"};
#define NSHARES (sizeof(shares) / sizeof(shares[0]))

static char *
own_template(const struct topology *t, const char *dir)
{
	char *beside = dir == NULL ? conf_beside(t->path, OWN) : NULL;
	char *path = mem_printf("%s/%s.yaml", dir != NULL ? dir : beside, t->engine.kind);

	free(beside);
	return path;
}

/* KIND.yaml in a folder beside the program. */
static char *
shared_template(const char *kind, const char *share)
{
	char exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	char *slash;

	exe[n > 0 ? n : 0] = '\0';
	slash = strrchr(exe, '/');
	if (slash != NULL)
		*slash = '\0';
	return mem_printf("%s/%s/%s.yaml", exe, share, kind);
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
	char *own, *shared[NSHARES];
	const char *path;
	int rc = -1;

	if (dir != NULL && t->router.fleet_file != NULL)
		return refuse_folder(t, err);
	own = own_template(t, dir);
	path = own;
	for (size_t i = 0; i < NSHARES; i++) {
		shared[i] = shared_template(kind, shares[i]);
		if (access(path, F_OK) != 0)
			path = shared[i];
	}
	*err = (struct conf_error){.line = topo_line(t, "engine.kind"), .key = "engine.kind"};
	(void)snprintf(err->file, sizeof(err->file), "%s", t->path);
	(void)snprintf(err->what, sizeof(err->what),
		"no template for %.60s: neither %.80s nor %.80s", kind, own, shared[0]);
	if (strchr(kind, '/') == NULL && access(path, F_OK) == 0)
		rc = topo_template_load(path, ret, err);
	free(own);
	for (size_t i = 0; i < NSHARES; i++)
		free(shared[i]);
	return rc;
}
