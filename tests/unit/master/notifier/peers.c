/* Connections that libzmq reports: which of them this process ends. */
#include "master/notifier/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/kv_events.h"
#include "shm/metrics.h"
#include "tests/unit/shm/fixture.h"

#define FDS 64
#define FD 9
#define LISTENS "tcp://0.0.0.0:7500"

static void *ctx, *libzmq; /* `libzmq` sends what libzmq would say */
static struct peers peers;

/* What the kernel says of each descriptor, and which one was shut down. */
static const char *own, *peer;
static uint16_t own_port;
static int was_shut;

static int
name(const char *ip, uint16_t port, struct sockaddr *ret, socklen_t *len)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons(port)};

	cr_assert_eq(inet_pton(AF_INET, ip, &sin.sin_addr), 1);
	memcpy(ret, &sin, sizeof(sin));
	*len = sizeof(sin);
	return 0;
}

/* In place of libc's. */
int
getpeername(int fd, struct sockaddr *ret, socklen_t *len)
{
	cr_assert_eq(fd, FD);
	return name(peer, 40000, ret, len);
}

int
getsockname(int fd, struct sockaddr *ret, socklen_t *len)
{
	cr_assert_eq(fd, FD);
	return name(own, own_port, ret, len);
}

int
shutdown(int fd, int how)
{
	cr_assert_eq(how, SHUT_RDWR);
	was_shut = fd;
	return 0;
}

static void
setup(void)
{
	const struct kv_sender engine = {.family = AF_INET, .ip = {10, 1, 2, 9}};

	small_seg();
	kv_sender_put(seg, 0, &engine);
	ctx = zmq_ctx_new();
	peers_begin(&peers, seg, seg_slab(seg, 0), FDS);
	peers.nearby_alone = true;
	libzmq = zmq_socket(ctx, ZMQ_PAIR);
	peers.events[PEERS_NOTICES] = zmq_socket(ctx, ZMQ_PAIR);
	cr_assert_eq(zmq_bind(libzmq, "inproc://events"), 0);
	cr_assert_eq(zmq_connect(peers.events[PEERS_NOTICES], "inproc://events"), 0);
	own = "10.1.2.3";
	own_port = 7500;
	was_shut = -1;
}

static void
teardown(void)
{
	peers_end(&peers);
	(void)zmq_close(libzmq);
	(void)zmq_ctx_term(ctx);
	small_seg_end();
}

TestSuite(peers, .init = setup, .fini = teardown);

/* True if the connection was ended. */
static bool
accepted(const char *from, const char *at)
{
	const uint16_t kind = ZMQ_EVENT_ACCEPTED;
	const uint32_t fd = FD;
	char event[sizeof(kind) + sizeof(fd)];

	memcpy(event, &kind, sizeof(kind));
	memcpy(event + sizeof(kind), &fd, sizeof(fd));
	cr_assert_eq(zmq_send(libzmq, event, sizeof(event), ZMQ_SNDMORE), (int)sizeof(event));
	cr_assert_eq(zmq_send(libzmq, at, strlen(at), 0), (int)strlen(at));
	peer = from;
	was_shut = -1;
	(void)peers_take(&peers);
	return was_shut == FD;
}

static uint64_t
nrefused(void)
{
	return seg_slab(seg, 0)->counters[M_NOTICES_REFUSED];
}

Test(peers, a_stranger_is_refused_and_an_engine_is_not)
{
	cr_expect(accepted("192.0.2.7", LISTENS));
	cr_expect(accepted("192.0.2.7", "tcp://[::]:7500"));
	cr_expect_eq(nrefused(), 2);
	cr_expect_not(accepted("10.1.2.9", LISTENS) || accepted("10.1.2.77", LISTENS));
	cr_expect_eq(nrefused(), 2);
}

/* libzmq has closed the stranger's descriptor, and this process has connected to an engine's
 * publisher with that number. */
Test(peers, a_connection_of_this_process_is_not_ended)
{
	own_port = 51234;
	cr_expect_not(accepted("192.0.2.7", LISTENS));
	cr_expect_eq(nrefused(), 0);
}

Test(peers, a_socket_of_another_kind_has_no_port)
{
	static const char *const none[] = {"", "ipc:///run/notices",
		"tcp://0.0.0.0:", "tcp://0.0.0.0:75001", "tcp://0.0.0.0:7500x"};

	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		cr_expect_not(accepted("192.0.2.7", none[i]), "%s", none[i]);
}
