#include "master/pdfleet/complain.h"

#include <stdarg.h>
#include <stdio.h>

#include "master/config/conf.h"

int
complain(const char *fmt, ...)
{
	va_list ap;

	(void)fprintf(stderr, "pdctl fleet: ");
	va_start(ap, fmt);
	(void)vfprintf(stderr, fmt, ap);
	va_end(ap);
	(void)fprintf(stderr, "\n");
	return -1;
}

int
complain_error(const struct conf_error *err)
{
	char buf[1024];

	(void)fprintf(stderr, "%s\n", conf_error_text(err, buf, sizeof(buf)));
	return -1;
}
