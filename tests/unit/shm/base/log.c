/* Log lines, byte by byte: what an operator's grep and a log shipper's JSON reader will meet. */
#include "shm/base/log.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/mem.h"
#include "shm/base/rnd.h"

static int pipe_fds[2];
static char got[8192];

static void
open_pipe(void)
{
	cr_assert_eq(pipe(pipe_fds), 0);
	cr_assert_neq(dup2(pipe_fds[1], STDERR_FILENO), -1);
	log_init("worker", 3);
}

/* What follows the time of a line, which is of these seconds; a line of the journal has none. */
static const char *
timeless(const char *text)
{
	struct tm tm = {.tm_year = 0};
	struct timespec now;
	time_t then;
	const char *end = strptime(text, "ts=%Y-%m-%dT%H:%M:%S.", &tm);

	if (end == NULL)
		return text;
	/* time(2) is behind this clock, which is the line's, for some ms of each second */
	(void)clock_gettime(CLOCK_REALTIME, &now);
	cr_assert_eq(strspn(end, "0123456789"), 3, "%s", text);
	cr_assert_eq(strncmp(end + 3, "Z ", 2), 0, "%s", text);
	then = timegm(&tm);
	cr_assert(now.tv_sec - 60 < then && then <= now.tv_sec, "%s", text);
	return end + 5;
}

/* What one log call wrote: a pipe keeps separate writes in order, so all of it must be one line. */
static const char *
line(void)
{
	ssize_t n = read(pipe_fds[0], got, sizeof(got) - 1);

	cr_assert_gt(n, 0);
	got[n] = '\0';
	cr_assert_eq(strchr(got, '\n'), got + n - 1, "one newline, at the end: %s", got);
	got[n - 1] = '\0';
	return timeless(got);
}

TestSuite(base_log, .init = open_pipe);

Test(base_log, logfmt_line)
{
	errno = ENOENT;
	log_info("endpoint up", LOG_S("url", "http://10.0.0.1:8100"), LOG_U("n", UINT64_MAX),
		LOG_I("d", -7), LOG_MS("t", 12345));
	cr_assert_eq(errno, ENOENT);
	cr_assert_str_eq(line(),
		"level=info msg=\"endpoint up\" process=worker slot=3 url=http://10.0.0.1:8100 "
		"n=18446744073709551615 d=-7 t=12.3");
	log_warn("alone", LOG_S("text", NULL), LOG_NONE);
	cr_assert_str_eq(line(), "level=warn msg=alone process=worker slot=3");
}

Test(base_log, logfmt_quoting)
{
	static const struct {
		const char *in, *out;
	} t[] = {
		{"-", "-"},
		{"", "\"\""},
		{"a/b:c,d;e", "a/b:c,d;e"},
		{"a b", "\"a b\""},
		{"a=b", "\"a=b\""},
		{"a\"b\\c", "\"a\\\"b\\\\c\""},
		{"a\nb\rc\td", "\"a\\nb\\rc\\td\""},
		{"\x01\x1b[31m\x7f", "\"\\x01\\x1b[31m\\x7f\""},
		{"gr\xc3\xbc\xc3\x9f", "\"gr\xc3\xbc\xc3\x9f\""},
		{"\xff\xc3", "\"\\xff\\xc3\""},          /* stray, and cut short */
		{"\xc0\xaf", "\"\\xc0\\xaf\""},          /* overlong */
		{"\xc2\x9b", "\"\\xc2\\x9b\""},          /* C1: a terminal's CSI */
		{"\xed\xa0\x80", "\"\\xed\\xa0\\x80\""}, /* surrogate */
		{"\xf0\x9f\x98\x80", "\"\xf0\x9f\x98\x80\""},
		{"\xf4\x90\x80\x80", "\"\\xf4\\x90\\x80\\x80\""},
	};

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		log_error("m", LOG_S("k", t[i].in));
		cr_expect_str_eq(strstr(line(), "k=") + 2, t[i].out);
	}
}

