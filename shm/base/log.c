#include "shm/base/log.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "shm/base/clock.h"

#define LINE_MAX_BYTES 4096 /* PIPE_BUF: a pipe accepts that much in one piece, or nothing */
#define HELD_BYTES (8 * LINE_MAX_BYTES)
#define PIPE_DEFAULT (64 << 10)
#define PIPE_BYTES (1 << 20) /* the most without privileges: /proc/sys/fs/pipe-max-size */
#define LATE_BYTES                                                                                 \
	((size_t)8                                                                                 \
		<< 20) /* as much as journald's own buffer for stderr; a line takes some 1,000 bytes */
#define FINISH_MS 100
#define TAIL_BYTES 32 /* reserved for the mark of a clipped line, `}` and the newline */
#define FIELD_MAX_BYTES 256
#define KEY_MAX 32 /* keys are words of this program, and shorter */

static const struct {
	const char *name;
	char prefix[4]; /* sd-daemon(3): syslog's levels in angle brackets */
} levels[] = {
	[LOG_L_ERROR] = {"error", "<3>"},
	[LOG_L_WARN] = {"warn", "<4>"},
	[LOG_L_INFO] = {"info", "<6>"},
	[LOG_L_DEBUG] = {"debug", "<7>"},
};

/* The only mutable global of the code base: the process's name, and the log level. */
static struct {
	char process[16];
	uint32_t slot;
	enum log_level level;
	enum log_format format;
	bool journal;      /* stderr goes to journald, which reads the level from the prefix */
	int journal_fd;    /* a socket to journald; -1: lines go to stderr */
	mode_t sink;       /* file type of stderr: how a line is kept from blocking */
	uint64_t dropped;  /* lines since the last one that was written */
	bool flushes;      /* entries that journald is too late for wait for log_flush() */
	bool holds;        /* so do all lines to stderr */
	uint64_t *counter; /* all dropped lines of this process; NULL: not counted */
	log_error_fn *errors_to;
	void *errors_arg;
} self = {.process = "-", .level = LOG_L_INFO, .journal_fd = -1};

/* Lines that wait: one write of all of them is not mixed with those of other processes either.  A file takes any number
 * in one piece. */
static struct {
	char b[HELD_BYTES];
	size_t n;
	uint64_t lines;
} held;

/*
 * Entries that journald's socket did not take: the kernel lets all processes of the router together have about a hundred
 * on their way.  A ring of whole entries, each with its length before it; a length of 0 leads to the beginning.  Only a
 * process that flushes keeps entries; what is never written costs no memory.
 */
static struct {
	char b[LATE_BYTES];
	size_t from, end;
	uint64_t lines;
} late;

struct line {
	char b[LINE_MAX_BYTES];
	size_t n;
	size_t start; /* of the first field */
	bool full;    /* something did not fit; what was begun is rolled back by its writer */
	bool json;
};

/* Always inline: a literal of a few bytes is then a store, and no call of strlen() and memcpy(). */
#define INLINE inline __attribute__((always_inline))

static INLINE void
put(struct line *l, const char *s, size_t n)
{
	if (l->full || n > sizeof(l->b) - TAIL_BYTES - l->n) {
		l->full = true;
		return;
	}
	memcpy(l->b + l->n, s, n);
	l->n += n;
}

static INLINE void
put_str(struct line *l, const char *s)
{
	put(l, s, strlen(s));
}

static void __attribute__((format(printf, 2, 3))) put_f(struct line *l, const char *fmt, ...)
{
	char tmp[48]; /* the longest: a 64-bit number and a dot */
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(tmp, sizeof(tmp), fmt, ap);
	va_end(ap);
	put(l, tmp, n < 0 ? 0 : (size_t)n);
}

/* Written by hand: each request's line has half a dozen numbers, and printf would cost more than
 * the rest of the line. */
static void
put_uint(struct line *l, uint64_t v)
{
	char tmp[20];
	size_t at = sizeof(tmp);

	do
		tmp[--at] = (char)('0' + v % 10);
	while ((v /= 10) != 0);
	put(l, tmp + at, sizeof(tmp) - at);
}

