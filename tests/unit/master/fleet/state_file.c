/* The state_file on disk: replaced as a whole or not at all, by one process, whatever is in its way. */
#include "master/fleet/state_file.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shm/base/log.h"
#include "shm/base/mem.h"

#define MAX 100000

static char dir[] = "/tmp/pdr-state-XXXXXX", path[64], temporary[80], broken[80];

static void
setup(void)
{
	cr_assert_not_null(mkdtemp(dir));
	(void)snprintf(path, sizeof(path), "%s/state.json", dir);
	(void)snprintf(temporary, sizeof(temporary), "%s.new", path);
	(void)snprintf(broken, sizeof(broken), "%s.broken", path);
	log_setup(LOG_L_ERROR, LOG_F_LOGFMT);
}

static void
teardown(void)
{
	char *command = mem_printf("rm -rf %s", dir);

	cr_expect_eq(system(command), 0);
	free(command);
}

TestSuite(state_file, .init = setup, .fini = teardown);

static bool
write_now(struct state_file *sf, const void *text, size_t n)
{
	bool good = state_file_begin(sf, text, n);

	while (state_file_is_written(sf) && !state_file_end(sf, &good))
		(void)usleep(100);
	return good;
}

/* What a process that starts now reads; the caller frees it. */
static char *
text_now(void)
{
	struct state_file *sf = state_file_new(path, -1);
	struct membuf text = {0};

	cr_assert(state_file_read(sf, MAX, &text));
	membuf_add(&text, "", 1);
	state_file_free(&sf);
	return text.p;
}

static void
expect_text(const char *want)
{
	char *text = text_now();

	cr_expect_str_eq(text, want);
	free(text);
}

static void
put(const char *at, const char *text)
{
	FILE *f = fopen(at, "w");

	cr_assert_not_null(f);
	(void)fputs(text, f);
	(void)fclose(f);
}

/* What was synced, in order: f, the text before it has the file's name; d, the directory after that; ? neither.  The process that
 * writes the file shares it with the test; NULL: nobody looks. */
static char *synced;

int
fsync(int fd)
{
	const bool renamed = access(temporary, F_OK) == -1;
	struct stat st;

	cr_assert_eq(fstat(fd, &st), 0);
	if (synced != NULL && strlen(synced) < 3)
		strcat(synced, S_ISDIR(st.st_mode) != renamed ? "?" : renamed ? "d" : "f");
	return 0;
}

Test(state_file, on_disk_before_it_has_its_name)
{
	struct state_file *sf = state_file_new(path, -1);

	synced = mmap(NULL, 4, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	cr_assert_neq(synced, MAP_FAILED);
	cr_assert(write_now(sf, "one", 3));
	cr_expect_str_eq(synced, "fd");
	cr_assert_eq(munmap(synced, 4), 0);
	state_file_free(&sf);
}

Test(state_file, written_and_read)
{
	struct state_file *sf = state_file_new(path, -1);
	struct stat st;

	expect_text("");
	cr_assert(write_now(sf, "one", 3));
	expect_text("one");
	cr_assert(write_now(sf, "second", 6));
	expect_text("second");
	cr_expect_str_eq(state_file_error(sf), "");
	cr_expect_eq(access(temporary, F_OK), -1);
	cr_assert_eq(stat(path, &st), 0);
	cr_expect_eq(st.st_mode & 07777, 0600);
	state_file_free(&sf);
}

/* A full disk in the middle of a text: the former one stays, and the next write is tried again. */
Test(state_file, a_full_disk)
{
	struct state_file *sf = state_file_new(path, -1);
	struct rlimit was, now = {.rlim_cur = 4};

	(void)signal(SIGXFSZ, SIG_IGN);
	cr_assert(write_now(sf, "one", 3));
	cr_assert_eq(getrlimit(RLIMIT_FSIZE, &was), 0);
	now.rlim_max = was.rlim_max;
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &now), 0);
	cr_expect_not(write_now(sf, "longer", 6));
	cr_assert_eq(setrlimit(RLIMIT_FSIZE, &was), 0);
	cr_expect_str_eq(state_file_error(sf), "File too large");
	cr_expect_eq(access(temporary, F_OK), -1, "no room is left taken");
	expect_text("one");
	cr_expect(write_now(sf, "longer", 6));
	cr_expect_str_eq(state_file_error(sf), "");
	expect_text("longer");
	state_file_free(&sf);
}

/* A directory that comes later is no reason to start anew. */
Test(state_file, a_directory_that_is_missing)
{
	char below[80], at[96];
	struct state_file *sf;

	(void)snprintf(below, sizeof(below), "%s/below", dir);
	(void)snprintf(at, sizeof(at), "%s/state", below);
	sf = state_file_new(at, -1);
	cr_expect_str_eq(state_file_error(sf), "No such file or directory");
	cr_expect_not(write_now(sf, "one", 3));
	cr_assert_eq(mkdir(below, 0700), 0);
	cr_expect(write_now(sf, "one", 3));
	cr_expect_str_eq(state_file_error(sf), "");
	state_file_free(&sf);
}