/* A value has quotes if a byte of it needs them, wherever that byte is, and whatever the memory behind it holds. */
Test(base_log, each_byte_at_each_place_of_a_value)
{
	char text[41];
	const char *value;

	for (size_t n = 1; n < sizeof(text); n++) {
		for (unsigned b = 1; b < 256; b++) {
			memset(text, 'a', n);
			text[n] = '\0';
			text[b % n] = (char)b;
			log_error("m", LOG_S("k", text));
			value = strstr(line(), "k=") + 2;
			cr_assert_eq(value[0] == '"',
				b <= ' ' || b >= 0x7f || strchr("\"\\=", (int)b) != NULL, "%s",
				value);
			if (value[0] != '"')
				cr_assert_str_eq(value, text);
		}
	}
}

Test(base_log, json_is_json_whatever_comes_in)
{
	char all[256], ts[64];
	json_object *o, *v;

	for (int i = 1; i < 256; i++)
		all[i - 1] = (char)i;
	all[255] = '\0';
	log_setup(LOG_L_INFO, LOG_F_JSON);
	log_warn("say \"hi\"", LOG_S("all", all), LOG_S("none", NULL), LOG_U("u", 5),
		LOG_MS("ms", 1500));
	o = json_tokener_parse(line());
	cr_assert_not_null(o, "%s", got);
	cr_assert(json_object_object_get_ex(o, "msg", &v));
	cr_expect_str_eq(json_object_get_string(v), "say \"hi\"");
	cr_assert(json_object_object_get_ex(o, "ts", &v));
	(void)snprintf(ts, sizeof(ts), "ts=%s ", json_object_get_string(v));
	cr_expect_str_eq(timeless(ts), "");
	cr_assert(json_object_object_get_ex(o, "level", &v));
	cr_expect_str_eq(json_object_get_string(v), "warn");
	cr_assert(json_object_object_get_ex(o, "slot", &v));
	cr_expect_eq(json_object_get_int(v), 3);
	cr_assert(json_object_object_get_ex(o, "all", &v));
	cr_expect_eq(strncmp(json_object_get_string(v), all, 126), 0);
	cr_assert(json_object_object_get_ex(o, "none", &v));
	cr_expect_null(v);
	cr_assert(json_object_object_get_ex(o, "ms", &v));
	cr_expect_float_eq(json_object_get_double(v), 1.5, 1e-9);
	json_object_put(o);
}

Test(base_log, a_field_is_clipped_at_256_bytes_and_between_characters)
{
	char text[1000], want[1100];

	memset(text, 'x', sizeof(text));
	text[256] = '\0';
	log_info("m", LOG_S("k", text));
	cr_expect_str_eq(strstr(line(), "k=") + 2, text);
	text[256] = 'x';
	text[257] = '\0';
	log_info("m", LOG_S("k", text));
	text[256] = '\0';
	(void)snprintf(want, sizeof(want), "\"%s...\"", text);
	cr_expect_str_eq(strstr(line(), "k=") + 2, want);
	memcpy(text + 255, "\xc3\xbc", 3); /* would straddle the limit */
	log_info("m", LOG_S("k", text));
	text[255] = '\0';
	(void)snprintf(want, sizeof(want), "\"%s...\"", text);
	cr_expect_str_eq(strstr(line(), "k=") + 2, want);
}

Test(base_log, a_line_keeps_to_4_KiB_and_says_that_it_was_clipped)
{
	char text[300];
	struct log_field f[40];
	json_object *o, *v;

	memset(text, 1, 256); /* \u0001: six bytes each */
	text[256] = '\0';
	for (size_t i = 0; i < 39; i++)
		f[i] = LOG_S("k", text);
	f[39] = LOG_U("last", 1);
	for (int json = 0; json < 2; json++) {
		log_setup(LOG_L_INFO, json ? LOG_F_JSON : LOG_F_LOGFMT);
		log_write(LOG_L_INFO, "m", f, 40);
		cr_expect_leq(strlen(line()), 4095);
		cr_expect_not_null(
			strstr(got, json ? "\"last\":1,\"clipped\":1}" : " last=1 clipped=1"));
	}
	o = json_tokener_parse(got);
	cr_assert_not_null(o);
	cr_assert(json_object_object_get_ex(o, "clipped", &v));
	json_object_put(o);
}

