/* Messages of pdctl fleet: a line on stderr each. */
#pragma once

struct conf_error;

/* All return -1.  "pdctl fleet: " and the text */
int complain(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* "pdctl fleet: WHAT: WHY"; `what` is a path, or a name. */
static inline int
complain_of(const char *what, const char *why)
{
	(void)complain("%s: %s", what, why);
	return -1;
}

/* What is wrong in a file of the user: "FILE:LINE: KEY: WHY" */
int complain_error(const struct conf_error *err);
