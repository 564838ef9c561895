/*
 * Listening unix sockets: their files, and who may connect.
 *
 * Process: master.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#define UNIX_SOCKET_PATH sizeof(((struct sockaddr_un *)0)->sun_path)

/* The file of a socket.  Another file at the same path is not this one. */
struct unix_file {
	char path[UNIX_SOCKET_PATH];
	dev_t dev;
	ino_t ino;
};

/*
 * Makes a listening, non-blocking socket for the process's user only, and the last directory of the path if missing.
 * The file of a process that has died is replaced.  The caller holds the path's lock (shm/base/lockfile.h).  Returns the
 * descriptor, -EWOULDBLOCK if a process listens there, or another -errno.
 */
int unix_socket_listen(const char *path, int backlog);
/* Makes the last directory of the path; a failure is the next step's to report. */
void unix_socket_directory(const char *path);
/* The file that the socket is bound to, as it is now.  False: the socket has no path, or its file is gone. */
bool unix_socket_file(int fd, struct unix_file *ret);
/* The file is there still. */
bool unix_file_is_there(const struct unix_file *f);
/* Permissions and group (NULL: that of the process).  A failure is logged under `what`, and only the owner can connect
 * then. */
void unix_socket_permit(const char *what, const char *path, uint32_t mode, const char *group);