Test(base_log, levels)
{
	log_setup(LOG_L_WARN, LOG_F_LOGFMT);
	log_info("no");
	log_debug("no");
	cr_expect_not(log_enabled(LOG_L_INFO));
	cr_expect(log_enabled(LOG_L_WARN));
	log_warn("yes");
	cr_expect_eq(strncmp(line(), "level=warn msg=yes ", 19), 0);
	log_setup(LOG_L_DEBUG, LOG_F_OFF);
	log_warn("no");
	log_error("errors are written");
	cr_expect_eq(strncmp(line(), "level=error ", 12), 0);
	log_setup(LOG_L_DEBUG, LOG_F_LOGFMT);
	log_debug("now");
	cr_expect_eq(strncmp(line(), "level=debug msg=now ", 20), 0);
}

Test(base_log, journal_prefix_only_where_stderr_is_the_journal)
{
	struct stat st;
	char js[64];

	cr_assert_eq(fstat(STDERR_FILENO, &st), 0);
	(void)snprintf(js, sizeof(js), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	cr_assert_eq(setenv("JOURNAL_STREAM", js, 1), 0);
	log_init("master", 0);
	log_error("m");
	cr_expect_str_eq(line(), "<3>msg=m process=master slot=0");
	log_setup(LOG_L_INFO, LOG_F_JSON);
	log_info("m");
	cr_expect_str_eq(
		line(), "<6>{\"level\":\"info\",\"msg\":\"m\",\"process\":\"master\",\"slot\":0}");
	cr_assert_eq(setenv("JOURNAL_STREAM", "8:1", 1), 0);
	log_setup(LOG_L_INFO, LOG_F_LOGFMT);
	log_init("master", 0);
	log_error("m");
	cr_expect_str_eq(line(), "level=error msg=m process=master slot=0");
}

/* A socket in place of journald's, which this process writes to. */
static int
journal(void)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);

	(void)snprintf(sun.sun_path, sizeof(sun.sun_path), "/tmp/pdr-journal.%d", (int)getpid());
	(void)unlink(sun.sun_path); /* of a process that had this number and was killed */
	cr_assert_eq(log_to_journal(sun.sun_path), ENOENT);
	cr_assert_eq(bind(fd, (struct sockaddr *)&sun, sizeof(sun)), 0);
	cr_assert_eq(log_to_journal(sun.sun_path), 0);
	(void)unlink(sun.sun_path);
	return fd;
}

/* What journald would take: its own protocol, a field each. */
Test(base_log, fields_for_the_journal)
{
	static const char entry[] =
		"SYSLOG_IDENTIFIER=pdrouter\nPRIORITY=4\n"
		"MESSAGE=msg=\"it ends\" process=worker slot=3 reason=\"o k\" first_ms=1.5 "
		"text=\"a\\nb\"\n"
		"PDR_PROCESS=worker\nPDR_SLOT=3\nPDR_REASON=o k\nPDR_FIRST_MS=1.5\n"
		"PDR_TEXT\n\3\0\0\0\0\0\0\0a\nb\n";
	const int fd = journal();
	ssize_t n;

	log_warn("it ends", LOG_S("reason", "o k"), LOG_S("none", NULL), LOG_MS("first_ms", 1500),
		LOG_S("text", "a\nb"));
	n = recv(fd, got, sizeof(got), 0);
	cr_assert_eq(n, (ssize_t)sizeof(entry) - 1, "%.*s", (int)n, got);
	cr_assert_eq(memcmp(got, entry, sizeof(entry) - 1), 0, "%.*s", (int)n, got);
}

/* The entries that lie in the socket: those of lines "line", which come in order. */
static unsigned
entries(int fd, unsigned *next)
{
	unsigned n = 0;

	for (ssize_t r; (r = recv(fd, got, sizeof(got) - 1, 0)) > 0;) {
		const char *at;

		got[r] = '\0';
		at = strstr(got, "\nPDR_I=");
		if (at == NULL)
			continue;
		cr_assert_geq(strtoul(at + 7, NULL, 10), *next);
		*next = (unsigned)strtoul(at + 7, NULL, 10) + 1;
		n++;
	}
	return n;
}

