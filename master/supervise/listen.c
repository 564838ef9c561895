#include "master/supervise/listen.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "master/probe/resolve.h"
#include "master/supervise/inherit.h"
#include "master/supervise/sd.h"
#include "master/supervise/unix_socket.h"
#include "shm/base/conf.h"
#include "shm/base/lockfile.h"
#include "shm/base/log.h"
#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/table.h"

#define BACKLOG 4096 /* the kernel lowers it to net.core.somaxconn */

/* Who needs the socket.  Only one that no other process needs is shut down when it is dropped. */
enum owner {
	OWNER_US,
	OWNER_OTHER, /* another instance may still have to accept on it */
	OWNER_SYSTEMD,
};

struct listener {
	TAILQ_ENTRY(listener) link;
	struct ep_addr addr;   /* family AF_UNIX: see file */
	struct unix_file file; /* path "": it is gone, or another process's */
	int fd;
	enum owner owner;
};
TAILQ_HEAD(listener_list, listener);

/* A host name of an entry, with the addresses of its first lookup. */
struct name {
	TAILQ_ENTRY(name) link;
	char *text; /* the entry */
	struct ep_addr *addrs;
	size_t n;
};
TAILQ_HEAD(name_list, name);

struct listeners {
	struct resolver *resolver;
	struct listener_list list;
	struct name_list names;
	/* of the active listeners_open(); conf == NULL: none is active */
	const struct conf *conf;
	listen_done *done;
	void *arg;
	size_t next; /* index of the entry that is being opened: conf_listen_at() */
	struct lookup *lookup;
	struct door_fd *fds;
	size_t nfds;
	struct listen_error error;
};

static void
addr_text(const struct ep_addr *a, char out[INET6_ADDRSTRLEN + 10])
{
	char ip[INET6_ADDRSTRLEN];

	(void)inet_ntop(a->family, a->ip, ip, sizeof(ip));
	(void)snprintf(out, INET6_ADDRSTRLEN + 10, a->family == AF_INET6 ? "[%s]:%u" : "%s:%u", ip,
		a->port);
}

/* The IP address that a socket is bound to; false if the socket is not TCP over IP. */
static bool
ip_of(int fd, struct ep_addr *ret)
{
	struct sockaddr_storage ss = {0};
	socklen_t len = sizeof(ss);

	memset(ret, 0, sizeof(*ret));
	if (getsockname(fd, (struct sockaddr *)&ss, &len) == -1)
		return false;
	if (ss.ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)&ss;

		ret->port = ntohs(in->sin_port);
		memcpy(ret->ip, &in->sin_addr, sizeof(in->sin_addr));
	} else if (ss.ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)&ss;

		ret->port = ntohs(in6->sin6_port);
		ret->scope = in6->sin6_scope_id;
		memcpy(ret->ip, &in6->sin6_addr, sizeof(in6->sin6_addr));
	} else {
		return false;
	}
	ret->family = ss.ss_family;
	return true;
}

/* NULL: the socket has no address, or its file is gone. */
static struct listener *
listener_add(struct listeners *ls, enum owner owner, int fd)
{
	struct listener *l = MEM_NEW(struct listener);

	l->owner = owner;
	l->fd = fd;
	if (unix_socket_file(fd, &l->file)) {
		l->addr.family = AF_UNIX;
	} else if (!ip_of(fd, &l->addr)) {
		free(l);
		return NULL;
	}
	TAILQ_INSERT_TAIL(&ls->list, l, link);
	return l;
}

static void
say(const char *event, const char *by, const struct listener *l)
{
	char ip[INET6_ADDRSTRLEN + 10];
	const char *text = l->file.path;

	if (l->addr.family != AF_UNIX) {
		addr_text(&l->addr, ip);
		text = ip;
	}
	if (by != NULL)
		log_info(event, LOG_S("by", by), LOG_S("address", text));
	else
		log_info(event, LOG_S("address", text));
}

/* Whether clients reach the socket by its file. */
static bool
has_file(const struct listener *l)
{
	return l->file.path[0] != '\0' && unix_file_is_there(&l->file);
}

static void
listener_drop(struct listeners *ls, struct listener *l)
{
	if (l->owner == OWNER_US && has_file(l))
		(void)unlink(l->file.path);
	/* a worker that has yet to drain holds the descriptor too: after close() alone the port would still accept */
	if (l->owner == OWNER_US)
		(void)shutdown(l->fd, SHUT_RDWR);
	(void)close(l->fd);
	TAILQ_REMOVE(&ls->list, l, link);
	free(l);
}

