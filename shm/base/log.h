/*
 * Log lines to stderr: logfmt, "ts=... level=info msg=... key=value ...", or one JSON object a line with the same keys
 * (log_format).  When stderr is the journal ($JOURNAL_STREAM), the line begins with journald's level prefix and has no
 * time: "<6>msg=... key=value ...".
 *
 * A line is at most 4 KiB, and so is each write(2) of whole lines to anything but a file, so lines of several processes
 * never mix; longer lines are clipped.  A line that stderr would not accept at once is dropped: no process ever waits for
 * its log.  Once stderr takes bytes again, one line says how many were dropped.  Text from outside is
 * quoted and escaped, and clipped to 256 bytes a field.
 *
 * Libraries (shm/, proto/) do not log.
 */
#pragma once
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum log_level { LOG_L_ERROR, LOG_L_WARN, LOG_L_INFO, LOG_L_DEBUG };
enum log_to { LOG_TO_STDERR, LOG_TO_JOURNALD };
/* OFF: errors alone, as logfmt */
enum log_format { LOG_F_LOGFMT, LOG_F_JSON, LOG_F_OFF };

struct log_field {
	const char *key;
	enum { LOG_T_NONE, LOG_T_STR, LOG_T_UINT, LOG_T_INT, LOG_T_MS } type;
	uint32_t nkey; /* length of the key, of a literal a constant */
	union {
		const char *s; /* NULL: none; left out of logfmt, null in JSON */
		uint64_t u;
		int64_t i;
	} v;
};

/* not known: left out of the line */
#define LOG_NONE ((struct log_field){.type = LOG_T_NONE})
#define LOG_FIELD(k, t, member, val)                                                               \
	((struct log_field){                                                                       \
		.key = (k), .type = (t), .nkey = (uint32_t)strlen(k), .v.member = (val)})
#define LOG_S(k, val) LOG_FIELD(k, LOG_T_STR, s, val)
#define LOG_U(k, val) LOG_FIELD(k, LOG_T_UINT, u, (uint64_t)(val))
#define LOG_I(k, val) LOG_FIELD(k, LOG_T_INT, i, (int64_t)(val))
/* microseconds in, printed as milliseconds with one decimal; so thousandths of anything */
#define LOG_MS(k, us) LOG_FIELD(k, LOG_T_MS, u, (uint64_t)(us))

/* `process` ("master", "worker", "notifier") and its slot stand in every line after this call. */
void log_init(const char *process, uint32_t slot);
#define LOG_JOURNAL "/run/systemd/journal/socket"
/* Lines of this process and of those that it forks go to journald's socket from now on, each field with a name of its
 * own: PDR_REASON.  Returns 0, or an errno. */
int log_to_journal(const char *path);
/* Returns that socket, which a child must keep; -1: there is none. */
int log_journal_fd(void);
/* Dropped lines are added to *counter, which no other process writes. */
void log_count_dropped(uint64_t *counter);
void log_setup(enum log_level level, enum log_format format);
/* The word of the configuration, of the lines and of pdctl. */
const char *log_level_word(enum log_level level);
/* True if a line of this level would be written: guards work done only for a debug line. */
int log_enabled(enum log_level level);
void log_write(enum log_level level, const char *msg, const struct log_field *fields, size_t n);

/* From the first call on, lines that journald is too late for wait until log_flush(): in the master. */
void log_keep(void);
/*
 * The same, and lines to stderr always wait: a worker writes those of one turn of its loop together.  A line of level error
 * is written at once, behind those that wait.  A process that is killed loses the lines that wait.
 */
void log_hold(void);
/* False: journald is late, and lines wait for another call. */
bool log_flush(void);
/* At the end of a process: journald may be late for 0.1 s.  What is left then counts as dropped. */
void log_finish(void);

/* Each line of level error also goes to fn; NULL: no longer. */
typedef void log_error_fn(void *arg, const char *msg, const struct log_field *fields, size_t n);
void log_errors_to(log_error_fn *fn, void *arg);

#define LOG_AT(level, msg, ...)                                                                    \
	log_write(level, msg, (const struct log_field[]){__VA_ARGS__},                             \
		sizeof((const struct log_field[]){__VA_ARGS__}) / sizeof(struct log_field))
#define log_error(msg, ...) LOG_AT(LOG_L_ERROR, msg, __VA_ARGS__)
#define log_warn(msg, ...) LOG_AT(LOG_L_WARN, msg, __VA_ARGS__)
#define log_info(msg, ...) LOG_AT(LOG_L_INFO, msg, __VA_ARGS__)
#define log_debug(msg, ...)                                                                        \
	do {                                                                                       \
		if (log_enabled(LOG_L_DEBUG))                                                      \
			LOG_AT(LOG_L_DEBUG, msg, __VA_ARGS__);                                     \
	} while (0)