/* The kernel lets a sender have few entries on their way, and journald may be late. */
Test(base_log, entries_that_a_late_journal_does_not_take_wait_for_a_flush)
{
	const int fd = journal();
	uint64_t counted = 0;
	unsigned next = 0, here = 0, flushes = 0;

	log_count_dropped(&counted);
	log_hold();
	for (unsigned i = 0; i < 2000; i++)
		log_info("line", LOG_U("i", i));
	cr_assert_not(log_flush(), "all of them found room");
	for (bool all = false; !all; flushes++) {
		here += entries(fd, &next);
		all = log_flush();
	}
	here += entries(fd, &next);
	cr_assert(here == 2000 && next == 2000 && counted == 0, "%u, %u", here, next);
	cr_assert_gt(flushes, 1);
	log_error("at once", LOG_U("i", 2000));
	cr_assert_eq(entries(fd, &next), 1);
}

/* The master forks: what its stderr has not got would be there twice. */
Test(base_log, lines_of_the_master_wait_for_the_journal_alone)
{
	unsigned next = 0, here = 0;
	uint64_t counted = 0;
	int fd;

	log_keep();
	log_info("to stderr");
	cr_assert_not_null(strstr(line(), "to stderr"));
	fd = journal();
	log_count_dropped(&counted);
	for (unsigned i = 0; i < 2000; i++)
		log_info("line", LOG_U("i", i));
	do
		here += entries(fd, &next);
	while (!log_flush());
	cr_assert_eq(here + entries(fd, &next), 2000);
	cr_assert_eq(counted, 0);
}

Test(base_log, what_waits_for_the_journal_is_bounded_and_the_rest_counted)
{
	const int fd = journal();
	char text[200];
	uint64_t counted = 0;
	unsigned next = 0, here = 0;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	log_count_dropped(&counted);
	log_hold();
	for (unsigned i = 0; i < 40000; i++)
		log_info("line", LOG_U("i", i), LOG_S("text", text));
	cr_assert(counted > 20000 && counted < 30000, "%lu", (unsigned long)counted);
	/* room and lines come by turns: the ring has its end anywhere */
	for (unsigned i = 40000; i < 100000; i++) {
		log_info("line", LOG_U("i", i), LOG_S("text", text + i % 190));
		if (i % 500 == 0)
			here += entries(fd, &next);
	}
	do
		here += entries(fd, &next);
	while (!log_flush());
	here += entries(fd, &next);
	cr_assert_eq(here + counted, 100000);
	log_info("after");
	cr_assert_gt(recv(fd, got, sizeof(got), 0), 0);
	cr_assert_not_null(strstr(got, "log lines were dropped"), "%s", got);
	log_count_dropped(NULL);
}

/* The end of a process does not wait for a journal that stands still. */
Test(base_log, what_the_journal_has_not_taken_at_the_end_is_counted)
{
	const int fd = journal();
	uint64_t counted = 0;
	unsigned next = 0;

	log_count_dropped(&counted);
	log_hold();
	for (unsigned i = 0; i < 2000; i++)
		log_info("line", LOG_U("i", i));
	log_finish();
	cr_assert_gt(counted, 0);
	cr_assert_eq(entries(fd, &next) + counted, 2000);
	cr_assert(log_flush());
	log_count_dropped(NULL);
}

Test(base_rnd, ids_differ_also_after_a_fork)
{
	uint64_t mine, theirs;
	int fds[2];

	(void)rnd_u64(); /* a generator with a state of its own would repeat it in the child */
	cr_assert_eq(pipe(fds), 0);
	if (fork() == 0) {
		theirs = rnd_u64();
		_exit(write(fds[1], &theirs, sizeof(theirs)) == sizeof(theirs) ? 0 : 1);
	}
	mine = rnd_u64();
	cr_assert_eq(read(fds[0], &theirs, sizeof(theirs)), sizeof(theirs));
	cr_assert_neq(mine, theirs);
	for (int i = 0; i < 100; i++)
		cr_assert_neq(rnd_u64(), mine);
}

