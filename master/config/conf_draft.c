#include "master/config/conf_draft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_draft_gateway.h"
#include "master/config/conf_draft_stack.h"

int
conf_draft_make(struct conf_draft *d, const struct conf_args *args, conf_note_fn *note_fn,
	void *note_arg, struct conf_error *err)
{
	int rc;

	*d = (struct conf_draft){.args = args, .note = note_fn, .note_arg = note_arg, .err = err};
	d->out = open_memstream(&d->text, &d->ntext);
	assert(d->out != NULL);
	if (args->nurls > 0 || draft_value(d, FLAG_PD_DISAGGREGATION) != NULL)
		rc = conf_draft_gateway(d);
	else
		rc = conf_draft_stack(d);
	(void)fclose(d->out);
	d->out = NULL;
	return rc;
}

/* The n-th line of the text, from 1 on; its end if there are less. */
static const char *
line_at(const struct conf_draft *d, int n)
{
	const char *p = d->text;

	while (n-- > 1 && *(p += strcspn(p, "\n")) != '\0')
		p++;
	return p;
}

/* The line of an error: the line of the named key, if the key is in the entry that begins there. */
static int
line_of(const struct conf_draft *d, const struct conf_error *err)
{
	const char *dot = strrchr(err->key, '.'), *name = dot != NULL ? dot + 1 : err->key, *p;
	const size_t n = strcspn(name, "[");

	for (int line = err->line; line > 0; line++) {
		p = line_at(d, line);
		p += strspn(p, " ");
		if (line > err->line && (*p == '-' || *p == '\0'))
			break;
		p += strspn(p, "- ");
		if (n > 0 && strncmp(p, name, n) == 0 && p[n] == ':')
			return line;
	}
	return err->line;
}

/* Removes the line number, which means nothing to a user who has written no file. */
static void
cut_lines(char *what)
{
	static const char *const said[] = {", first in line ", " in line "};
	char *p, *end;

	for (size_t i = 0; i < 2; i++)
		while ((p = strstr(what, said[i])) != NULL) {
			end = p + strlen(said[i]);
			end += strspn(end, "0123456789");
			memmove(p, end, strlen(end) + 1);
		}
}

int
conf_draft_parse(struct conf_draft *d, struct conf **ret, struct conf_error *err)
{
	struct conf_error e;
	struct conf *c;
	size_t line;

	if (conf_parse(NULL, d->text, d->ntext, &c, &e) == 0) {
		memset(c->key_lines, 0, conf_root_keys.n * sizeof(*c->key_lines));
		*ret = c;
		return 0;
	}
	line = (size_t)line_of(d, &e);
	cut_lines(e.what);
	e.line = 0;
	if (line > 0 && line <= d->nlines && d->from[line - 1] < FLAG_N)
		(void)conf_flag_name((enum conf_flag)d->from[line - 1], e.key);
	else if (line > 0 && line <= d->nlines)
		(void)snprintf(e.key, sizeof(e.key), "%s",
			d->from[line - 1] == FROM_PORT ? "--port" : "--host");
	*err = e;
	return -1;
}

void
conf_draft_free(struct conf_draft *d)
{
	if (d->has_registry)
		yaml_document_delete(&d->registry);
	d->has_registry = false;
	free(d->text);
	free(d->from);
	d->text = NULL;
	d->from = NULL;
}