static void
name_add(struct listeners *ls, const char *text, const struct ep_addr *addrs, size_t n)
{
	struct name *nm = MEM_NEW(struct name);

	nm->text = mem_strdup(text);
	nm->addrs = mem_array(n, sizeof(*addrs));
	memcpy(nm->addrs, addrs, n * sizeof(*addrs));
	nm->n = n;
	TAILQ_INSERT_TAIL(&ls->names, nm, link);
}

static const struct name *
name_find(const struct listeners *ls, const char *text)
{
	for (const struct name *nm = TAILQ_FIRST(&ls->names); nm != NULL; nm = TAILQ_NEXT(nm, link))
		if (strcmp(nm->text, text) == 0)
			return nm;
	return NULL;
}

static void
name_drop(struct listeners *ls, struct name *nm)
{
	TAILQ_REMOVE(&ls->names, nm, link);
	free(nm->text);
	free(nm->addrs);
	free(nm);
}

static void
adopt(struct listeners *ls, int fd, enum owner owner)
{
	const char *by = owner == OWNER_SYSTEMD ? "systemd" : "the older instance";
	const struct listener *l = NULL;

	if (sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) > 0)
		l = listener_add(ls, owner, fd);
	if (l == NULL) {
		log_warn("a passed descriptor is not a listening socket with an address: not used",
			LOG_S("by", by), LOG_I("fd", fd));
		(void)close(fd);
		return;
	}
	(void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
	(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	say("socket passed", by, l);
}

struct listeners *
listeners_new(struct resolver *resolver, const struct inherit *in)
{
	struct listeners *ls = MEM_NEW(struct listeners);
	char **names = NULL;
	int n = sd_listen_fds_with_names(1, &names);

	ls->resolver = resolver;
	TAILQ_INIT(&ls->list);
	TAILQ_INIT(&ls->names);
	for (int i = 0; i < n; i++)
		adopt(ls, SD_LISTEN_FDS_START + i,
			strcmp(names[i], SD_STORED) == 0 ? OWNER_US : OWNER_SYSTEMD);
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	for (size_t i = 0; i < in->nlisten; i++)
		adopt(ls, in->listen[i].fd, in->listen[i].ours ? OWNER_OTHER : OWNER_SYSTEMD);
	return ls;
}

void
listeners_free(struct listeners **pls)
{
	struct listeners *ls = *pls;

	if (ls == NULL)
		return;
	listeners_cancel(ls);
	while (!TAILQ_EMPTY(&ls->list))
		listener_drop(ls, TAILQ_FIRST(&ls->list));
	while (!TAILQ_EMPTY(&ls->names))
		name_drop(ls, TAILQ_FIRST(&ls->names));
	free(ls);
	*pls = NULL;
}

bool
listeners_pass(const struct listeners *ls, struct inherit *in)
{
	const struct listener *l;

	for (l = TAILQ_FIRST(&ls->list); l != NULL; l = TAILQ_NEXT(l, link)) {
		if (in->nlisten == INHERIT_LISTEN_MAX) {
			log_error("more listening sockets than a new instance can be passed",
				LOG_U("most", INHERIT_LISTEN_MAX));
			return false;
		}
		in->listen[in->nlisten].fd = l->fd;
		in->listen[in->nlisten++].ours = l->owner != OWNER_SYSTEMD;
	}
	return true;
}

void
listeners_own(struct listeners *ls)
{
	struct listener *l;

	TAILQ_FOREACH(l, &ls->list, link)
	if (l->owner == OWNER_OTHER)
		l->owner = OWNER_US;
}

void
listeners_store(const struct listeners *ls, const struct sd *sd)
{
	const struct listener *l;

	TAILQ_FOREACH(l, &ls->list, link)
	if (l->owner == OWNER_US)
		sd_store(sd, l->fd);
}

void
listeners_leave(struct listeners *ls)
{
	while (!TAILQ_EMPTY(&ls->list)) {
		struct listener *l = TAILQ_FIRST(&ls->list);

		l->owner = OWNER_OTHER;
		listener_drop(ls, l);
	}
}

static bool
has_entry(const struct conf *conf, const char *text)
{
	const struct conf_listen *cl;
	enum listen_list list;

	for (size_t i = 0; conf != NULL && (cl = conf_listen_at(conf, i, &list)) != NULL; i++)
		if (strcmp(cl->text, text) == 0)
			return true;
	return false;
}

/* systemd has given its own sockets their permissions. */
static void
permit(const struct listeners *ls, const struct conf *conf)
{
	const struct listener *l;

	TAILQ_FOREACH(l, &ls->list, link)
	if (l->owner != OWNER_SYSTEMD && has_file(l))
		unix_socket_permit(
			"admin.listen", l->file.path, conf->admin_mode, conf->admin_group);
}

void
listeners_keep(struct listeners *ls, const struct conf *conf, const struct door_fd *fds, size_t n)
{
	struct listener *l, *next;
	struct name *nm, *next_name;

	for (l = TAILQ_FIRST(&ls->list); l != NULL; l = next) {
		size_t i = 0;

		next = TAILQ_NEXT(l, link);
		while (i < n && fds[i].fd != l->fd)
			i++;
		if (i == n && l->owner == OWNER_US)
			listener_drop(ls, l);
	}
	for (nm = TAILQ_FIRST(&ls->names); nm != NULL; nm = next_name) {
		next_name = TAILQ_NEXT(nm, link);
		if (!has_entry(conf, nm->text))
			name_drop(ls, nm);
	}
	if (conf != NULL)
		permit(ls, conf);
}

/* --- opening ------------------------------------------------------------------------------------ */

static void next_entry(struct listeners *ls);

/* The entry that is being opened; NULL: all are open. */
static const struct conf_listen *
entry(const struct listeners *ls, enum listen_list *ret_list)
{
	return conf_listen_at(ls->conf, ls->next, ret_list);
}

/* False: it is a socket for others already. */
static bool
use(struct listeners *ls, int fd)
{
	struct door_fd new = {.fd = fd};
	enum listen_list list;

	(void)entry(ls, &list);
	new.door = listen_list_door(list);
	new.transport = listen_list_transport(list);
	for (size_t i = 0; i < ls->nfds; i++)
		if (ls->fds[i].fd == fd)
			return ls->fds[i].door == new.door && ls->fds[i].transport == new.transport;
	ls->fds = mem_resize(ls->fds, ls->nfds + 1, sizeof(*ls->fds));
	ls->fds[ls->nfds++] = new;
	return true;
}

/* systemd's `ListenStream=8000` is one socket on [::] that serves IPv4 as well. */
static bool
serves_both(const struct listener *l)
{
	int only = 1;
	socklen_t len = sizeof(only);

	if (l->addr.family != AF_INET6 || memcmp(l->addr.ip, &in6addr_any, sizeof(l->addr.ip)) != 0)
		return false;
	return getsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &len) == 0 && only == 0;
}