Test(base_rnd, uuid_version_4)
{
	char u[37], h[17] = "";

	for (int i = 0; i < 200; i++) {
		rnd_uuid(u);
		cr_assert_eq(strlen(u), 36);
		cr_assert_eq(strspn(u, "0123456789abcdef-"), 36);
		cr_assert_eq(u[14], '4');
		cr_assert_not_null(strchr("89ab", u[19]));
		cr_assert(u[8] == '-' && u[13] == '-' && u[18] == '-' && u[23] == '-');
	}
	rnd_hex16(h, UINT64_C(0x0123456789abcdef));
	cr_assert_str_eq(h, "0123456789abcdef");
}

Test(base_mem, sizes)
{
	char *s = mem_printf("%d-%s", 7, "x"), *t = mem_strndup("abcdef", 3);
	int *p = mem_array(0, sizeof(*p));

	cr_expect_str_eq(s, "7-x");
	cr_expect_str_eq(t, "abc");
	cr_expect_null(mem_strdup(NULL));
	p = mem_resize(p, 0, sizeof(*p));
	cr_expect_not_null(p);
	p = mem_resize(p, 3, sizeof(*p));
	p[2] = 1;
	free(p);
	free(s);
	free(t);
}

/* In a child, and any end but a return counts: ASan exits by itself where libc returns NULL. */
Test(base_mem, overflow_does_not_return)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		(void)close(STDERR_FILENO);
		_exit(mem_array(SIZE_MAX / 2, 4) != NULL ? 0 : 42);
	}
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	/* an abort, or the code a sanitizer was told to exit with */
	cr_expect(WIFSIGNALED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 42),
		"status %x", status);
}

/* A reader that has stopped must not stop us: lines are dropped and counted, and the first line that goes says how
 * many. */
static void
dropped_and_counted(int reader, int writer)
{
	char all[1 << 20], *said;
	uint64_t counted = 0, more = 0;
	unsigned long long lines = 0;
	size_t n = 0;
	ssize_t r;

	cr_assert_neq(dup2(writer, STDERR_FILENO), -1);
	(void)close(writer);
	log_init("test", 1);
	log_count_dropped(&counted);
	alarm(20); /* a write that blocks ends the test */
	for (int i = 0; i < 20000; i++)
		log_info("line", LOG_I("i", i));
	cr_assert_eq(fcntl(reader, F_SETFL, O_NONBLOCK), 0);
	while ((r = read(reader, all, sizeof(all))) > 0)
		;
	log_info("after", LOG_I("i", -1));
	log_count_dropped(&more);
	log_info("last");
	log_count_dropped(NULL);
	while ((r = read(reader, all + n, sizeof(all) - 1 - n)) > 0)
		n += (size_t)r;
	all[n] = '\0';
	said = strstr(all, "log lines were dropped");
	cr_assert(said != NULL && said < strchr(all, '\n'), "%s", all);
	cr_assert_not_null(strstr(said, " lines="), "%s", said);
	cr_assert_eq(sscanf(strstr(said, " lines="), " lines=%llu", &lines), 1);
	cr_assert(lines > 0 && lines == counted, "%llu, counted %llu", lines,
		(unsigned long long)counted);
	cr_assert_not_null(strstr(said, " msg=after "), "%s", said);
	cr_assert_null(strstr(said + 1, "log lines were dropped"), "%s", said);
	cr_assert_eq(more, 0);
}

Test(base_log, a_full_pipe_drops_lines_and_counts_them)
{
	int fds[2];

	cr_assert_eq(pipe(fds), 0);
	dropped_and_counted(fds[0], fds[1]);
}

Test(base_log, a_stuck_journal_drops_lines_and_counts_them)
{
	int fds[2];

	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	dropped_and_counted(fds[0], fds[1]);
}

static size_t
written(void)
{
	const ssize_t n = read(pipe_fds[0], got, sizeof(got) - 1);

	got[n > 0 ? n : 0] = '\0';
	return n > 0 ? (size_t)n : 0;
}

Test(base_log, lines_that_are_held_wait_for_the_flush_and_stay_in_order)
{
	cr_assert_eq(fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK), 0);
	log_hold();
	log_info("one");
	log_warn("two");
	cr_assert_eq(written(), 0);
	log_flush();
	cr_assert_gt(written(), 0);
	cr_assert_lt(strstr(got, "msg=one"), strstr(got, "msg=two"), "%s", got);
	log_flush();
	cr_assert_eq(written(), 0);
	log_info("three");
	log_error("four");
	cr_assert_gt(written(), 0, "an error does not wait");
	cr_assert_lt(strstr(got, "msg=three"), strstr(got, "msg=four"), "%s", got);
}

