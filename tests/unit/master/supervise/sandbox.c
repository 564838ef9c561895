/* The filter of system calls: what it stops, what it lets pass, and what it reports. */
#include "master/supervise/sandbox.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <netinet/in.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/conf.h"
#include "shm/core/heritage.h"
#include "shm/core/seg.h"

#define SLOT 1
#define WORKER (1u << SANDBOX_WORKER)
#define NOTIFIER (1u << SANDBOX_NOTIFIER)
#define EXPORTER (1u << SANDBOX_EXPORTER)
#define SUBSCRIBER (1u << SANDBOX_SUBSCRIBER)
#define ALL (WORKER | NOTIFIER | EXPORTER | SUBSCRIBER)

static const struct conf guarded = {.sandbox = 1}, open_to_all = {.sandbox = 0};
static struct seg *seg;
static long page; /* of memory, before the filter */

static void
setup(void)
{
	const struct seg_sizes sizes = {.max_workers = 1,
		.max_endpoints = 2,
		.max_pools = 1,
		.flags_per_worker = 64,
		.max_quotas = 8,
		.queue_slots = 1,
		.instance = 1};

	cr_assert_eq(seg_new(&sizes, seg_build(), &seg), 0);
	page = sysconf(_SC_PAGESIZE);
}

static void
teardown(void)
{
	seg_free(&seg);
}

TestSuite(sandbox, .init = setup, .fini = teardown);

static bool
is_filtered(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return false;
#else
	return true;
#endif
}

/* Exit codes of a child. */
enum { DONE, FAILED, NO_FILTER };

/* The wait status of a child of that kind that does this; fn returns -1 and sets errno, or not. */
static int
status_of(enum sandbox kind, const struct conf *conf, int (*fn)(void), int wanted_errno)
{
	const struct heritage h = {.seg = seg, .conf = conf, .slot = SLOT, .kind = kind};
	const pid_t pid = fork();
	int status = 0, r;

	if (pid == 0) {
		(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		sandbox_enter(&h);
		if (conf->sandbox && !proc_is_sandboxed(seg, SLOT))
			_exit(NO_FILTER);
		r = fn();
		_exit((r == -1 ? errno : 0) == wanted_errno ? DONE : FAILED);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	return status;
}

/* --- calls that end a child ----------------------------------------------------------------------- */

/* clang-format off */
/* A function that makes this call. */
#define CALL(name, ...) static int name(void) { return __VA_ARGS__; }
CALL(write_file, open("/dev/null", O_WRONLY | O_CLOEXEC))
CALL(change_file, open("/dev/null", O_RDWR | O_CLOEXEC))
CALL(truncate_file, open("/dev/null", O_RDONLY | O_TRUNC | O_CLOEXEC))
CALL(append_file, open("/dev/null", O_RDONLY | O_APPEND | O_CLOEXEC))
CALL(make_file, open("/nowhere", O_RDONLY | O_CREAT | O_CLOEXEC, 0600))
CALL(make_nameless, open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600))
CALL(remove_file, unlink("/nowhere"))
CALL(rename_file, rename("/nowhere", "/nowhere2"))
CALL(make_folder, mkdir("/nowhere/at/all", 0700))
CALL(change_mode, chmod("/nowhere", 0777))
CALL(look_at_file, access("/etc/shadow", R_OK))
CALL(run_program, execl("/bin/true", "true", (char *)NULL))
CALL(attach, (int)ptrace(PTRACE_TRACEME, 0, NULL, NULL))
CALL(read_other, (int)syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0))
CALL(make_process, fork())
CALL(netlink, socket(AF_NETLINK, SOCK_RAW, 0))
CALL(raw, socket(AF_INET, SOCK_RAW, 1))
CALL(datagrams, socket(AF_INET, SOCK_DGRAM, 0))
CALL(packets, socket(AF_PACKET, SOCK_RAW, 0))
CALL(local, socket(AF_UNIX, SOCK_STREAM, 0))
CALL(other_protocol, socket(AF_INET, SOCK_STREAM, 132))
CALL(listen_here, listen(0, 1))
CALL(name_socket, bind(0, NULL, 0))
CALL(take_client, accept(0, NULL, NULL))
CALL(reach_out, connect(0, NULL, 0))
CALL(signal_parent, (int)syscall(SYS_tgkill, getppid(), getppid(), 0))
CALL(signal_any, kill(getppid(), 0))
CALL(new_namespace, unshare(CLONE_NEWUSER))
CALL(be_dumpable, prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))
CALL(more_memory, setrlimit(RLIMIT_DATA, &(struct rlimit){1, 1}))
CALL(limit_parent, prlimit(getppid(), RLIMIT_DATA, NULL, NULL))
CALL(other_user, setuid(0))
CALL(type_for_user, (int)syscall(SYS_ioctl, 0, 0x5412 /* TIOCSTI */, "x"))
CALL(duplicate, fcntl(0, F_DUPFD, 100))
CALL(load_program, (int)syscall(SYS_bpf, 0, NULL, 0))
CALL(ring, (int)syscall(SYS_io_uring_setup, 1, NULL))
CALL(keys, (int)syscall(SYS_keyctl, 0, 0))
/* clang-format on */

