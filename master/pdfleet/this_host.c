#include "master/pdfleet/this_host.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "master/topology/finding.h"
#include "shm/base/mem.h"

#define GIB 1073741824.0 /* LMCache says GB and means this */
#define RDMA_DEVICES "/sys/class/infiniband/"

/* --- its address
 * --------------------------------------------------------------------------------- */

static bool
same_address(const struct sockaddr *a, const struct sockaddr *b)
{
	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return a->sa_family == AF_INET6 &&
	       memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr,
		       &((const struct sockaddr_in6 *)b)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* The interface that has the address, or NULL. */
static const struct ifaddrs *
interface_of(const struct ifaddrs *all, const struct sockaddr *a)
{
	while (all != NULL && (all->ifa_addr == NULL || !same_address(all->ifa_addr, a)))
		all = all->ifa_next;
	return all;
}

static void
check_address(struct topo_plan *p, const struct topo_host *h)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	struct addrinfo *found = NULL;
	struct ifaddrs *all = NULL;
	const struct ifaddrs *at;
	int rc = getaddrinfo(h->address, NULL, &hints, &found);

	if (rc != 0)
		topo_found(p, p->t->path, h->line, h->name, "address %.80s is unknown here: %.80s",
			h->address, gai_strerror(rc));
	else if (getifaddrs(&all) == 0) {
		at = interface_of(all, found->ai_addr); /* engines take the first one, too */
		if (at == NULL)
			topo_found(p, p->t->path, h->line, h->name,
				"no interface of this host has the address %.80s", h->address);
		else if (p->t->nhosts > 1 && (at->ifa_flags & IFF_LOOPBACK) != 0)
			topo_found(p, p->t->path, h->line, h->name,
				"address %.80s means %.20s here (/etc/hosts?): engines on other hosts "
				"cannot reach it",
				h->address, at->ifa_name);
	}
	if (all != NULL)
		freeifaddrs(all);
	if (found != NULL)
		freeaddrinfo(found);
}

/* --- what an engine needs
 * ------------------------------------------------------------------------ */

static void
check_program(struct topo_plan *p, const struct topo_engine *e)
{
	const struct topo_text *program = &e->argv.v[0];
	bool ours = program->file == p->t->path;
	struct stat st;
	int error = 0;

	if (stat(program->text, &st) != 0 || access(program->text, X_OK) != 0)
		error = errno;
	else if (!S_ISREG(st.st_mode))
		error = EACCES;
	if (error != 0)
		topo_found(p, p->t->path, ours ? program->line : topo_line(p->t, "engine.kind"),
			"engine", "%.200s: %s", program->text, strerror(error));
}

static void
check_model(struct topo_plan *p)
{
	if (p->t->model[0] == '/' && access(p->t->model, R_OK) != 0)
		topo_found(p, p->t->path, topo_line(p->t, "model.path"), "model.path", "%.200s: %s",
			p->t->model, strerror(errno));
}

static void
check_rdma(struct topo_plan *p, const struct topo_host *h)
{
	char *devices = mem_strdup(h->rdma), *rest = NULL, *path;

	for (char *d = devices != NULL ? strtok_r(devices, ",", &rest) : NULL; d != NULL;
		d = strtok_r(NULL, ",", &rest)) {
		path = mem_printf(RDMA_DEVICES "%.*s", (int)strcspn(d, ":"), d);
		if (access(path, F_OK) != 0)
			topo_found(p, p->t->path, h->line, h->name,
				"this host has no RDMA device %.80s (" RDMA_DEVICES ")", d);
		free(path);
	}
	free(devices);
}

/* --- disks
 * --------------------------------------------------------------------------------------- */

static const struct topo_text *
variable(const struct topo_engine *e, const char *name)
{
	for (size_t i = 0; name != NULL && i < e->env.n; i++)
		if (strcmp(e->env.v[i].name, name) == 0)
			return &e->env.v[i].value;
	return NULL;
}

/* The path in SCHEME[HOST]/PATH, or NULL: the engine has no such disk. */
static const char *
path_of(const struct topo_engine *e, const struct topo_disk *d)
{
	const struct topo_text *value = variable(e, d->variable);
	size_t n = strlen(d->scheme);

	return value != NULL && strncmp(value->text, d->scheme, n) == 0
		       ? strchr(value->text + n, '/')
		       : NULL;
}

/* What all engines of the host want of the file system, in GiB. */
static double
wanted(const struct topo_plan *p, const struct topo_host *h, const struct topo_disk *d,
	unsigned long fsid)
{
	const struct topo_text *size;
	struct statvfs fs;
	const char *path;
	double gib = 0;

	for (size_t i = 0; i < p->nengines; i++) {
		if (p->engines[i].host != h)
			continue;
		path = path_of(&p->engines[i], d);
		size = variable(&p->engines[i], d->size);
		if (path != NULL && size != NULL && statvfs(path, &fs) == 0 && fs.f_fsid == fsid)
			gib += strtod(size->text, NULL);
	}
	return gib;
}

static void
check_disk(struct topo_plan *p, const struct topo_engine *e, const struct topo_disk *d)
{
	const char *path = path_of(e, d);
	struct statvfs fs;
	double want, have;

	if (path == NULL)
		return;
	if (statvfs(path, &fs) != 0) {
		topo_found(p, p->t->path, variable(e, d->variable)->line, topo_role_name(e->role),
			"%.60s: %.200s: %s", d->variable, path, strerror(errno));
		return;
	}
	want = wanted(p, e->host, d, fs.f_fsid);
	have = (double)fs.f_bavail * (double)fs.f_frsize / GIB;
	if (want > have)
		topo_found(p, p->t->path, variable(e, d->variable)->line, topo_role_name(e->role),
			"%.60s: %.200s has %.0f GiB left, but the engines of this host want %.0f GiB",
			d->variable, path, have, want);
}

void
this_host_check(struct topo_plan *p, const struct topo_host *h)
{
	/* a path in a container is none of this host */
	const struct topo_connector *c = p->container == NULL ? p->connector : NULL;

	check_address(p, h);
	check_rdma(p, h);
	for (size_t i = 0; i < p->nengines; i++) {
		const struct topo_engine *e = &p->engines[i];

		if (e->host != h)
			continue;
		check_model(p);
		check_program(p, e);
		for (size_t k = 0; c != NULL && k < c->ndisks; k++)
			check_disk(p, e, &c->disks[k]);
	}
	topo_findings_sort(p);
}