static void
put_int(struct line *l, int64_t v)
{
	if (v < 0)
		put(l, "-", 1);
	put_uint(l, v < 0 ? -(uint64_t)v : (uint64_t)v);
}

/*
 * Bytes of the character at s that need no escape: 1 for printable ASCII, 2..4 for well-formed
 * UTF-8 beyond C1 (which terminals obey as controls), 0 for what must be escaped.
 */
static size_t
plain(const unsigned char *s)
{
	unsigned cp;
	size_t n = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;

	if (s[0] < 0x80)
		return s[0] >= 0x20 && s[0] < 0x7f;
	if (s[0] < 0xc2 || s[0] > 0xf4)
		return 0;
	cp = s[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) { /* stops at the NUL, which is no continuation byte */
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		cp = cp << 6 | (s[i] & 0x3fu);
	}
	if (cp < 0xa0 || (n == 3 && cp < 0x800) || (n == 4 && cp < 0x10000))
		return 0;
	return cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000) ? 0 : n;
}

static void
put_escape(struct line *l, unsigned char c)
{
	static const char from[] = "\n\t\r", to[] = "ntr";
	const char *p = c == '\0' ? NULL : strchr(from, c);

	if (p != NULL)
		put_f(l, "\\%c", to[p - from]);
	else if (l->json && c >= 0x80)
		put_str(l, "\\ufffd"); /* JSON cannot express a stray byte */
	else
		put_f(l, l->json ? "\\u%04x" : "\\x%02x", c);
}

/* `s` in quotes, escaped, at most FIELD_MAX_BYTES of it. */
static void
put_quoted(struct line *l, const char *s)
{
	const unsigned char *p = (const unsigned char *)s;
	size_t used = 0;

	put(l, "\"", 1);
	while (p[used] != '\0') {
		size_t k = plain(p + used);

		if (used + (k > 0 ? k : 1) > FIELD_MAX_BYTES) {
			put_str(l, "...");
			break;
		}
		if (p[used] == '"' || p[used] == '\\')
			put(l, "\\", 1);
		if (k > 0)
			put(l, s + used, k);
		else
			put_escape(l, p[used]);
		used += k > 0 ? k : 1;
	}
	put(l, "\"", 1);
}

#ifdef __SSE2__
/* Whether a logfmt value of these bytes needs no quotes.  Up to 15 bytes behind them are read, and do not count. */
static bool
is_bare(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i += 16) {
		const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(p + i));
		/* signed: bytes beyond ASCII are below the others */
		__m128i bad = _mm_or_si128(_mm_cmplt_epi8(b, _mm_set1_epi8('!')),
			_mm_cmpeq_epi8(b, _mm_set1_epi8(0x7f)));
		unsigned marks;

		bad = _mm_or_si128(bad, _mm_cmpeq_epi8(b, _mm_set1_epi8('"')));
		bad = _mm_or_si128(bad, _mm_cmpeq_epi8(b, _mm_set1_epi8('\\')));
		bad = _mm_or_si128(bad, _mm_cmpeq_epi8(b, _mm_set1_epi8('=')));
		marks = (unsigned)_mm_movemask_epi8(bad);
		if ((n - i < 16 ? marks & ((1u << (n - i)) - 1) : marks) != 0)
			return false;
	}
	return true;
}
#else
static bool
is_bare(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] <= ' ' || p[i] >= 0x7f || p[i] == '"' || p[i] == '\\' || p[i] == '=')
			return false;
	return true;
}
#endif

/* Writes a logfmt value that needs no quotes: short, printable ASCII.  Returns false, and writes nothing, if it needs
 * some, or finds no room. */
static bool
put_bare(struct line *l, const char *s)
{
	char *to = l->b + l->n;
	size_t room = sizeof(l->b) - TAIL_BYTES - l->n, n;

	if (room > FIELD_MAX_BYTES)
		room = FIELD_MAX_BYTES;
	n = strnlen(s, room + 1);
	if (n == 0 || n > room)
		return false;
	memcpy(to, s, n);
	if (!is_bare(to, n)) /* behind the copy is the line's own memory */
		return false;
	l->n += n;
	return true;
}

