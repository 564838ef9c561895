/* The flags of other routers, one by one: their rows, and errors that name one. */
#pragma once
#include "master/config/conf.h"
#include "master/config/conf_flags.h"

#define CONF_FLAG_NAME 64 /* bytes of "--name" */

/* used: it becomes keys; idle: there is nothing for it to do; gone: it is refused. */
enum conf_flag_kind { CONF_FLAG_USED, CONF_FLAG_IDLE, CONF_FLAG_GONE };

struct conf_flag_row {
	const char *name, *arg, *doc; /* arg: NULL where it takes no value */
	enum conf_flag_kind kind;
};
extern const struct conf_flag_row conf_flag_rows[FLAG_N];

/* "--name"; returns buf. */
const char *conf_flag_name(enum conf_flag f, char buf[CONF_FLAG_NAME]);
/* Always -1. */
int conf_flag_fail(struct conf_error *err, enum conf_flag f, const char *what);
/* "host:port", an IPv6 literal in brackets; the caller frees it. */
char *conf_host_port(const char *host, const char *port);
