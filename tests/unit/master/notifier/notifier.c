/* A real notifier, fed by a real ZMQ PUSH socket. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
#include <arpa/inet.h>
#include <netinet/in.h>

#include "master/notifier/notifier.h"
#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/flags.h"
#include "shm/core/heritage.h"
#include "shm/kv_events.h"
#include "shm/metrics.h"
#include "tests/unit/shm/fixture.h"

#define NWAKE 16
#define WORKER 1
#define MIB (UINT64_C(1) << 20)

static int wake_fds[NWAKE];
static int channel[2];
static char address[64];
static struct conf conf = {.lmcache_listen = address};
static int newer[2]; /* a newer instance sends from [1]; 0: there is none */
static pid_t pid;
static void *ctx, *push;

/* The test itself does more than the filter allows. */
static void
stays_outside(const struct heritage *h)
{
	(void)h;
}

static void
notifier_start(void)
{
	char c = 0;
	struct pollfd pfd;

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, channel), 0);
	pid = fork();
	if (pid == 0) {
		struct heritage h = {.conf = &conf,
			.seg = seg,
			.slot = SLOT_NOTIFIER(seg),
			.channel = channel[1],
			.wake_fds = wake_fds,
			.notices_from = newer[0],
			.enter_sandbox = stays_outside};

		(void)close(channel[0]);
		if (newer[1] != 0)
			(void)close(newer[1]);
		_exit(notifier_main(&h));
	}
	(void)close(channel[1]);
	pfd = (struct pollfd){.fd = channel[0], .events = POLLIN};
	cr_assert_eq(poll(&pfd, 1, 10000), 1);
	cr_assert_eq(read(channel[0], &c, 1), 1);
	cr_assert_eq(c, CH_READY);
}

/* Its exit code, or 128 + signal. */
static int
notifier_wait(void)
{
	int status = 0;

	cr_assert_eq(waitpid(pid, &status, 0), pid);
	(void)close(channel[0]);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void
setup_at(const char *where, const char *peer)
{
	small_seg();
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		wake_fds[i] = eventfd(0, EFD_NONBLOCK);
	(void)snprintf(address, sizeof(address), "%s", where);
	notifier_start();
	ctx = zmq_ctx_new();
	push = zmq_socket(ctx, ZMQ_PUSH);
	if (peer != NULL)
		cr_assert_eq(zmq_connect(push, peer), 0);
}

static void
setup(void)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "ipc://@pdrouter-test-%d", (int)getpid());
	setup_at(name, name);
}

static void
teardown(void)
{
	int linger = 0;

	(void)zmq_setsockopt(push, ZMQ_LINGER, &linger, sizeof(linger));
	(void)zmq_close(push);
	(void)zmq_ctx_term(ctx);
	for (uint32_t i = 0; i < seg->hdr->nslots; i++)
		(void)close(wake_fds[i]);
	small_seg_end();
}

static void
send_id(const char *id)
{
	char msg[128] = "\x82\xa4type\xaaProxyNotif\xa6req_id\xd9";
	size_t n = strlen(msg);

	msg[n++] = (char)strlen(id);
	memcpy(msg + n, id, strlen(id));
	n += strlen(id);
	cr_assert_eq(zmq_send(push, msg, n, 0), (int)n);
}

static bool
woken(uint32_t slot, int ms)
{
	struct pollfd pfd = {.fd = wake_fds[slot], .events = POLLIN};
	uint64_t n;

	return poll(&pfd, 1, ms) == 1 && read(wake_fds[slot], &n, sizeof(n)) == (ssize_t)sizeof(n);
}

static bool
counted(enum metric_counter m, uint64_t n)
{
	const volatile uint64_t *at = &seg_slab(seg, SLOT_NOTIFIER(seg))->counters[m];
	uint64_t end = clock_ms() + 10000;

	while (*at != n && clock_ms() < end)
		(void)usleep(1000);
	return *at == n;
}

static void
note_slot(uint32_t slot, void *arg)
{
	*(uint32_t *)arg = slot;
}