static int
executable_page(void)
{
	const void *at =
		mmap(NULL, (size_t)page, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? -1 : 0;
}

static int
becomes_executable(void)
{
	void *at = mmap(
		NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return mprotect(at, (size_t)page, PROT_READ | PROT_EXEC);
}

/* clang-format off */
#define FORBIDS(fn, call, kinds) {#fn, fn, SCMP_SYS(call), kinds}
/* clang-format on */
static const struct {
	const char *name;
	int (*fn)(void);
	int call;
	unsigned kinds;
} forbidden[] = {
	FORBIDS(write_file, openat, ALL),
	FORBIDS(change_file, openat, ALL),
	FORBIDS(truncate_file, openat, ALL),
	FORBIDS(append_file, openat, ALL),
	FORBIDS(make_file, openat, ALL),
	FORBIDS(make_nameless, openat, ALL),
	FORBIDS(remove_file, unlink, ALL),
	FORBIDS(rename_file, rename, ALL),
	FORBIDS(make_folder, mkdir, ALL),
	FORBIDS(change_mode, chmod, ALL),
	FORBIDS(look_at_file, access, ALL),
	FORBIDS(run_program, execve, ALL),
	FORBIDS(attach, ptrace, ALL),
	FORBIDS(read_other, process_vm_readv, ALL),
	FORBIDS(make_process, clone, ALL),
	FORBIDS(netlink, socket, WORKER | EXPORTER),
	FORBIDS(raw, socket, WORKER | EXPORTER | SUBSCRIBER),
	FORBIDS(datagrams, socket, WORKER | EXPORTER),
	FORBIDS(packets, socket, WORKER | EXPORTER | SUBSCRIBER),
	FORBIDS(local, socket, WORKER | EXPORTER),
	FORBIDS(other_protocol, socket, WORKER | EXPORTER | SUBSCRIBER),
	FORBIDS(listen_here, listen, ALL),
	FORBIDS(name_socket, bind, ALL),
	FORBIDS(take_client, accept, EXPORTER),
	FORBIDS(reach_out, connect, NOTIFIER),
	FORBIDS(signal_parent, tgkill, ALL),
	FORBIDS(signal_any, kill, ALL),
	FORBIDS(new_namespace, unshare, ALL),
	FORBIDS(be_dumpable, prctl, ALL),
	FORBIDS(more_memory, prlimit64, ALL),
	FORBIDS(limit_parent, prlimit64, ALL),
	FORBIDS(other_user, setuid, ALL),
	FORBIDS(type_for_user, ioctl, ALL),
	FORBIDS(duplicate, fcntl, ALL),
	FORBIDS(load_program, bpf, ALL),
	FORBIDS(ring, io_uring_setup, ALL),
	FORBIDS(keys, keyctl, ALL),
	FORBIDS(executable_page, mmap, ALL),
	FORBIDS(becomes_executable, mprotect, ALL),
};

/* On some machines the C library makes a call by its newer name (unlinkat): then that name is reported. */
static bool
is_reported(int call)
{
	uint32_t got;
	char *name, *wanted = seccomp_syscall_resolve_num_arch(SCMP_ARCH_NATIVE, call);
	bool same;

	if (!proc_forbidden(seg, SLOT, &got))
		return false;
	name = sandbox_call_name(got);
	same = name != NULL && (wanted == NULL || strcmp(name, wanted) == 0);
	free(name);
	free(wanted);
	return same;
}

Test(sandbox, calls_that_no_child_needs_end_it_and_are_named)
{
	if (!is_filtered())
		cr_skip("sanitizers make calls of their own");
	for (size_t i = 0; i < sizeof(forbidden) / sizeof(forbidden[0]); i++)
		for (enum sandbox kind = 0; kind < SANDBOX_N; kind++) {
			int status;

			if ((forbidden[i].kinds & 1u << kind) == 0)
				continue;
			proc_slot_set(seg, SLOT, 0, PROC_EMPTY, 0);
			status = status_of(kind, &guarded, forbidden[i].fn, 0);
			cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS,
				"%s, kind %d: 0x%x", forbidden[i].name, (int)kind,
				(unsigned)status);
			cr_expect(is_reported(forbidden[i].call), "%s", forbidden[i].name);
		}
}

/* --- calls that fail, and calls that pass ----------------------------------------------------------- */

/* clang-format off */
CALL(read_file, open("/etc/localtime", O_RDONLY | O_CLOEXEC))
CALL(read_folder, open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC))
CALL(stream, socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))
CALL(stream_tcp, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP))
CALL(stream_6, socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0))
/* clang-format on */