static void
put_text(struct line *l, const char *s)
{
	if (s == NULL)
		put_str(l, "null");
	else if (l->json || !put_bare(l, s))
		put_quoted(l, s);
}

static void
put_key(struct line *l, const char *key, size_t n)
{
	char *to = l->b + l->n;

	if (sizeof(l->b) - TAIL_BYTES - l->n < KEY_MAX + sizeof(",\"\":")) {
		l->full = true;
		return;
	}
	if (l->n > l->start)
		*to++ = l->json ? ',' : ' ';
	if (l->json)
		*to++ = '"';
	memcpy(to, key, n);
	to += n;
	if (l->json)
		*to++ = '"';
	*to++ = l->json ? ':' : '=';
	l->n = (size_t)(to - l->b);
}

/* What is not known is left out; a text that is none stands in JSON as null. */
static bool
is_left_out(const struct line *l, const struct log_field *f)
{
	return f->type == LOG_T_NONE || (f->type == LOG_T_STR && f->v.s == NULL && !l->json);
}

static INLINE void
put_value(struct line *l, const struct log_field *f)
{
	switch (f->type) {
	case LOG_T_NONE:
		break;
	case LOG_T_STR:
		put_text(l, f->v.s);
		break;
	case LOG_T_UINT:
		put_uint(l, f->v.u);
		break;
	case LOG_T_INT:
		put_int(l, f->v.i);
		break;
	case LOG_T_MS:
		put_uint(l, f->v.u / 1000);
		put(l, (const char[]){'.', (char)('0' + f->v.u % 1000 / 100)}, 2);
		break;
	}
}

static void
put_field(struct line *l, const struct log_field *f)
{
	const size_t before = l->n;

	if (is_left_out(l, f))
		return;
	put_key(l, f->key, f->nkey);
	put_value(l, f);
	if (l->full)
		l->n = before; /* whole fields only, or the JSON would not close */
}

/* "2026-11-23T18:40:13.123Z".  The date is made once a second. */
static void
put_time(struct line *l)
{
	static struct {
		time_t second;
		char text[sizeof("2026-11-23T18:40:13.123Z")];
	} last;
	struct timespec now;
	struct tm tm;
	uint32_t ms;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	if (now.tv_sec != last.second && gmtime_r(&now.tv_sec, &tm) != NULL) {
		(void)strftime(last.text, sizeof(last.text), "%Y-%m-%dT%H:%M:%S.000Z", &tm);
		last.second = now.tv_sec;
	}
	ms = (uint32_t)(now.tv_nsec / 1000000);
	last.text[20] = (char)('0' + ms / 100);
	last.text[21] = (char)('0' + ms / 10 % 10);
	last.text[22] = (char)('0' + ms % 10);
	put_field(l, &LOG_S("ts", last.text));
}

static void
put_start(struct line *l, enum log_level level, const char *msg)
{
	const bool journal = self.journal || self.journal_fd != -1;

	if (self.journal && self.journal_fd == -1)
		put_str(l, levels[level].prefix);
	if (l->json)
		put(l, "{", 1);
	l->start = l->n;
	if (!journal) /* the journal has its own */
		put_time(l);
	if (!journal || l->json)
		put_field(l, &LOG_S("level", levels[level].name));
	put_field(l, &LOG_S("msg", msg));
}

/* There is room for it: TAIL_BYTES. */
static void
put_end(struct line *l, bool clipped)
{
	static const char *const ends[2][2] = {
		{"\n", " clipped=1\n"}, {"}\n", ",\"clipped\":1}\n"}};
	const char *end = ends[l->json][clipped];
	const size_t n = strlen(end);

	memcpy(l->b + l->n, end, n);
	l->n += n;
}