Test(notifier, the_last_notice_wakes_the_worker)
{
	struct flag_set *fs;
	struct flag_ref ref;
	char id[FLAG_ID_LEN];
	uint32_t slot = 999;

	setup();
	fs = flag_set_new(seg, WORKER);
	cr_assert(flag_arm(fs, 2, &ref));
	flag_id_format(&ref, id);
	cr_assert(woken(WORKER, 1000), "a new notifier wakes everybody");
	send_id(id);
	cr_assert(counted(M_NOTICES, 1));
	cr_assert(!flag_is_ready(fs, &ref));
	cr_assert(!woken(WORKER, 0));
	send_id(id);
	cr_assert(woken(WORKER, 10000));
	flag_collect(fs, note_slot, &slot);
	cr_assert_eq(slot, ref.slot);
	cr_assert(flag_is_ready(fs, &ref));
	flag_free(fs, &ref);
	send_id(id);
	cr_assert(counted(M_NOTICES_STALE, 1));
	cr_assert_eq(write(channel[0], &(char){CH_DRAIN}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	flag_set_free(&fs);
	teardown();
}

Test(notifier, nonsense_is_counted_and_survived)
{
	static const char *const bad[] = {"", "\xc1", "\x82", "hello"};
	struct flag_set *fs;
	struct flag_ref ref;
	char id[FLAG_ID_LEN];

	setup();
	fs = flag_set_new(seg, WORKER);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_geq(zmq_send(push, bad[i], strlen(bad[i]), 0), 0);
	send_id("42");
	cr_assert(flag_arm(fs, 1, &ref));
	ref.nonce++;
	flag_id_format(&ref, id);
	send_id(id);
	cr_assert(counted(M_NOTICES_BAD, 6));
	ref.nonce--;
	flag_id_format(&ref, id);
	(void)woken(WORKER, 0);
	send_id(id);
	cr_assert(woken(WORKER, 10000));
	(void)close(channel[0]);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK, "the channel's end: the master is gone");
	flag_set_free(&fs);
	teardown();
}

/* How often the notifier has stored another heartbeat within 300 ms. */
static unsigned
heartbeats(void)
{
	const uint64_t end = clock_ms() + 300;
	uint64_t last = proc_heartbeat_ms(seg, SLOT_NOTIFIER(seg)), now;
	unsigned n = 0;

	while (clock_ms() < end) {
		now = proc_heartbeat_ms(seg, SLOT_NOTIFIER(seg));
		n += now != last;
		last = now;
		(void)usleep(1000);
	}
	return n;
}

/* The socket of a newer instance that has ended is readable for ever. */
Test(notifier, at_the_end_of_a_newer_instance_it_rests)
{
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, newer), 0);
	setup();
	cr_assert_eq(write(newer[1], "42\n", 3), 3);
	cr_assert(counted(M_NOTICES_BAD, 1));
	(void)close(newer[1]);
	cr_expect_leq(heartbeats(), 4);
	cr_assert_eq(write(channel[0], &(char){CH_DRAIN}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

/* More than a batch at once: a level-triggered loop over ZMQ_FD would leave the rest lying. */
Test(notifier, a_burst_is_read_to_its_end)
{
	setup();
	for (int i = 0; i < 3000; i++)
		send_id("42");
	cr_assert(counted(M_NOTICES_BAD, 3000));
	cr_assert_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

/* Killed between the ready bit and the eventfd: its successor makes that good. */
Test(notifier, a_successor_wakes_everybody)
{
	struct flag_set *fs;
	struct flag_ref ref;
	uint32_t slot = 999;

	setup();
	fs = flag_set_new(seg, WORKER);
	cr_assert(flag_arm(fs, 1, &ref));
	cr_assert(woken(WORKER, 1000));
	flag_collect(fs, note_slot, &slot);
	cr_assert_eq(flag_notify(seg, &ref), FLAG_READY_NOW);
	*seg_ready(seg, WORKER) = 0; /* as if the bit had not been set yet either */
	cr_assert_eq(kill(pid, SIGKILL), 0);
	cr_assert_eq(notifier_wait(), 128 + SIGKILL);
	notifier_start();
	cr_assert(woken(WORKER, 10000));
	flag_collect(fs, note_slot, &slot);
	cr_assert_eq(slot, ref.slot);
	(void)close(channel[0]);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	flag_set_free(&fs);
	teardown();
}

/* What it holds is bounded per connection, so connections must be few. */
Test(notifier, its_connections_are_bounded)
{
	struct rlimit many, rl;

	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &many), 0);
	many.rlim_cur =
		many.rlim_max < 4096 ? many.rlim_max : 4096; /* the machine may allow less */
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &many), 0);
	setup();
	cr_assert_eq(prlimit(pid, RLIMIT_NOFILE, NULL, &rl), 0);
	cr_assert_leq(rl.rlim_cur, 1500);
	cr_assert_geq(rl.rlim_cur, many.rlim_cur < 1024 ? many.rlim_cur : 1024);
	cr_assert_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

