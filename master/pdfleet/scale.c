#include "master/pdfleet/scale.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf_number.h"
#include "master/pdfleet/complain.h"
#include "master/pdfleet/rewrite.h"
#include "master/topology/edit.h"
#include "master/topology/plan.h"
#include "master/topology/template_find.h"

/* ROLE=NUMBER; false after a message. */
static bool
read_word(const char *word, enum topo_role *ret_role, uint32_t *ret_replicas)
{
	const char *is = strchr(word, '=');
	unsigned role = 0;
	uint64_t v = 0;
	size_t n = is != NULL ? conf_digits(is + 1, &v) : 0;

	while (is != NULL && role < TOPO_ROLE_N &&
		(strlen(topo_role_name(role)) != (size_t)(is - word) ||
			strncmp(word, topo_role_name(role), (size_t)(is - word)) != 0))
		role++;
	if (is == NULL || role == TOPO_ROLE_N || n == 0 || is[1 + n] != '\0' || v > UINT32_MAX) {
		(void)complain_of(word, "write prefill=3, decode=3 or engines=3");
		return false;
	}
	*ret_role = role;
	*ret_replicas = (uint32_t)v;
	return true;
}

/* All edits, one after the other, in *text. */
static int
edit(const struct rewrite *r, char *const *words, int n, struct membuf *text)
{
	struct conf_error err;
	enum topo_role role = TOPO_PREFILL;
	uint32_t replicas = 0;

	membuf_add(text, r->text, r->n);
	for (int i = 0; i < n; i++) {
		struct membuf next = {.p = NULL};

		if (!read_word(words[i], &role, &replicas))
			return 2;
		if (topo_scale(r->path, text->p, text->n, role, replicas, &next, &err) != 0) {
			(void)complain_error(&err);
			return 1;
		}
		membuf_free(text);
		*text = next;
	}
	return 0;
}

/* A fleet file with findings is not written. */
static int
check(const struct rewrite *r, const char *templates, const struct membuf *text)
{
	struct topology *t = NULL;
	struct topo_template *template = NULL;
	struct topo_plan *p = NULL;
	struct conf_error err;
	int rc = topo_parse(r->path, text->p, text->n, &t, &err);

	if (rc == 0)
		rc = topo_template_find(t, templates, &template, &err);
	if (rc != 0) {
		(void)complain_error(&err);
	} else {
		p = topo_plan_make(t, template);
		for (size_t i = 0; i < p->nfindings; i++)
			(void)complain_error(&p->findings[i]);
		rc = p->nfindings > 0 ? -1 : 0;
	}
	topo_plan_free(&p);
	topo_template_free(&template);
	topo_free(&t);
	return rc;
}

int
scale_file(const char *path, const char *templates, char *const *words, int n)
{
	struct rewrite r;
	struct membuf text = {.p = NULL};
	int rc = rewrite_begin(path, &r) == 0 ? edit(&r, words, n, &text) : 1;

	if (rc == 0 && check(&r, templates, &text) != 0) {
		(void)complain("%s stays as it was", path);
		rc = 1;
	}
	if (rc == 0 && (text.n != r.n || memcmp(text.p, r.text, r.n) != 0) &&
		rewrite_end(&r, text.p, text.n) != 0)
		rc = 1;
	membuf_free(&text);
	rewrite_free(&r);
	return rc;
}
