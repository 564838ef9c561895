#include "master/config/conf_flag.h"

#include <stdio.h>
#include <string.h>

#include "master/config/conf_read.h"
#include "shm/base/mem.h"

const struct conf_flag_row conf_flag_rows[FLAG_N] = {
#define USED(id, name, arg, doc) [FLAG_##id] = {name, arg, doc, CONF_FLAG_USED},
#define IDLE(id, name, arg, doc) [FLAG_##id] = {name, arg, doc, CONF_FLAG_IDLE},
#define GONE(id, name, arg, doc) [FLAG_##id] = {name, arg, doc, CONF_FLAG_GONE},
	CONF_FLAGS(USED, IDLE, GONE)};

const char *
conf_flag_name(enum conf_flag f, char buf[CONF_FLAG_NAME])
{
	(void)snprintf(buf, CONF_FLAG_NAME, "--%s", conf_flag_rows[f].name);
	return buf;
}

int
conf_flag_fail(struct conf_error *err, enum conf_flag f, const char *what)
{
	char name[CONF_FLAG_NAME];
	struct conf_read r = {.flag = conf_flag_name(f, name), .err = err};

	return conf_fail(&r, 0, "%s", what);
}

/* "host:port", with the brackets an IPv6 literal needs; the caller frees it. */
char *
conf_host_port(const char *host, const char *port)
{
	bool bare = strchr(host, ':') != NULL && host[0] != '[';

	return mem_printf("%s%s%s:%s", bare ? "[" : "", host, bare ? "]" : "", port);
}