void
log_init(const char *process, uint32_t slot)
{
	const char *js = getenv("JOURNAL_STREAM");
	struct stat st;
	uintmax_t dev, ino;
	bool open = fstat(STDERR_FILENO, &st) == 0;

	(void)snprintf(self.process, sizeof(self.process), "%s", process);
	self.slot = slot;
	self.flushes = self.holds = false;
	late.lines = 0;
	self.dropped = 0; /* of the parent process, which tells it */
	self.sink = open ? st.st_mode & S_IFMT : S_IFREG;
	/* a reader that is late for 0.1 s costs no line; a size other than the default was chosen, and stays */
	if (self.sink == S_IFIFO && fcntl(STDERR_FILENO, F_GETPIPE_SZ) == PIPE_DEFAULT)
		(void)fcntl(STDERR_FILENO, F_SETPIPE_SZ, PIPE_BYTES);
	/* systemd.exec(5): the variable is inherited by children whose stderr went elsewhere */
	self.journal = js != NULL && sscanf(js, "%ju:%ju", &dev, &ino) == 2 && open &&
		       st.st_dev == dev && st.st_ino == ino;
}

void
log_setup(enum log_level level, enum log_format format)
{
	self.level = format == LOG_F_OFF ? LOG_L_ERROR : level;
	self.format = format;
}

const char *
log_level_word(enum log_level level)
{
	return levels[level].name;
}

void
log_count_dropped(uint64_t *counter)
{
	self.counter = counter;
}

int
log_enabled(enum log_level level)
{
	return level <= self.level;
}

/*
 * Writes the line, or drops it: no process waits for a log, least of all the master for a stuck
 * journal.  O_NONBLOCK would be simpler, but stderr's file is shared with the parent process.
 */