/* More would not be one piece in a pipe. */
Test(base_log, held_lines_are_written_before_they_are_more_than_4_KiB)
{
	char text[200];
	unsigned next = 0, i;

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	cr_assert_eq(fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK), 0);
	log_hold();
	for (i = 0; i < 100; i++) {
		log_info("line", LOG_U("i", i), LOG_S("text", text));
		for (char *at = written() > 0 ? strstr(got, " i=") : NULL; at != NULL;
			at = strstr(at + 1, " i="))
			cr_assert_eq(strtoul(at + 3, NULL, 10), next++);
		cr_assert_leq(strlen(got), 4096);
	}
	cr_assert_gt(next, 60);
	log_flush();
	(void)written();
	for (char *at = strstr(got, " i="); at != NULL; at = strstr(at + 1, " i="))
		next++;
	cr_assert_eq(next, 100);
}

/* A file takes them in one piece; they are bounded all the same. */
Test(base_log, held_lines_of_a_file_are_written_together)
{
	FILE *file = tmpfile();
	struct stat st;
	unsigned lines = 0;

	cr_assert_neq(dup2(fileno(file), STDERR_FILENO), -1);
	log_init("worker", 3);
	log_hold();
	for (; lines < 200; lines++)
		log_info("line", LOG_U("i", lines));
	cr_assert_eq(fstat(fileno(file), &st), 0);
	cr_assert_eq(st.st_size, 0, "200 lines are more than 4 KiB");
	for (; st.st_size == 0 && lines < 2000; lines++) {
		log_info("line", LOG_U("i", lines));
		cr_assert_eq(fstat(fileno(file), &st), 0);
	}
	cr_assert(st.st_size > 16384 && st.st_size <= 32768, "%ld", (long)st.st_size);
	log_flush();
	rewind(file);
	for (unsigned i = 0; i < lines; i++) {
		cr_assert_not_null(fgets(got, sizeof(got), file));
		cr_assert_eq(strtoul(strstr(got, " i=") + 3, NULL, 10), i);
	}
	cr_assert_null(fgets(got, sizeof(got), file));
	(void)fclose(file);
}

Test(base_log, held_lines_that_find_no_room_are_counted)
{
	uint64_t counted = 0;
	unsigned long long lines = 0, here = 0;
	char all[1 << 17], *said;

	cr_assert_eq(fcntl(pipe_fds[1], F_SETPIPE_SZ, 1 << 16), 1 << 16);
	cr_assert_eq(fcntl(pipe_fds[0], F_SETFL, O_NONBLOCK), 0);
	log_count_dropped(&counted);
	log_hold();
	for (unsigned i = 0; i < 5000; i++)
		log_info("line", LOG_U("i", i));
	log_flush();
	for (ssize_t n; (n = read(pipe_fds[0], all, sizeof(all) - 1)) > 0;)
		for (char *at = all; at < all + n; at++)
			here += *at == '\n';
	cr_assert_eq(here + counted, 5000);
	log_info("after");
	log_flush();
	log_count_dropped(NULL);
	cr_assert_gt(written(), 0);
	said = strstr(got, " lines=");
	cr_assert(said != NULL && sscanf(said, " lines=%llu", &lines) == 1, "%s", got);
	cr_assert_eq(lines, counted);
	cr_assert_gt(strstr(got, "msg=after"), said);
}

/* The parent process says what it has dropped, and its child what the child has. */
Test(base_log, a_child_process_begins_without_dropped_lines)
{
	int fds[2];

	cr_assert_eq(pipe(fds), 0);
	cr_assert_neq(dup2(fds[1], STDERR_FILENO), -1);
	log_init("parent", 1);
	for (int i = 0; i < 20000; i++)
		log_info("line", LOG_I("i", i));
	log_init("child", 2);
	cr_assert_neq(dup2(pipe_fds[1], STDERR_FILENO), -1);
	log_info("after");
	cr_assert_str_eq(line(), "level=info msg=after process=child slot=2");
}
