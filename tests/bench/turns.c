/*
 * Preloaded into the router: how long its loops' turns take, in CPU time between two calls of epoll_wait().
 * Each process has a file TURNS.PID of six words: turns, the longest in microseconds, and how many were longer than
 * 1, 2, 5 and 10 ms.  turns.py reads and clears them.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define WORDS 6
#define MS 1000L

typedef int wait_fn(int, struct epoll_event *, int, int);

int epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms);

static long *words;
static pid_t whose;
static long began_us;

static long
cpu_us(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

/* A child has its own file. */
static void
open_words(void)
{
	char path[256];
	int fd;

	if (whose == getpid())
		return;
	whose = getpid();
	began_us = 0;
	(void)snprintf(path, sizeof(path), "%s.%d", getenv("TURNS"), whose);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd == -1 || ftruncate(fd, WORDS * sizeof(long)) == -1)
		abort();
	words = mmap(NULL, WORDS * sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (words == MAP_FAILED)
		abort();
	(void)close(fd);
}

static void
count(long us)
{
	static const long longer[] = {1 * MS, 2 * MS, 5 * MS, 10 * MS};

	words[0]++;
	if (us > words[1])
		words[1] = us;
	for (int i = 0; i < 4; i++)
		words[2 + i] += us > longer[i];
}

int
epoll_wait(int epfd, struct epoll_event *events, int max, int timeout_ms)
{
	static wait_fn *real;
	int n;

	if (real == NULL)
		*(void **)&real = dlsym(RTLD_NEXT, "epoll_wait");
	open_words();
	if (began_us != 0)
		count(cpu_us() - began_us);
	n = real(epfd, events, max, timeout_ms);
	began_us = cpu_us();
	return n;
}