static bool
sink_take(const char *p, size_t n)
{
	struct pollfd fd = {.fd = STDERR_FILENO, .events = POLLOUT};
	struct iovec line = {(void *)(uintptr_t)p, n};
	ssize_t r;

	if (self.sink == S_IFSOCK) {
		do
			r = send(STDERR_FILENO, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
		while (r == -1 && errno == EINTR);
		return r != -1;
	}
	if (self.sink == S_IFIFO) {
		do
			r = pwritev2(STDERR_FILENO, &line, 1, -1, RWF_NOWAIT);
		while (r == -1 && errno == EINTR);
		if (r != -1 || errno == EAGAIN)
			return r != -1;
	}
	/* an older kernel; or a terminal, which may have been stopped */
	if (self.sink != S_IFREG && poll(&fd, 1, 0) != 1)
		return false;
	do
		r = write(STDERR_FILENO, p, n);
	while (r == -1 && errno == EINTR);
	return r == (ssize_t)n; /* a full disk takes a part */
}

static void
count_dropped(uint64_t lines)
{
	self.dropped += lines;
	if (self.counter != NULL)
		*self.counter += lines;
}

/* --- journald's own protocol --------------------------------------------------------------------
 *
 * systemd.io/JOURNAL_NATIVE_PROTOCOL: one datagram is one entry, a line NAME=value for each field.  Not
 * sd_journal_sendv(): it waits while the journal is stuck. */

#define ENTRY_BYTES (3 * LINE_MAX_BYTES)

struct entry {
	char b[ENTRY_BYTES];
	size_t n;
};

static void
entry_add(struct entry *e, const char *p, size_t n)
{
	if (n <= sizeof(e->b) - e->n) {
		memcpy(e->b + e->n, p, n);
		e->n += n;
	}
}

/* A value with a newline has its length before it, as 64 bits with the lowest byte first. */
static void
entry_value(struct entry *e, const char *p, size_t n)
{
	const uint64_t le = htole64(n);

	if (memchr(p, '\n', n) == NULL) {
		entry_add(e, "=", 1);
	} else {
		entry_add(e, "\n", 1);
		entry_add(e, (const char *)&le, sizeof(le));
	}
	entry_add(e, p, n);
	entry_add(e, "\n", 1);
}

static void
entry_name(struct entry *e, const char *key)
{
	char name[4 + KEY_MAX] = "PDR_";
	size_t n = 4;

	for (; *key != '\0' && n < sizeof(name); key++)
		name[n++] = (char)(*key >= 'a' && *key <= 'z' ? *key - 'a' + 'A' : *key);
	entry_add(e, name, n);
}

static void
entry_field(struct entry *e, const struct log_field *f)
{
	struct line v = {.n = 0};

	if (f->type == LOG_T_NONE || (f->type == LOG_T_STR && f->v.s == NULL))
		return;
	if (e->n > sizeof(e->b) - KEY_MAX - FIELD_MAX_BYTES - 64)
		return; /* a field is whole or left out */
	entry_name(e, f->key);
	if (f->type == LOG_T_STR) {
		entry_value(e, f->v.s, strnlen(f->v.s, FIELD_MAX_BYTES));
		return;
	}
	put_value(&v, f);
	entry_value(e, v.b, v.n);
}

/* 0 or errno. */
static int
journal_send(const char *p, size_t n)
{
	ssize_t r;

	do
		r = send(self.journal_fd, p, n, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (r == -1 && errno == EINTR);
	return r == -1 ? errno : 0;
}

static bool
is_full(int err)
{
	return err == EAGAIN || err == ENOBUFS;
}

static bool
is_gone(int err)
{
	return err != 0 && !is_full(err) && err != EMSGSIZE;
}

/* Where an entry of n bytes finds room in the ring; LATE_BYTES: nowhere.  The ring is never full to the last byte. */
static size_t
late_room(size_t n)
{
	static const size_t to_begin = 0;

	if (late.lines == 0)
		late.from = late.end = 0;
	if (late.end < late.from)
		return late.from - late.end > n ? late.end : LATE_BYTES;
	if (LATE_BYTES - late.end >= n)
		return late.end;
	if (late.from <= n)
		return LATE_BYTES;
	if (LATE_BYTES - late.end >= sizeof(to_begin))
		memcpy(late.b + late.end, &to_begin, sizeof(to_begin));
	return 0;
}

/* False: the entry finds no room. */
static bool
late_keep(const struct entry *e)
{
	const size_t at = late_room(sizeof(e->n) + e->n);

	if (at == LATE_BYTES)
		return false;
	memcpy(late.b + at, &e->n, sizeof(e->n));
	memcpy(late.b + at + sizeof(e->n), e->b, e->n);
	late.end = at + sizeof(e->n) + e->n;
	late.lines++;
	return true;
}

/* The length of the first entry, whose place is late.from. */
static size_t
late_first(void)
{
	size_t n = 0;

	if (LATE_BYTES - late.from >= sizeof(n))
		memcpy(&n, late.b + late.from, sizeof(n));
	if (n == 0) {
		late.from = 0;
		memcpy(&n, late.b, sizeof(n));
	}
	return n;
}

static void
late_drop(void)
{
	count_dropped(late.lines);
	late.lines = 0;
}

/* Sends what waits.  False: journald takes no more now. */
static bool
late_send(void)
{
	while (late.lines > 0) {
		const size_t n = late_first();
		const int err = journal_send(late.b + late.from + sizeof(n), n);

		if (is_full(err))
			return false;
		if (is_gone(err)) {
			self.journal_fd = -1;
			late_drop();
			return true;
		}
		count_dropped(err != 0);
		late.from += sizeof(n) + n;
		late.lines--;
	}
	return true;
}

/* `l`: the whole line, without its newline the message. */
static bool
journal_take(enum log_level level, const struct line *l, const struct log_field *fields, size_t n)
{
	struct entry e;
	const char priority[] = {
		'P', 'R', 'I', 'O', 'R', 'I', 'T', 'Y', '=', levels[level].prefix[1], '\n'};
	int err;

	e.n = 0;
	entry_add(&e, "SYSLOG_IDENTIFIER=pdrouter\n", 27);
	entry_add(&e, priority, sizeof(priority));
	entry_add(&e, "MESSAGE", 7);
	entry_value(&e, l->b, l->n - 1);
	entry_field(&e, &LOG_S("process", self.process));
	entry_field(&e, &LOG_U("slot", self.slot));
	for (size_t i = 0; i < n; i++)
		entry_field(&e, &fields[i]);
	if (!late_send())
		return late_keep(&e); /* entries stay in order */
	err = self.journal_fd != -1 ? journal_send(e.b, e.n) : ENOTCONN;
	if (is_full(err))
		return self.flushes && late_keep(&e);
	if (!is_gone(err))
		return err == 0;
	self.journal_fd = -1; /* its socket is gone for good; a child cannot open another one */
	return sink_take(l->b, l->n);
}

int
log_to_journal(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int err;

	(void)snprintf(sun.sun_path, sizeof(sun.sun_path), "%s", path);
	if (fd == -1 || connect(fd, (struct sockaddr *)&sun, sizeof(sun)) == -1) {
		err = errno;
		if (fd != -1)
			(void)close(fd);
		return err;
	}
	self.journal_fd = fd;
	return 0;
}

int
log_journal_fd(void)
{
	return self.journal_fd;
}

static void
make_line(struct line *l, enum log_level level, const char *msg, const struct log_field *fields,
	size_t n)
{
	bool clipped;

	l->n = l->start = 0;
	l->full = false;
	l->json = self.format == LOG_F_JSON;
	put_start(l, level, msg);
	put_field(l, &LOG_S("process", self.process));
	put_field(l, &LOG_U("slot", self.slot));
	clipped = l->full;
	for (size_t i = 0; i < n; i++) {
		l->full = false;
		put_field(l, &fields[i]);
		clipped |= l->full;
	}
	put_end(l, clipped);
}

/* Makes the line and writes it.  Returns false if the line was dropped. */
static bool
write_line(enum log_level level, const char *msg, const struct log_field *fields, size_t n)
{
	struct line l;

	make_line(&l, level, msg, fields, n);
	return self.journal_fd == -1 ? sink_take(l.b, l.n) : journal_take(level, &l, fields, n);
}

/* Writes how many lines were dropped, if any were.  Returns false if stderr still takes nothing. */
static bool
tell_dropped(void)
{
	if (self.dropped > 0 && !write_line(LOG_L_WARN, "log lines were dropped: stderr was full",
					&LOG_U("lines", self.dropped), 1))
		return false;
	self.dropped = 0;
	return true;
}

bool
log_flush(void)
{
	const int saved = errno;
	bool all;

	if (held.n > 0 && (!tell_dropped() || !sink_take(held.b, held.n)))
		count_dropped(held.lines);
	held.n = held.lines = 0;
	all = late_send();
	errno = saved;
	return all;
}

void
log_finish(void)
{
	const uint64_t end_ms = clock_ms() + FINISH_MS;
	struct pollfd fd = {.fd = self.journal_fd, .events = POLLOUT};

	while (!log_flush() && clock_ms() < end_ms)
		(void)poll(&fd, 1, 10);
	late_drop();
}

void
log_keep(void)
{
	self.flushes = true;
}

void
log_hold(void)
{
	self.flushes = self.holds = true;
}

static void
hold_line(enum log_level level, const char *msg, const struct log_field *fields, size_t n)
{
	struct line l;

	make_line(&l, level, msg, fields, n);
	if (held.n + l.n > (self.sink == S_IFREG ? HELD_BYTES : LINE_MAX_BYTES))
		log_flush();
	memcpy(held.b + held.n, l.b, l.n);
	held.n += l.n;
	held.lines++;
}

void
log_errors_to(log_error_fn *fn, void *arg)
{
	self.errors_to = fn;
	self.errors_arg = arg;
}

void
log_write(enum log_level level, const char *msg, const struct log_field *fields, size_t n)
{
	int saved = errno;

	if (!log_enabled(level))
		return;
	if (level == LOG_L_ERROR && self.errors_to != NULL)
		self.errors_to(self.errors_arg, msg, fields, n);
	if (self.holds && level != LOG_L_ERROR && self.journal_fd == -1) {
		hold_line(level, msg, fields, n);
	} else {
		log_flush(); /* lines stay in order */
		if (!tell_dropped() || !write_line(level, msg, fields, n))
			count_dropped(1);
	}
	errno = saved;
}