/* As a service manager may have it. */
Test(notifier, a_lower_limit_of_descriptors_stays)
{
	struct rlimit few = {.rlim_cur = 512, .rlim_max = 512}, rl;

	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
	setup();
	cr_assert_eq(prlimit(pid, RLIMIT_NOFILE, NULL, &rl), 0);
	cr_assert_eq(rl.rlim_cur, 512);
	cr_assert_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

/* Of its own memory, as RLIMIT_DATA counts it. */
static uint64_t
data_bytes(void)
{
	char path[64];
	unsigned long pages = 0;
	FILE *f;

	(void)snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	f = fopen(path, "re");
	cr_assert_not_null(f);
	cr_assert_eq(fscanf(f, "%*u %*u %*u %*u %*u %lu", &pages), 1);
	(void)fclose(f);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* libzmq counts messages, and lets each have any number of parts. */
Test(notifier, its_memory_is_bounded)
{
	struct rlimit rl;

	setup();
	cr_assert_eq(prlimit(pid, RLIMIT_DATA, NULL, &rl), 0);
	cr_assert_leq(rl.rlim_cur, data_bytes() + 1100 * MIB);
	cr_assert_geq(rl.rlim_cur, data_bytes() + 900 * MIB);
	cr_assert_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

Test(notifier, a_lower_limit_of_memory_stays)
{
	struct rlimit rl, few;

	cr_assert_eq(getrlimit(RLIMIT_DATA, &few), 0);
	pid = getpid();
	few.rlim_cur = data_bytes() + 200 * MIB;
	cr_assert_eq(setrlimit(RLIMIT_DATA, &few), 0);
	setup();
	cr_assert_eq(prlimit(pid, RLIMIT_DATA, NULL, &rl), 0);
	cr_assert_eq(rl.rlim_cur, few.rlim_cur);
	cr_assert_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

/* A PUSH socket's first words, by hand: ZMTP 3.0, without security. */
static int
raw_push(void)
{
	static const char greeting[64] = {
		[0] = (char)0xff, [9] = 0x7f, [10] = 3, 0, 'N', 'U', 'L', 'L'};
	static const char ready[] = "\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH";
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	const char *name = address + strlen("ipc://@");
	const socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
	char theirs[sizeof(greeting) + sizeof(ready) - 1];
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	memcpy(to.sun_path + 1, name, strlen(name));
	cr_assert_eq(connect(fd, (const struct sockaddr *)&to, n), 0);
	cr_assert_eq(write(fd, greeting, sizeof(greeting)), (ssize_t)sizeof(greeting));
	cr_assert_eq(write(fd, ready, sizeof(ready) - 1), (ssize_t)sizeof(ready) - 1);
	cr_assert_eq(recv(fd, theirs, sizeof(theirs), MSG_WAITALL), (ssize_t)sizeof(theirs));
	return fd;
}

/* A message of one part after the other: at the limit the connection ends, or the notifier, which is
 * started again. */
Test(notifier, an_endless_message_is_bounded)
{
	static char parts[64 * 1024];
	struct rlimit rl;
	uint64_t sent = 0;
	int fd;

	for (size_t at = 0; at + 256 <= sizeof(parts); at += 256)
		memcpy(parts + at, "\x01\xfe", 2); /* more to come, 254 bytes */
	/* libzmq and sanitizers write crash notes to stderr, which are not output of this test */
	cr_assert_not_null(freopen("/dev/null", "w", stderr));
	setup();
	cr_assert_eq(prlimit(pid, RLIMIT_DATA, NULL, &rl), 0);
	rl.rlim_cur = data_bytes() + 16 * MIB;
	cr_assert_eq(prlimit(pid, RLIMIT_DATA, &rl, NULL), 0);
	fd = raw_push();
	while (sent < 64 * MIB && send(fd, parts, sizeof(parts), MSG_NOSIGNAL) > 0)
		sent += sizeof(parts);
	cr_assert_lt(sent, 64 * MIB);
	(void)close(fd);
	(void)send(channel[0], &(char){CH_QUIT}, 1, MSG_NOSIGNAL);
	cr_assert_neq(notifier_wait(), CHILD_EXIT_NO_RESPAWN);
	teardown();
}

Test(notifier, an_impossible_address_is_not_tried_again)
{
	struct heritage h = {.conf = &conf};

	small_seg();
	(void)snprintf(address, sizeof(address), "nonsense");
	h.seg = seg;
	h.slot = SLOT_NOTIFIER(seg);
	cr_assert_eq(notifier_main(&h), CHILD_EXIT_NO_RESPAWN);
	small_seg_end();
}

/* A free port of 127.0.0.1; `v6`: one where a socket of all IPv6 addresses serves IPv4, too.  0: there is no such family. */
static unsigned
free_port(bool v6)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6};
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t len = v6 ? sizeof(six) : sizeof(four);
	struct sockaddr *sa = v6 ? (struct sockaddr *)&six : (struct sockaddr *)&four;
	int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool ok = fd != -1 && bind(fd, sa, len) == 0 && getsockname(fd, sa, &len) == 0;

	(void)close(fd);
	if (!ok)
		return 0;
	return ntohs(v6 ? six.sin6_port : four.sin_port);
}

/* The peer is 127.0.0.1. */
static void
with_networks(const char *a, const char *b, bool v6)
{
	static char *networks[2];
	const unsigned port = free_port(v6);
	char where[64], peer[64];

	if (port == 0)
		cr_skip_test("no IPv6 on this machine");
	networks[0] = (char *)(uintptr_t)a;
	networks[1] = (char *)(uintptr_t)b;
	conf.lmcache_networks = networks;
	conf.nlmcache_networks = b != NULL ? 2 : 1;
	(void)snprintf(where, sizeof(where), "tcp://%s:%u", v6 ? "[::]" : "127.0.0.1", port);
	(void)snprintf(peer, sizeof(peer), "tcp://127.0.0.1:%u", port);
	setup_at(where, peer);
}

static void
expect_accepted(void)
{
	send_id("42");
	cr_expect(counted(M_NOTICES_BAD, 1));
	cr_expect(counted(M_NOTICES_REFUSED, 0));
	cr_assert_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

/* libzmq connects again and again. */
static void
expect_refused(void)
{
	const volatile uint64_t *n = seg_slab(seg, SLOT_NOTIFIER(seg))->counters;
	const uint64_t end = clock_ms() + 10000;

	send_id("42");
	while (n[M_NOTICES_REFUSED] < 2 && clock_ms() < end)
		(void)usleep(1000);
	cr_expect_geq(n[M_NOTICES_REFUSED], 2);
	cr_expect_eq(n[M_NOTICES_BAD], 0, "no message was read");
	cr_assert_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_assert_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

Test(notifier, a_peer_of_the_networks_is_accepted)
{
	with_networks("10.0.0.0/8", "127.0.0.0/8", false);
	expect_accepted();
}

Test(notifier, another_peer_is_refused_and_counted)
{
	with_networks("10.0.0.0/8", "127.0.0.2", false);
	expect_refused();
}

Test(notifier, networks_of_another_family_let_nobody_in)
{
	with_networks("fd00::/8", NULL, false);
	expect_refused();
}

Test(notifier, an_ipv4_peer_of_an_ipv6_socket_is_accepted)
{
	with_networks("fd00::/8", "127.0.0.0/8", true);
	expect_accepted();
}

Test(notifier, an_ipv4_peer_of_an_ipv6_socket_is_refused)
{
	with_networks("fd00::/8", "10.0.0.0/8", true);
	expect_refused();
}

/* --- peers by default, in a network namespace -------------------------------------------------- */

#define STRANGER "10.9.0.1"
#define ENGINE "10.9.0.77"
#define MANY 200 /* connections of one address: more than it may have */

static unsigned port;

/* Another address of this namespace, without a network. */
static void
add_address(const char *name, const char *ip)
{
	struct ifreq r = {0};
	struct sockaddr_in sin = {.sin_family = AF_INET};
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	(void)snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
	cr_assert_eq(inet_pton(AF_INET, ip, &sin.sin_addr), 1);
	memcpy(&r.ifr_addr, &sin, sizeof(sin));
	cr_assert_eq(ioctl(fd, SIOCSIFADDR, &r), 0);
	sin.sin_addr.s_addr = UINT32_MAX;
	memcpy(&r.ifr_netmask, &sin, sizeof(sin));
	cr_assert_eq(ioctl(fd, SIOCSIFNETMASK, &r), 0);
	(void)close(fd);
}

/* False: this process may not change it.  The root of a container may make such a namespace, and has no right in it. */
static bool
has_network(int flags)
{
	struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP};
	int fd, done;

	if (unshare(flags) != 0)
		return false;
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	done = ioctl(fd, SIOCSIFFLAGS, &r);
	(void)close(fd);
	return done == 0;
}

/* The notifier serves all addresses; those that are added later are not this machine's to it. */
static void
in_a_namespace(void)
{
	char where[64];

	if (!has_network(CLONE_NEWNET) && !has_network(CLONE_NEWUSER | CLONE_NEWNET))
		cr_skip_test("no network namespace on this machine");
	add_address("lo:1", "10.1.0.1");
	port = free_port(false);
	(void)snprintf(where, sizeof(where), "tcp://*:%u", port);
	setup_at(where, NULL);
	add_address("lo:2", STRANGER);
	add_address("lo:3", ENGINE);
}

/* The engine of a pool of LMCache. */
static void
publish_engine(void)
{
	struct kv_sender engine = {.family = AF_INET};

	cr_assert_eq(inet_pton(AF_INET, ENGINE, engine.ip), 1);
	kv_sender_put(seg, 0, &engine);
}

/* `push` connects from that address. */
static void
push_from(const char *ip)
{
	char to[96];

	(void)snprintf(to, sizeof(to), "tcp://%s:0;127.0.0.1:%u", ip, port);
	cr_assert_eq(zmq_connect(push, to), 0);
}

static bool
counted_at_least(enum metric_counter m, uint64_t n)
{
	const volatile uint64_t *at = &seg_slab(seg, SLOT_NOTIFIER(seg))->counters[m];

	for (int i = 0; i < 10000 && *at < n; i++)
		(void)usleep(1000);
	return *at >= n;
}

/* Sends until a message has come.  One that a refused connection takes is lost. */
static bool
is_received(void)
{
	static const char nonsense[] = "42"; /* no notice: counted as a bad one */
	const volatile uint64_t *at = &seg_slab(seg, SLOT_NOTIFIER(seg))->counters[M_NOTICES_BAD];
	const uint64_t before = *at;

	for (int i = 0; i < 10000 && *at == before; i++) {
		(void)zmq_send(push, nonsense, sizeof(nonsense), ZMQ_DONTWAIT);
		(void)usleep(1000);
	}
	return *at > before;
}

/* `push` is another socket without a connection. */
static void
push_anew(void)
{
	int linger = 0;

	(void)zmq_setsockopt(push, ZMQ_LINGER, &linger, sizeof(linger));
	(void)zmq_close(push);
	push = zmq_socket(ctx, ZMQ_PUSH);
}

static void
end_in_a_namespace(void)
{
	cr_expect_eq(write(channel[0], &(char){CH_QUIT}, 1), 1);
	cr_expect_eq(notifier_wait(), CHILD_EXIT_OK);
	teardown();
}

Test(notifier, by_default_this_machine_may_notify)
{
	in_a_namespace();
	push_from("10.1.0.1");
	cr_expect(is_received());
	push_anew();
	push_from("127.0.0.1");
	cr_expect(is_received());
	cr_expect(counted(M_NOTICES_REFUSED, 0));
	end_in_a_namespace();
}

/* With its address and the cure. */
Test(notifier, by_default_a_stranger_is_refused_and_named)
{
	const int log = memfd_create("log", MFD_CLOEXEC);
	char text[8192] = "";

	cr_assert_neq(dup2(log, STDERR_FILENO), -1);
	in_a_namespace();
	push_from(STRANGER);
	send_id("42");
	cr_expect(counted_at_least(M_NOTICES_REFUSED, 2), "libzmq connects again and again");
	for (int i = 0; i < 10000 && strstr(text, "a peer was refused") == NULL; i++) {
		(void)usleep(1000);
		(void)pread(log, text, sizeof(text) - 1, 0);
	}
	cr_expect_not_null(strstr(text, "from=" STRANGER), "%s", text);
	cr_expect_not_null(strstr(text, "lmcache.networks"), "%s", text);
	cr_expect_null(strstr(text, "any peer"), "%s", text);
	cr_expect(counted(M_NOTICES_BAD, 0), "no message was read");
	end_in_a_namespace();
}

/* While it goes on trying. */
Test(notifier, by_default_the_network_of_a_new_engine_may_notify)
{
	in_a_namespace();
	push_from(STRANGER);
	send_id("42");
	cr_expect(counted_at_least(M_NOTICES_REFUSED, 1));
	publish_engine();
	cr_expect(is_received(), "it is of the engine's /24");
	end_in_a_namespace();
}

Test(notifier, one_address_cannot_take_the_connections_of_engines)
{
	static int fds[MANY];
	struct sockaddr_in from = {.sin_family = AF_INET}, to = {.sin_family = AF_INET};
	struct rlimit rl;
	uint64_t each, refused;

	in_a_namespace();
	publish_engine();
	push_from(ENGINE);
	cr_expect(is_received());
	refused = seg_slab(seg, SLOT_NOTIFIER(seg))->counters[M_NOTICES_REFUSED];
	cr_assert_eq(prlimit(pid, RLIMIT_NOFILE, NULL, &rl), 0);
	each = rl.rlim_cur / 8 < 128 ? rl.rlim_cur / 8 : 128;
	cr_assert_eq(inet_pton(AF_INET, STRANGER, &from.sin_addr), 1);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	to.sin_port = htons((uint16_t)port);
	for (int i = 0; i < MANY; i++) {
		fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		cr_assert_eq(bind(fds[i], (struct sockaddr *)&from, sizeof(from)), 0);
		cr_assert_eq(connect(fds[i], (struct sockaddr *)&to, sizeof(to)), 0);
	}
	cr_expect(counted(M_NOTICES_REFUSED, refused + MANY - each));
	push_anew();
	push_from(ENGINE);
	cr_expect(is_received(), "an engine's own address is not bounded");
	for (int i = 0; i < MANY; i++)
		(void)close(fds[i]);
	push_anew();
	push_from(STRANGER);
	cr_expect(is_received(), "connections that have ended do not count");
	end_in_a_namespace();
}