static const struct {
	int (*fn)(void);
	int error[SANDBOX_N]; /* -1: it ends the child */
} denied[] = {
	{read_file, {EACCES, EACCES, EACCES, EACCES}},
	{read_folder, {EACCES, EACCES, EACCES, EACCES}},
	{local, {-1, EACCES, -1, EACCES}},
	{datagrams, {-1, EACCES, -1, EACCES}},
	{netlink, {-1, EACCES, -1, EACCES}},
	{stream, {0, EACCES, 0, -1}},
	{stream_6, {0, EACCES, 0, -1}},
	{stream_tcp, {-1, EACCES, -1, 0}},
};

/* Libraries ask for these, and do without. */
Test(sandbox, calls_that_are_denied)
{
	if (!is_filtered())
		cr_skip("sanitizers make calls of their own");
	for (size_t i = 0; i < sizeof(denied) / sizeof(denied[0]); i++)
		for (enum sandbox kind = 0; kind < SANDBOX_N; kind++) {
			const int error = denied[i].error[kind];
			const int status = status_of(kind, &guarded, denied[i].fn, error);

			cr_expect(error == -1 ? WIFSIGNALED(status) : status == DONE,
				"%zu, kind %d: 0x%x", i, (int)kind, (unsigned)status);
		}
}

/* What the C library and its users do by themselves. */
static int
every_day(void)
{
	struct stat st;
	struct rlimit rl;
	struct pollfd none = {.fd = -1};
	char *p = malloc(1 << 20);
	int r = fstat(0, &st) | getrlimit(RLIMIT_NOFILE, &rl) | poll(&none, 1, 1) | usleep(1);

	if (p == NULL)
		return 1;
	memset(p, 1, 1 << 20);
	p = realloc(p, 8 << 20);
	free(p);
	r |= fcntl(0, F_SETFL, fcntl(0, F_GETFL)) | raise(SIGURG);
	return r;
}

Test(sandbox, what_every_process_does_passes)
{
	for (enum sandbox kind = 0; kind < SANDBOX_N; kind++)
		cr_expect_eq(status_of(kind, is_filtered() ? &guarded : &open_to_all, every_day, 0),
			DONE);
}

static int
abort_it(void)
{
	abort();
}

Test(sandbox, an_assertion_still_ends_it_by_its_own_signal)
{
	const int status =
		status_of(SANDBOX_WORKER, is_filtered() ? &guarded : &open_to_all, abort_it, 0);

	cr_assert_eq(WTERMSIG(status), SIGABRT);
}

/* --- the whole --------------------------------------------------------------------------------------- */

static void *
writes_later(void *go)
{
	char c;

	(void)!read(*(int *)go, &c, 1);
	(void)open("/dev/null", O_WRONLY | O_CLOEXEC);
	return NULL;
}

/* libzmq's threads exist before. */
Test(sandbox, it_holds_for_threads_that_were_there_before)
{
	int status = 0;
	pid_t pid;

	if (!is_filtered())
		cr_skip("sanitizers make calls of their own");
	pid = fork();
	if (pid == 0) {
		const struct heritage h = {
			.seg = seg, .conf = &guarded, .slot = SLOT, .kind = SANDBOX_NOTIFIER};
		int fds[2];
		pthread_t t;

		(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
		if (pipe(fds) == -1 || pthread_create(&t, NULL, writes_later, &fds[0]) != 0)
			_exit(1);
		sandbox_enter(&h);
		(void)!write(fds[1], "x", 1);
		(void)pthread_join(t, NULL);
		_exit(0);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "0x%x", (unsigned)status);
	cr_assert(is_reported(SCMP_SYS(openat)));
}

Test(sandbox, the_key_turns_it_off)
{
	cr_assert_eq(status_of(SANDBOX_WORKER, &open_to_all, change_file, 0), DONE);
	cr_assert_not(proc_is_sandboxed(seg, SLOT));
}

/* As in a container whose own filter forbids further ones. */
static bool
forbid_filters(void)
{
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ALLOW);

	(void)seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(seccomp), 0);
	(void)seccomp_rule_add(filter, SCMP_ACT_ERRNO(EPERM), SCMP_SYS(prctl), 1,
		SCMP_A0(SCMP_CMP_EQ, PR_SET_SECCOMP));
	return seccomp_load(filter) == 0;
}

/* Some containers allow none: the child serves, and says that it has none. */
Test(sandbox, where_no_filter_can_be_loaded_the_child_serves)
{
	int status = 0;
	pid_t pid;

	if (!is_filtered())
		cr_skip("sanitizers make calls of their own");
	cr_assert_eq(sandbox_possible(), 0);
	pid = fork();
	if (pid == 0) {
		const struct heritage h = {
			.seg = seg, .conf = &guarded, .slot = SLOT, .kind = SANDBOX_WORKER};

		if (!forbid_filters())
			_exit(1);
		if (sandbox_possible() != -EPERM)
			_exit(2);
		sandbox_enter(&h);
		_exit(!proc_is_sandboxed(seg, SLOT) && change_file() != -1 ? 0 : 3);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert_eq(status, 0, "0x%x", (unsigned)status);
}
