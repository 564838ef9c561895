#include "master/pdfleet/host.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const struct topo_host *
by_machine_name(const struct topology *t)
{
	char name[256] = "";
	const struct topo_host *h;

	(void)gethostname(name, sizeof(name) - 1);
	h = topo_host(t, name);
	name[strcspn(name, ".")] = '\0';
	return h != NULL ? h : topo_host(t, name);
}

static bool
has_address(const struct ifaddrs *all, const char *address)
{
	char text[NI_MAXHOST];
	bool yes = false;

	for (const struct ifaddrs *i = all; i != NULL && !yes; i = i->ifa_next) {
		const int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
		const socklen_t n = family == AF_INET    ? sizeof(struct sockaddr_in)
				    : family == AF_INET6 ? sizeof(struct sockaddr_in6)
							 : 0;

		if (n > 0 && getnameinfo(i->ifa_addr, n, text, sizeof(text), NULL, 0,
				     NI_NUMERICHOST) == 0)
			yes = strcmp(text, address) == 0;
	}
	return yes;
}

/* NULL: none, or more than one. */
static const struct topo_host *
by_address(const struct topology *t)
{
	const struct topo_host *found = NULL;
	struct ifaddrs *all = NULL;
	size_t n = 0;

	if (getifaddrs(&all) != 0)
		return NULL;
	for (size_t i = 0; i < t->nhosts; i++)
		if (has_address(all, t->hosts[i].address)) {
			found = &t->hosts[i];
			n++;
		}
	freeifaddrs(all);
	return n == 1 ? found : NULL;
}

const struct topo_host *
host_find(const struct topology *t, const char *name)
{
	const struct topo_host *h = name != NULL ? topo_host(t, name) : by_machine_name(t);

	if (name == NULL && h == NULL)
		h = by_address(t);
	if (h == NULL && name != NULL)
		(void)fprintf(stderr, "%s: no host is named %s\n", t->path, name);
	else if (h == NULL)
		(void)fprintf(stderr,
			"%s: no host has the name of this machine, or alone an address of it: "
			"write --host NAME\n",
			t->path);
	return h;
}
