#include "master/topology/finding.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "master/config/conf_read.h"
#include "shm/base/mem.h"

#define FINDINGS_MAX 1000 /* each is compared with all */

static bool
same(const struct conf_error *a, const struct conf_error *b)
{
	return a->line == b->line && strcmp(a->file, b->file) == 0 && strcmp(a->key, b->key) == 0 &&
	       strcmp(a->what, b->what) == 0;
}

void
topo_found(struct topo_plan *p, const char *file, int line, const char *key, const char *fmt, ...)
{
	struct conf_error e = {.line = line};
	va_list ap;

	if (p->nfindings == FINDINGS_MAX)
		return;
	(void)snprintf(e.file, sizeof(e.file), "%s", file);
	(void)snprintf(e.key, sizeof(e.key), "%s", key);
	va_start(ap, fmt);
	(void)vsnprintf(e.what, sizeof(e.what), fmt, ap);
	va_end(ap);
	conf_blunt(e.key);
	conf_blunt(e.what);
	for (size_t i = 0; i < p->nfindings; i++)
		if (same(&p->findings[i], &e))
			return;
	p->findings = mem_resize(p->findings, p->nfindings + 1, sizeof(*p->findings));
	p->findings[p->nfindings++] = e;
}

static bool
is_before(const struct topo_plan *p, const struct conf_error *a, const struct conf_error *b)
{
	bool a_ours = strcmp(a->file, p->t->path) == 0, b_ours = strcmp(b->file, p->t->path) == 0;

	return a_ours != b_ours ? a_ours : a->line < b->line;
}

/* By insertion: there are few, and equal lines keep their order. */
void
topo_findings_sort(struct topo_plan *p)
{
	for (size_t i = 1; i < p->nfindings; i++)
		for (size_t k = i; k > 0 && is_before(p, &p->findings[k], &p->findings[k - 1]);
			k--) {
			struct conf_error e = p->findings[k];

			p->findings[k] = p->findings[k - 1];
			p->findings[k - 1] = e;
		}
}
