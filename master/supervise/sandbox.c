#include "master/supervise/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <seccomp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <termios.h>
#include <unistd.h>

#include "shm/base/conf.h"
#include "shm/base/log.h"
#include "shm/core/heritage.h"
#include "shm/core/seg.h"

/* A sanitizer's run time makes calls of its own: it reads /proc, and looks for leaks from a clone with ptrace. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FILTERED false
#else
#define FILTERED true
#endif

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

enum effect {
	KILL, /* ends the process: no row says it, it is what the table leaves out */
	PASS,
	DENY, /* EACCES: libraries try it, and do without */
};

#define CONDITIONS 3
struct condition {
	unsigned arg;  /* 1 for the first; 0: no further condition */
	uint64_t mask; /* the bits that are compared */
	uint64_t value;
};

/* clang-format off */
/* Of an int the kernel reads the low 32 bits. */
#define IS(n, wanted) {(n), UINT32_MAX, (uint32_t)(wanted)}
#define HAS(n, bits) {(n), (bits), (bits)}
#define HAS_NOT(n, bits) {(n), (bits), 0}
#define IS_NULL(n) {(n), UINT64_MAX, 0}
#define IS_STREAM(n) {(n), 0xf /* the kernel's SOCK_TYPE_MASK */, SOCK_STREAM}
#define IS_DATAGRAM(n) {(n), 0xf, SOCK_DGRAM}
#define IS_SELF(n) {(n), UINT32_MAX, SELF}
#define SELF UINT64_MAX /* stands for the process's own id */

/* Whatever may change a file, or make one. */
#define WRITES (O_ACCMODE | O_CREAT | O_TRUNC | O_APPEND | (O_TMPFILE & ~O_DIRECTORY))

/*
 * A call may have several rows: one that fits is enough.  Each child has made all its threads, files and listening
 * sockets before, so there is no clone, no bind, and no file to open.
 */