Test(state_file, the_second_process_reads_and_never_writes)
{
	struct state_file *first = state_file_new(path, -1), *second;
	struct membuf text = {0};

	cr_assert(write_now(first, "one", 3));
	second = state_file_new(path, -1);
	cr_expect_str_eq(state_file_error(second), "another process has this state_file");
	cr_expect(state_file_read(second, MAX, &text));
	cr_expect_eq(text.n, 3);
	cr_expect_not(write_now(second, "other", 5));
	membuf_free(&text);
	cr_expect_not(state_file_read(second, 2, &text), "too large");
	cr_expect_eq(access(broken, F_OK), -1, "it is not the second's");
	state_file_free(&first);
	cr_expect_not(write_now(second, "other", 5), "nor when the first has ended");
	expect_text("one");
	membuf_free(&text);
	state_file_free(&second);
}

Test(state_file, set_aside)
{
	struct state_file *sf;
	struct membuf text = {0};

	put(path, "too long");
	put(broken, "an earlier one");
	sf = state_file_new(path, -1);
	cr_expect_not(state_file_read(sf, 7, &text));
	cr_expect_eq(access(path, F_OK), -1);
	membuf_free(&text);
	cr_expect(state_file_read(sf, 7, &text));
	cr_expect_eq(text.n, 0);
	cr_assert_eq(rename(broken, path), 0);
	cr_expect(state_file_read(sf, 8, &text));
	cr_expect_eq(memcmp(text.p, "too long", 8), 0);
	membuf_free(&text);
	state_file_free(&sf);
}

/* A path that is wrong by mistake: nothing is renamed, replaced or waited for. */
Test(state_file, what_is_no_regular_file_stays)
{
	struct membuf text = {0};

	for (int i = 0; i < 2; i++) {
		struct state_file *sf;
		struct stat st;

		cr_assert_eq(i == 0 ? mkdir(path, 0700) : mkfifo(path, 0600), 0);
		sf = state_file_new(path, -1);
		cr_expect_str_eq(state_file_error(sf), "it is not a regular file");
		cr_expect(state_file_read(sf, MAX, &text));
		cr_expect_eq(text.n, 0);
		cr_expect_not(write_now(sf, "x", 1));
		cr_assert_eq(lstat(path, &st), 0);
		cr_expect(i == 0 ? S_ISDIR(st.st_mode) : S_ISFIFO(st.st_mode));
		cr_assert_eq(remove(path), 0);
		state_file_free(&sf);
	}
}

/* The writer of a killed master is in its last system call, rename(), on a slow disk. */
Test(state_file, a_former_writer_is_waited_for)
{
	enum { NOTHING, LOCKED, RENAMED };
	int *does = mmap(
		NULL, sizeof(*does), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct state_file *sf = state_file_new(path, -1);
	const pid_t pid = fork();

	if (pid == 0) {
		put(temporary, "the former text");
		(void)flock(open(temporary, O_WRONLY), LOCK_EX);
		__atomic_store_n(does, LOCKED, __ATOMIC_RELEASE);
		(void)usleep(100000);
		__atomic_store_n(does, RENAMED, __ATOMIC_RELEASE);
		_exit(rename(temporary, path));
	}
	while (__atomic_load_n(does, __ATOMIC_ACQUIRE) == NOTHING)
		(void)usleep(100);
	cr_assert(write_now(sf, "mine", 4));
	cr_expect_eq(__atomic_load_n(does, __ATOMIC_ACQUIRE), RENAMED);
	cr_assert_eq(waitpid(pid, NULL, 0), pid);
	expect_text("mine");
	state_file_free(&sf);
}

/* A writer that is killed at any instruction leaves one of the texts, whole, and its lock is free. */
Test(state_file, kill_9_at_any_instruction, .timeout = 60)
{
	static char texts[2][5000];
	unsigned seen[2] = {0};

	for (int i = 0; i < 2; i++)
		memset(texts[i], 'a' + i, sizeof(texts[i]) - 1 - 1000 * (size_t)i);
	for (unsigned round = 0; round < 150; round++) {
		pid_t pid = fork();
		char *text;

		if (pid == 0) {
			struct state_file *sf = state_file_new(path, -1);

			for (unsigned i = round;; i++)
				(void)write_now(sf, texts[i % 2], strlen(texts[i % 2]));
		}
		(void)usleep(500 + round * 37 % 3000);
		cr_assert_eq(kill(pid, SIGKILL), 0);
		cr_assert_eq(waitpid(pid, NULL, 0), pid);
		text = text_now();
		for (int i = 0; i < 2; i++)
			seen[i] += strcmp(text, texts[i]) == 0;
		cr_assert(text[0] == '\0' ? seen[0] + seen[1] == 0
					  : strcmp(text, texts[text[0] - 'a']) == 0);
		free(text);
	}
	cr_expect_gt(seen[0], 0);
	cr_expect_gt(seen[1], 0);
}
