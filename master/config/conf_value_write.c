/* One member as YAML text. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_number.h"
#include "master/config/conf_read.h"
#include "shm/base/mem.h"

void
conf_write_text(FILE *out, const char *s)
{
	(void)fputc('"', out);
	for (; *s != '\0'; s++) {
		if ((unsigned char)*s < 0x20 || *s == 0x7f)
			(void)fprintf(out, "\\x%02x", (unsigned)*s);
		else
			(void)fprintf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
	}
	(void)fputc('"', out);
}

static void
write_number(const struct conf_key *k, uint64_t v, FILE *out)
{
	char buf[32];

	if (k->type == CONF_T_COUNT_OR_AUTO && v == UINT32_MAX)
		(void)fputs("auto", out);
	else if (k->type == CONF_T_SIZE)
		(void)fputs(conf_units_show(v, conf_sizes, buf), out);
	else if (k->type == CONF_T_DURATION || k->type == CONF_T_DURATION_OR_0)
		(void)fputs(conf_units_show(v, conf_durations, buf), out);
	else if (k->type == CONF_T_PRIORITY)
		(void)fprintf(out, "%" PRId32, (int32_t)v);
	else if (k->type == CONF_T_PART)
		(void)fprintf(out, "%.7g", (double)v / CONF_PART_ALL);
	else if (k->type == CONF_T_MODE)
		(void)fprintf(out, "%04" PRIo64, v);
	else
		(void)fprintf(out, "%" PRIu64, v);
}

static void
write_texts(char *const *v, size_t n, FILE *out)
{
	(void)fputc('[', out);
	for (size_t i = 0; i < n; i++) {
		(void)fputs(i > 0 ? ", " : "", out);
		conf_write_text(out, v[i]);
	}
	(void)fputc(']', out);
}

static void
write_ports(const struct conf_ports *ports, FILE *out)
{
	(void)fputc('[', out);
	for (uint32_t i = 0; i < ports->n; i++)
		(void)fprintf(out, "%s%u", i > 0 ? ", " : "", (unsigned)ports->port[i]);
	(void)fputc(']', out);
}

static void
write_rate(const struct conf_rate *rate, FILE *out)
{
	size_t i = 0;

	while (conf_periods[i].seconds != rate->per_s)
		i++;
	(void)fprintf(out, "%" PRIu32 "%s", rate->n, conf_periods[i].name);
}

static void
write_listen(const struct conf_listen *list, size_t n, FILE *out)
{
	char **v = mem_array(n + 1, sizeof(*v));

	for (size_t i = 0; i < n; i++)
		v[i] = list[i].text;
	write_texts(v, n, out);
	free(v);
}

static void
write_certificates(const struct conf_tls *t, FILE *out)
{
	(void)fputc('[', out);
	for (size_t i = 0; i < t->ncertificates; i++) {
		(void)fputs(i > 0 ? ", {cert: " : "{cert: ", out);
		conf_write_text(out, t->certificates[i].cert);
		(void)fputs(", key: ", out);
		conf_write_text(out, t->certificates[i].key);
		(void)fputc('}', out);
	}
	(void)fputc(']', out);
}

void
conf_value_write(const struct conf_key *k, const void *base, FILE *out)
{
	const void *at = (const char *)base + k->off;
	const char *s;

	switch (conf_repr(k)) {
	case CONF_U32:
		write_number(k, *(const uint32_t *)at, out);
		return;
	case CONF_U64:
		write_number(k, *(const uint64_t *)at, out);
		return;
	case CONF_WORD:
		(void)fputs(conf_word(k, *(const uint32_t *)at), out);
		return;
	case CONF_RATE:
		write_rate(at, out);
		return;
	case CONF_SHORT:
		conf_write_text(out, at);
		return;
	case CONF_PORTS:
		write_ports(at, out);
		return;
	case CONF_STR:
		s = *(char *const *)at;
		conf_write_text(out, s != NULL ? s : "");
		return;
	case CONF_STRS:
		write_texts(*(char *const *const *)at,
			*(const size_t *)((const char *)base + k->noff), out);
		return;
	case CONF_LIST:
		assert(k->type == CONF_T_LISTEN || k->type == CONF_T_CERTIFICATES);
		if (k->type == CONF_T_LISTEN)
			write_listen(*(struct conf_listen *const *)at,
				*(const size_t *)((const char *)base + k->noff), out);
		else
			write_certificates(&((const struct conf *)base)->tls, out);
	}
}