static const struct rule {
	int call;
	enum effect of[SANDBOX_N];
	struct condition when[CONDITIONS];
} rules[] = {
#define ROW(name, worker, notifier, exporter, ...) \
	{ SCMP_SYS(name), { [SANDBOX_WORKER] = worker, [SANDBOX_NOTIFIER] = notifier, [SANDBOX_SUBSCRIBER] = notifier, \
		[SANDBOX_EXPORTER] = exporter }, { __VA_ARGS__ } }
/* ... and of one kind alone */
#define ONLY(name, kind, effect, ...) \
	{ SCMP_SYS(name), { [SANDBOX_##kind] = effect }, { __VA_ARGS__ } }
	/* a call				worker	notifier exporter if */
	/* what both are made of */
	ROW(read,				PASS,	PASS,	PASS,	),
	ROW(readv,				PASS,	PASS,	PASS,	),
	ROW(write,				PASS,	PASS,	PASS,	),
	ROW(writev,				PASS,	PASS,	PASS,	),
	ROW(pwritev2,				PASS,	PASS,	PASS,	IS(1, STDERR_FILENO)), /* the log */
	ROW(close,				PASS,	PASS,	PASS,	),
	ROW(recvfrom,				PASS,	PASS,	PASS,	),
	ROW(recvmsg,				PASS,	PASS,	PASS,	),
	ROW(sendto,				PASS,	PASS,	PASS,	),
	ROW(sendmsg,				PASS,	PASS,	PASS,	),
	ROW(shutdown,				PASS,	PASS,	PASS,	),
	ROW(accept,				PASS,	PASS,	KILL,	),
	ROW(accept4,				PASS,	PASS,	KILL,	),
	ROW(getsockname,			PASS,	PASS,	PASS,	),
	ROW(getpeername,			PASS,	PASS,	PASS,	),
	ROW(getsockopt,				PASS,	PASS,	PASS,	),
	ROW(setsockopt,				PASS,	PASS,	PASS,	),
	ROW(epoll_ctl,				PASS,	PASS,	PASS,	),
	ROW(epoll_wait,				PASS,	PASS,	PASS,	),
	ROW(epoll_pwait,			PASS,	PASS,	PASS,	),
	ROW(epoll_pwait2,			PASS,	PASS,	PASS,	),
	ROW(poll,				PASS,	PASS,	PASS,	),
	ROW(ppoll,				PASS,	PASS,	PASS,	),
	ROW(fcntl,				PASS,	PASS,	PASS,	IS(2, F_GETFD)),
	ROW(fcntl,				PASS,	PASS,	PASS,	IS(2, F_SETFD)),
	ROW(fcntl,				PASS,	PASS,	PASS,	IS(2, F_GETFL)),
	ROW(fcntl,				PASS,	PASS,	PASS,	IS(2, F_SETFL)),
	ROW(ioctl,				PASS,	PASS,	PASS,	IS(2, FIONREAD)),
	ROW(ioctl,				PASS,	PASS,	PASS,	IS(2, FIONBIO)),
	ROW(ioctl,				PASS,	PASS,	PASS,	IS(2, TCGETS)), /* stdio: is it a terminal? */
	ROW(fstat,				PASS,	PASS,	PASS,	),
	ROW(newfstatat,				PASS,	PASS,	PASS,	HAS(4, AT_EMPTY_PATH)),
	ROW(lseek,				PASS,	PASS,	PASS,	),
	/* memory, none that can be executed */
	ROW(brk,				PASS,	PASS,	PASS,	),
	ROW(mmap,				PASS,	PASS,	PASS,	HAS_NOT(3, PROT_EXEC)),
	ROW(mprotect,				PASS,	PASS,	PASS,	HAS_NOT(3, PROT_EXEC)),
	ROW(munmap,				PASS,	PASS,	PASS,	),
	ROW(mremap,				PASS,	PASS,	PASS,	),
	ROW(madvise,				PASS,	PASS,	PASS,	),
	/* time, chance, the machine */
	ROW(clock_gettime,			PASS,	PASS,	PASS,	),
	ROW(clock_getres,			PASS,	PASS,	PASS,	),
	ROW(clock_nanosleep,			PASS,	PASS,	PASS,	),
	ROW(nanosleep,				PASS,	PASS,	PASS,	),
	ROW(gettimeofday,			PASS,	PASS,	PASS,	),
	ROW(time,				PASS,	PASS,	PASS,	),
	ROW(getrandom,				PASS,	PASS,	PASS,	),
	ROW(getcpu,				PASS,	PASS,	PASS,	),
	ROW(sysinfo,				PASS,	PASS,	PASS,	),
	ROW(uname,				PASS,	PASS,	PASS,	),
	ROW(sched_getaffinity,			PASS,	PASS,	PASS,	),
	ROW(sched_yield,			PASS,	PASS,	PASS,	),
	ROW(prlimit64,				PASS,	PASS,	PASS,	IS(1, 0), IS_NULL(3)),
	ROW(getrlimit,				PASS,	PASS,	PASS,	),
	/* who it is, its signals, its end */
	ROW(getpid,				PASS,	PASS,	PASS,	),
	ROW(getppid,				PASS,	PASS,	PASS,	),
	ROW(gettid,				PASS,	PASS,	PASS,	),
	ROW(getuid,				PASS,	PASS,	PASS,	),
	ROW(geteuid,				PASS,	PASS,	PASS,	),
	ROW(getgid,				PASS,	PASS,	PASS,	),
	ROW(getegid,				PASS,	PASS,	PASS,	),
	ROW(prctl,				PASS,	PASS,	PASS,	IS(1, PR_SET_NAME)),
	ROW(prctl,				PASS,	PASS,	PASS,	IS(1, PR_SET_VMA)), /* newer C libraries name their memory */
	ROW(rt_sigaction,			PASS,	PASS,	PASS,	),
	ROW(rt_sigprocmask,			PASS,	PASS,	PASS,	),
	ROW(rt_sigreturn,			PASS,	PASS,	PASS,	),
	ROW(sigaltstack,			PASS,	PASS,	PASS,	),
	ROW(tgkill,				PASS,	PASS,	PASS,	IS_SELF(1)),
	ROW(restart_syscall,			PASS,	PASS,	PASS,	),
	ROW(futex,				PASS,	PASS,	PASS,	),
	ROW(exit,				PASS,	PASS,	PASS,	),
	ROW(exit_group,				PASS,	PASS,	PASS,	),
	/* connections to engines, and to the collector */
	ROW(socket,				PASS,	KILL,	PASS,	IS(1, AF_INET),  IS_STREAM(2), IS(3, 0)),
	ROW(socket,				PASS,	KILL,	PASS,	IS(1, AF_INET6), IS_STREAM(2), IS(3, 0)),
	ROW(connect,				PASS,	KILL,	PASS,	),
	/* libzmq's threads, which may just have begun */
	ROW(rseq,				KILL,	PASS,	KILL,	),
	ROW(set_robust_list,			KILL,	PASS,	KILL,	),
	ROW(sched_getparam,			KILL,	PASS,	KILL,	),
	ROW(sched_getscheduler,			KILL,	PASS,	KILL,	),
	ROW(sched_setscheduler,			KILL,	PASS,	KILL,	),
	/* the name of a peer's interface (fe80::1%eth0): the C library tries one kind of socket after the other */
	ONLY(socket, NOTIFIER,	DENY,	),
	ONLY(socket, SUBSCRIBER,	DENY,	IS(1, AF_UNIX)),
	ONLY(socket, SUBSCRIBER,	DENY,	IS(1, AF_NETLINK)),
	ONLY(socket, SUBSCRIBER,	DENY,	IS_DATAGRAM(2)),
	/* subscriptions to KV events: libzmq connects, and wakes its threads */
	ONLY(socket, SUBSCRIBER,	PASS,	IS(1, AF_INET),  IS_STREAM(2), IS(3, IPPROTO_TCP)),
	ONLY(socket, SUBSCRIBER,	PASS,	IS(1, AF_INET6), IS_STREAM(2), IS(3, IPPROTO_TCP)),
	ONLY(connect, SUBSCRIBER,	PASS,	),
	ONLY(eventfd2, SUBSCRIBER,	PASS,	),
	/* time zones, message catalogues, the number of CPUs: a library reads them, or does without */
	ROW(openat,				DENY,	DENY,	DENY,	HAS_NOT(3, WRITES)),
#undef ONLY
#undef ROW
};
/* clang-format on */

static uint32_t
action_of(enum effect e)
{
	return e == PASS ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(EACCES);
}

static int
add(scmp_filter_ctx filter, const struct rule *rule, enum sandbox kind)
{
	struct scmp_arg_cmp cmp[CONDITIONS];
	unsigned n = 0;
	int r;

	if (rule->of[kind] == KILL)
		return 0;
	for (const struct condition *c = rule->when; n < CONDITIONS && c->arg != 0; c++)
		cmp[n++] = SCMP_CMP64(c->arg - 1, SCMP_CMP_MASKED_EQ, c->mask,
			c->value == SELF ? (uint64_t)getpid() : c->value);
	r = seccomp_rule_add_array(filter, action_of(rule->of[kind]), rule->call, n, cmp);
	return r == -EDOM ? 0 : r; /* this machine has no such call */
}

/* Calls by the numbers of another machine (int 0x80, x32) end the process, too. */
static int
fill(scmp_filter_ctx filter, enum sandbox kind)
{
	int r = seccomp_attr_set(filter, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);

	if (r == 0) /* all threads of the process */
		r = seccomp_attr_set(filter, SCMP_FLTATR_CTL_TSYNC, 1);
	if (r == 0) /* its own error in place of one for all */
		r = seccomp_attr_set(filter, SCMP_FLTATR_API_SYSRAWRC, 1);
	for (size_t i = 0; r == 0 && i < sizeof(rules) / sizeof(rules[0]); i++)
		r = add(filter, &rules[i], kind);
	return r;
}

static int
load(enum sandbox kind)
{
	scmp_filter_ctx filter;
	int r;

	if (!FILTERED)
		return -EOPNOTSUPP;
	/* a trap and not the kernel's own kill: the handler can still say which call it was */
	filter = seccomp_init(SCMP_ACT_TRAP);
	if (filter == NULL)
		return -ENOMEM;
	r = fill(filter, kind);
	if (r == 0)
		r = seccomp_load(filter);
	seccomp_release(filter);
	return r;
}

/* What the handler reads: it has no other argument. */
static const struct heritage *reporter;

/* The call was not made.  The process ends by the same signal, whose handler is reset (SA_RESETHAND). */
static void
on_forbidden_call(int sig, siginfo_t *info, void *context)
{
	(void)context;
	proc_forbidden_set(reporter->seg, reporter->slot, (uint32_t)info->si_syscall);
	(void)raise(sig);
}

void
sandbox_enter(const struct heritage *h)
{
	const enum sandbox kind =
		h->kind == SANDBOX_NOTIFIER &&
				(h->conf->kv_event_ranks > 0 || h->conf->nsiblings_routers > 0)
			? SANDBOX_SUBSCRIBER
			: h->kind;
	struct sigaction on_call = {
		.sa_sigaction = on_forbidden_call, .sa_flags = SA_SIGINFO | SA_RESETHAND};
	int r;

	if (!h->conf->sandbox)
		return;
	reporter = h;
	(void)sigaction(SIGSYS, &on_call, NULL);
	r = load(kind);
	if (r == 0)
		proc_sandboxed_set(h->seg, h->slot);
	else
		log_info("system calls are not filtered", LOG_S("error", strerrordesc_np(-r)));
}

int
sandbox_possible(void)
{
	if (!FILTERED)
		return -EOPNOTSUPP;
	/* seccomp(2): a kernel that knows the flag and lets it be used reads the filter, at address 0 */
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL) == 0)
		return 0;
	return errno == EFAULT ? 0 : -errno;
}

char *
sandbox_call_name(uint32_t call)
{
	return seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, (int)call);
}