static struct listener *
find_by_addr(struct listeners *ls, const struct ep_addr *a)
{
	static const uint8_t any[sizeof(a->ip)];

	for (struct listener *l = TAILQ_FIRST(&ls->list); l != NULL; l = TAILQ_NEXT(l, link)) {
		if (l->addr.port != a->port || a->port == 0)
			continue;
		if (l->addr.family == a->family && l->addr.scope == a->scope &&
			memcmp(l->addr.ip, a->ip, sizeof(a->ip)) == 0)
			return l;
		if (a->family == AF_INET && memcmp(a->ip, any, 4) == 0 && serves_both(l))
			return l;
	}
	return NULL;
}

/* The new socket, or -errno. */
static int
bind_listen(const struct ep_addr *a)
{
	struct sockaddr_storage ss;
	socklen_t len = ep_addr_sockaddr(a, &ss);
	int fd, one = 1, r;

	fd = socket(a->family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return -errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* a configuration may have both 0.0.0.0 and [::] with the same port */
	if (a->family == AF_INET6)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(fd, (struct sockaddr *)&ss, len) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	r = -errno;
	(void)close(fd);
	return r;
}

/* Adds the socket to those of the configuration.  0, or -errno with ls->error written. */
static int
take(struct listeners *ls, const char *text, const struct listener *l)
{
	if (use(ls, l->fd))
		return 0;
	(void)snprintf(ls->error.text, sizeof(ls->error.text),
		"%s: this address is in two of `listen`, `tls.listen` and `admin.listen`", text);
	return -EADDRINUSE;
}

/* As take(). */
static int
open_addr(struct listeners *ls, const char *text, const struct ep_addr *a)
{
	char shown[INET6_ADDRSTRLEN + 10];
	struct listener *l = find_by_addr(ls, a);
	int fd;

	if (l == NULL) {
		fd = bind_listen(a);
		if (fd < 0) {
			addr_text(a, shown);
			(void)snprintf(ls->error.text, sizeof(ls->error.text),
				"%s: cannot listen on %s: %s", text, shown, strerror(-fd));
			return fd;
		}
		l = listener_add(ls, OWNER_US, fd);
		assert(l != NULL);
		say("listening", NULL, l);
	}
	return take(ls, text, l);
}

/* A socket whose file is gone, such as one that systemd has kept while it removed the directory, is of no use. */
static struct listener *
find_by_path(struct listeners *ls, const char *path)
{
	struct listener *l;

	TAILQ_FOREACH(l, &ls->list, link)
	if (strcmp(l->file.path, path) == 0) {
		if (has_file(l))
			return l;
		l->file.path[0] = '\0';
	}
	return NULL;
}

/* The new socket, or -errno.  Of two routers that start at the same time one gets the path: the lock is held until the
 * socket listens, and from then on the other one finds that it is answered. */
static int
bind_path(const char *path)
{
	int lock, fd;

	unix_socket_directory(path);
	lock = lockfile_take(path);
	if (lock < 0)
		return lock;
	fd = unix_socket_listen(path, BACKLOG);
	(void)close(lock);
	return fd;
}

/* As take(). */
static int
open_path(struct listeners *ls, const char *text, const char *path)
{
	struct listener *l = find_by_path(ls, path);

	if (l == NULL) {
		const int fd = bind_path(path);

		if (fd >= 0)
			l = listener_add(ls, OWNER_US, fd);
		if (fd >= 0 && l == NULL) /* another process has removed the file at this moment */
			(void)close(fd);
		if (l == NULL) {
			(void)snprintf(ls->error.text, sizeof(ls->error.text),
				"%s: cannot listen: %s", text,
				fd == -EWOULDBLOCK ? "another process listens there"
						   : strerror(fd < 0 ? -fd : ENOENT));
			return fd < 0 ? fd : -ENOENT;
		}
		say("listening", NULL, l);
	}
	return take(ls, text, l);
}

/*
 * Opens all addresses of one entry.  Names and ":port" stand for IPv4 and IPv6: a family that this machine
 * does not have is skipped if the other family works.
 */
static int
open_addrs(struct listeners *ls, const char *text, const struct ep_addr *addrs, size_t n)
{
	size_t opened = 0;

	for (size_t i = 0; i < n; i++) {
		int r = open_addr(ls, text, &addrs[i]);

		if (r == 0)
			opened++;
		else if (r != -EAFNOSUPPORT && r != -EADDRNOTAVAIL)
			return r;
	}
	return opened > 0 ? 0 : -EADDRNOTAVAIL;
}

static void
finish(struct listeners *ls, bool ok)
{
	struct door_fd *fds = ok ? ls->fds : NULL;
	size_t n = ok ? ls->nfds : 0;

	if (!ok)
		(void)entry(ls, &ls->error.list);

	if (!ok)
		free(ls->fds);
	ls->fds = NULL;
	ls->nfds = 0;
	ls->conf = NULL;
	ls->done(ls->arg, fds, n, ok ? NULL : &ls->error);
}

/* `r`: of the entry that is being opened. */
static void
tried(struct listeners *ls, int r)
{
	if (r != 0) {
		finish(ls, false);
		return;
	}
	ls->next++;
	next_entry(ls);
}

static void
opened(struct listeners *ls, const struct ep_addr *addrs, size_t n)
{
	enum listen_list list;

	tried(ls, open_addrs(ls, entry(ls, &list)->text, addrs, n));
}

static void
on_resolved(const struct ep_addr *addrs, size_t n, const char *error, void *arg)
{
	struct listeners *ls = arg;
	enum listen_list list;
	const char *text = entry(ls, &list)->text;

	if (n == 0) {
		(void)snprintf(ls->error.text, sizeof(ls->error.text), "%s: %s", text, error);
		finish(ls, false);
		return;
	}
	name_add(ls, text, addrs, n);
	opened(ls, addrs, n);
}

static void
next_entry(struct listeners *ls)
{
	struct ep_addr addrs[2] = {{.family = AF_INET}, {.family = AF_INET6}};
	enum listen_list list;
	const struct conf_listen *cl = entry(ls, &list);
	const struct name *nm;

	if (cl == NULL) {
		finish(ls, true);
		return;
	}
	nm = name_find(ls, cl->text);
	if (conf_listen_path(cl) != NULL) {
		tried(ls, open_path(ls, cl->text, conf_listen_path(cl)));
	} else if (cl->host[0] == '\0') {
		addrs[0].port = addrs[1].port = cl->port;
		opened(ls, addrs, 2);
	} else if (resolve_literal(cl->host, cl->port, &addrs[0])) {
		opened(ls, addrs, 1);
	} else if (nm != NULL) {
		opened(ls, nm->addrs, nm->n);
	} else {
		resolve_start(ls->resolver, cl->host, cl->port, on_resolved, ls, &ls->lookup);
	}
}

void
listeners_open(struct listeners *ls, const struct conf *conf, listen_done *done, void *arg)
{
	assert(ls->conf == NULL);
	ls->conf = conf;
	ls->done = done;
	ls->arg = arg;
	ls->next = 0;
	ls->error.text[0] = '\0';
	next_entry(ls);
}

void
listeners_cancel(struct listeners *ls)
{
	resolve_cancel(&ls->lookup);
	free(ls->fds);
	ls->fds = NULL;
	ls->nfds = 0;
	ls->conf = NULL;
}
