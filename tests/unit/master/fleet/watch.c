/* Every way a file may change under a path, and that nothing else is told. */
#include <criterion/criterion.h>
#include <errno.h>
#include <event2/event.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "master/fleet/watch.h"
#include "shm/base/clock.h"
#include "shm/base/mem.h"
#include "tests/unit/running_time.h"

/* Instead of libc's: what the kernel says when its limits are reached. */
static int init_errno, add_errno;

int
inotify_init1(int flags)
{
	errno = init_errno;
	return init_errno != 0 ? -1 : (int)syscall(SYS_inotify_init1, flags);
}

int
inotify_add_watch(int fd, const char *path, uint32_t mask)
{
	errno = add_errno;
	return add_errno != 0 ? -1 : (int)syscall(SYS_inotify_add_watch, fd, path, mask);
}

static struct event_base *base;
static struct watch *watch;
static unsigned told;
static char dir[64];

static void
on_change(void *arg)
{
	(void)arg;
	told++;
}

/* Steps in the directory of the test, as a shell would write them; stops at the first that fails. */
static void __attribute__((format(printf, 1, 2))) sh(const char *fmt, ...)
{
	char script[1024], *whole;
	va_list ap;

	va_start(ap, fmt);
	(void)vsnprintf(script, sizeof(script), fmt, ap);
	va_end(ap);
	whole = mem_printf("set -e; cd %s; %s", dir, script);
	cr_assert_eq(system(whole), 0, "%s", whole);
	free(whole);
}

static void
run(uint64_t ms)
{
	uint64_t end = clock_ms() + ms;
	struct timeval tv = {.tv_usec = 5000};

	while (clock_ms() < end) {
		event_base_loopexit(base, &tv);
		event_base_loop(base, EVLOOP_ONCE);
	}
}

/* Tells of it once, within a second and not before it has been quiet for a moment. */
#define TELLS(...)                                                                                 \
	do {                                                                                       \
		told = 0;                                                                          \
		sh(__VA_ARGS__);                                                                   \
		for (int i = 0; i < 100 && told == 0; i++)                                         \
			run(10);                                                                   \
		run(150);                                                                          \
		cr_assert_eq(told, 1, "%u times", told);                                           \
	} while (0)
#define TELLS_NOTHING(...)                                                                         \
	do {                                                                                       \
		told = 0;                                                                          \
		sh(__VA_ARGS__);                                                                   \
		run(250);                                                                          \
		cr_assert_eq(told, 0);                                                             \
	} while (0)

static void
watch_path(const char *name)
{
	char *path = mem_printf("%s/%s", dir, name);

	told = 0;
	watch_set(watch, (const char *const[]){path}, 1);
	free(path);
	run(250);
	cr_assert_eq(told, 1, "a new path is told once");
}

static void
setup(void)
{
	(void)snprintf(dir, sizeof(dir), "/tmp/pdr-watch-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	base = event_base_new();
	watch = watch_new(base, on_change, NULL);
}

static void
teardown(void)
{
	char *cmd = mem_printf("rm -rf %s", dir);

	watch_free(&watch);
	event_base_free(base);
	cr_assert_eq(system(cmd), 0);
	free(cmd);
}

TestSuite(watch, .init = setup, .fini = teardown);

Test(watch, written_in_place)
{
	sh("echo a > f");
	watch_path("f");
	TELLS("echo b > f");
	TELLS("echo c >> f");
	TELLS("echo d > f; echo e > f; echo f > f");
}

Test(watch, renamed_over)
{
	sh("echo a > f");
	watch_path("f");
	TELLS("echo b > new; mv new f");
	TELLS("echo b > f.tmp; mv f.tmp f"); /* the same content is another file */
	TELLS("echo in place > f");
}

Test(watch, deleted_and_made_anew)
{
	sh("echo a > f");
	watch_path("f");
	TELLS("rm f");
	TELLS("echo b > f");
	TELLS("rm f; echo c > f");
}

Test(watch, touched_or_opened_to_us)
{
	sh("echo a > f; chmod 000 f");
	watch_path("f");
	TELLS("chmod 644 f");
}

Test(watch, neighbours_are_nobodys_business)
{
	sh("echo a > f");
	watch_path("f");
	TELLS_NOTHING("echo b > g; echo c > ff; mv g h; rm h; mkdir d; echo > d/f; ln -s f l");
	TELLS_NOTHING("cat f > copy");
}

/* As Kubernetes' kubelet does it: a new directory, then a link renamed over the old one. */
Test(watch, config_map)
{
	sh("mkdir ..1; echo a > ..1/f; ln -s ..1 ..data; ln -s ..data/f f");
	watch_path("f");
	TELLS("mkdir ..2; echo b > ..2/f; ln -s ..2 ..data_tmp; mv -T ..data_tmp ..data; rm -r ..1");
	TELLS("mkdir ..3; echo c > ..3/f; ln -s ..3 ..data_tmp; mv -T ..data_tmp ..data; rm -r ..2");
	TELLS("echo d > ..3/f");
}

Test(watch, links_to_elsewhere)
{
	sh("mkdir a b b/c; echo 1 > b/c/f; ln -s $PWD/b/c/f abs; ln -s ../abs a/f");
	watch_path("a/f");
	TELLS("echo 2 > b/c/f");
	TELLS("ln -s ../b/c/g a/new; echo 3 > b/c/g; mv -T a/new a/f");
	TELLS("echo 4 > b/c/g");
	TELLS_NOTHING("echo 5 > b/c/f");
}

Test(watch, directories_on_the_way)
{
	sh("mkdir -p a/b/c; echo 1 > a/b/c/f");
	watch_path("a/b/c/f");
	TELLS("mv a old");
	TELLS("mkdir -p a/b/c; echo 2 > a/b/c/f");
	TELLS("mkdir -p new/b/c; echo 3 > new/b/c/f; mv a older; mv new a");
	TELLS("rm -r a/b");
	TELLS("mkdir a/b; mkdir a/b/c; echo 4 > a/b/c/f");
}

Test(watch, a_link_in_a_circle)
{
	sh("ln -s y x; ln -s x y");
	watch_path("x");
	TELLS("rm x; echo 1 > x");
}

Test(watch, a_file_that_never_rests_is_told_all_the_same)
{
	uint64_t began = clock_ms();

	sh("echo a > f");
	watch_path("f");
	told = 0;
	for (int i = 0; told == 0 && clock_ms() - began < 5000; i++) {
		sh("echo %d > f", i);
		run(10);
	}
	cr_assert_geq(told, 1);
	TELLS("echo last > f"); /* and once more when it rests */
	TELLS_NOTHING("true");
}

Test(watch, other_paths)
{
	sh("echo a > f; echo a > g");
	watch_path("f");
	watch_path("g");
	TELLS_NOTHING("echo b > f");
	TELLS("echo b > g");
	watch_set(watch, NULL, 0);
	TELLS_NOTHING("echo c > g");
}

Test(watch, without_inotify)
{
	watch_free(&watch);
	init_errno = EMFILE;
	watch = watch_new(base, on_change, NULL);
	sh("echo a > f");
	told = 0;
	watch_set(watch, (const char *const[]){dir}, 1);
	TELLS_NOTHING("echo b > f");
}

Test(watch, without_room_for_a_directory)
{
	char *path = mem_printf("%s/f", dir);

	sh("echo a > f");
	add_errno = ENOSPC;
	watch_path("f");
	TELLS_NOTHING("echo b > f");
	add_errno = 0;
	watch_set(watch, (const char *const[]){path}, 1); /* as the next reload does */
	run(200);
	TELLS("echo c > f");
	free(path);
}
