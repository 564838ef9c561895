/*
 * A bad wire: two point-to-point TUN devices, one in this network namespace and one in a new one, and
 * in between every packet may be lost, delayed and overtaken.  It does what tc's netem does, where the
 * kernel has none.
 *
 *	pdwire ADDRESS-HERE ADDRESS-THERE      prints "ready"; needs CAP_NET_ADMIN and /dev/net/tun
 *
 * Each line on standard input sets "LOSS DELAY JITTER": percent, ms, ms.  Whoever wants to live at the
 * other end joins /proc/PID/ns/net.  Devices and namespace end with the process, however that ends; it
 * ends with its standard input.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/queue.h>
#include <sys/signal.h>
#include <time.h>
#include <unistd.h>

#define PACKET_MAX 2048 /* more than the MTU of 1500 */
#define QUEUE_MAX 8192  /* packets under way; beyond that they are lost, as on any wire */

struct packet {
	TAILQ_ENTRY(packet) next;
	uint64_t due_us;
	int to;
	size_t n;
	char b[PACKET_MAX];
};

TAILQ_HEAD(packets, packet);

static struct wire {
	int fd[2]; /* here, there */
	double loss, delay_ms, jitter_ms;
	struct packets way; /* the next one first */
	unsigned nway;
} wire;

static void __attribute__((noreturn)) fail(const char *what)
{
	(void)fprintf(stderr, "pdwire: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t
now_us(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void
set_address(int s, unsigned long request, struct ifreq *ifr, const char *address)
{
	struct sockaddr_in sin = {.sin_family = AF_INET};

	if (inet_pton(AF_INET, address, &sin.sin_addr) != 1)
		fail(address);
	memcpy(&ifr->ifr_addr, &sin, sizeof(sin));
	if (ioctl(s, request, ifr) == -1)
		fail("address of a TUN device");
}

static void
set_up(int s, struct ifreq *ifr)
{
	if (ioctl(s, SIOCGIFFLAGS, ifr) == -1)
		fail("flags of a device");
	ifr->ifr_flags |= IFF_UP;
	if (ioctl(s, SIOCSIFFLAGS, ifr) == -1)
		fail("a device does not come up");
}

/* A TUN device of the namespace this process is in. */
static int
open_tun(const char *own, const char *peer)
{
	int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct ifreq ifr = {.ifr_name = "pdw%d"}, lo = {.ifr_name = "lo"};

	if (fd == -1 || s == -1)
		fail("/dev/net/tun");
	ifr.ifr_flags = IFF_TUN | IFF_NO_PI;
	if (ioctl(fd, TUNSETIFF, &ifr) == -1)
		fail("a TUN device");
	set_address(s, SIOCSIFADDR, &ifr, own);
	set_address(s, SIOCSIFDSTADDR, &ifr, peer);
	set_up(s, &ifr);
	set_up(s, &lo);
	(void)close(s);
	return fd;
}

static void
send_due(void)
{
	struct packet *p;

	while ((p = TAILQ_FIRST(&wire.way)) != NULL && p->due_us <= now_us()) {
		if (write(wire.fd[p->to], p->b, p->n) == -1 && errno != EAGAIN && errno != EIO)
			fail("write");
		TAILQ_REMOVE(&wire.way, p, next);
		wire.nway--;
		free(p);
	}
}

static void
take(int from)
{
	struct packet *p, *before;
	ssize_t n;

	for (;;) {
		p = malloc(sizeof(*p));
		if (p == NULL)
			abort();
		n = read(wire.fd[from], p->b, sizeof(p->b));
		if (n <= 0 || drand48() * 100 < wire.loss || wire.nway == QUEUE_MAX) {
			free(p);
			if (n <= 0)
				return;
			continue;
		}
		p->n = (size_t)n;
		p->to = !from;
		p->due_us =
			now_us() + (uint64_t)((wire.delay_ms + drand48() * wire.jitter_ms) * 1000);
		before = TAILQ_LAST(&wire.way, packets);
		while (before != NULL && before->due_us > p->due_us)
			before = TAILQ_PREV(before, packets, next);
		if (before == NULL)
			TAILQ_INSERT_HEAD(&wire.way, p, next);
		else
			TAILQ_INSERT_AFTER(&wire.way, before, p, next);
		wire.nway++;
	}
}

/* False: whoever steers it is gone. */
static bool
steer(void)
{
	char line[128];
	double loss, delay, jitter;
	ssize_t n = read(STDIN_FILENO, line, sizeof(line) - 1);

	if (n <= 0)
		return false;
	line[n] = '\0';
	if (sscanf(line, "%lf %lf %lf", &loss, &delay, &jitter) == 3) {
		wire.loss = loss;
		wire.delay_ms = delay;
		wire.jitter_ms = jitter;
	}
	return true;
}

static int
wait_ms(void)
{
	struct packet *p = TAILQ_FIRST(&wire.way);
	uint64_t now = now_us();

	if (p == NULL)
		return -1;
	return p->due_us > now ? (int)((p->due_us - now + 999) / 1000) : 0;
}

int
main(int argc, char **argv)
{
	struct pollfd fds[3] = {{.events = POLLIN}, {.events = POLLIN}, {.events = POLLIN}};

	if (argc != 3) {
		(void)fprintf(stderr, "usage: pdwire ADDRESS-HERE ADDRESS-THERE\n");
		return 2;
	}
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	TAILQ_INIT(&wire.way);
	srand48((long)getpid());
	wire.fd[0] = open_tun(argv[1], argv[2]);
	if (unshare(CLONE_NEWNET) == -1)
		fail("a network namespace");
	wire.fd[1] = open_tun(argv[2], argv[1]);
	(void)puts("ready");
	(void)fflush(stdout);
	fds[0].fd = wire.fd[0];
	fds[1].fd = wire.fd[1];
	fds[2].fd = STDIN_FILENO;
	for (;;) {
		if (poll(fds, 3, wait_ms()) == -1 && errno != EINTR)
			fail("poll");
		if (fds[2].revents != 0 && !steer())
			return 0;
		take(0);
		take(1);
		send_due();
	}
}
