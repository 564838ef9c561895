/*
 * Everything a child inherits over fork.  One struct, nothing global: what is not in here is closed
 * (close_range) and not used by the child.
 *
 * Process: filled by the master just before fork, read by the child.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "shm/base/conf.h"

struct seg;

/* Where the notifier sends notices that belong to the requests of an older instance. */
struct notices_to {
	uint32_t instance;
	int fd; /* SOCK_SEQPACKET, non-blocking */
};

/* A listening socket. */
struct door_fd {
	int fd;
	enum door door;
	enum transport transport;
};

/* Whose rights a child has. */
struct identity {
	uid_t uid;
	gid_t gid;
	enum identity_change {
		IDENTITY_STAYS,  /* they are the master's own */
		IDENTITY_CHANGES /* the master is root, and may give them */
	} change;
};

/* The columns of the table of system calls that children may make. */
/* A notifier that subscribes to KV events may connect: it is SANDBOX_SUBSCRIBER. */
enum sandbox { SANDBOX_WORKER, SANDBOX_NOTIFIER, SANDBOX_EXPORTER, SANDBOX_SUBSCRIBER, SANDBOX_N };

/* Exit codes of children; any other, or a signal, means "respawn me with back-off". */
enum child_exit { CHILD_EXIT_OK = 0, CHILD_EXIT_FAILED = 1, CHILD_EXIT_NO_RESPAWN = 2 };

/* One byte each over the socketpair `channel`. */
enum channel_msg {
	CH_READY = 'R', /* child -> master: the child can serve */
	CH_SERVE = 'S', /* master -> worker: its configuration is in force, it may accept */
	CH_DRAIN = 'D', /* master -> child: stop accepting, finish, exit 0 */
	/* master -> child: drain time is over: end what is left with an error, exit 0 */
	CH_QUIT = 'Q',
};

struct heritage {
	const struct conf *conf;
	struct seg *seg;
	uint32_t slot;       /* process slot in shared memory */
	uint32_t generation; /* of the configuration; in log lines */
	pid_t master_pid;
	/* socketpair to the master, non-blocking; its end of file: the master is gone */
	int channel;
	const struct door_fd *listen; /* workers: non-blocking, shared with all others */
	size_t nlisten;
	/* eventfd of each process slot (seg_nslots), non-blocking; own one: [slot] */
	const int *wake_fds;
	/* The notifier of an instance that was replaced reads notices here and has no ZMQ socket; 0: it has.
	 * Else where it sends notices for older instances. */
	int notices_from;
	const struct notices_to *notices_to;
	size_t nnotices_to;
	const char *version; /* of the program, for /version and build_info */
	const struct identity *as;
	enum sandbox kind;
	/* The child calls it when it has opened all that it needs and before it serves: from then on it can make only
	 * the system calls of its kind. */
	void (*enter_sandbox)(const struct heritage *);
};
