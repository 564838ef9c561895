#include "master/topology/overrule.h"

#include <stdlib.h>
#include <string.h>

#include "master/topology/agree.h"
#include "master/topology/finding.h"
#include "master/topology/names.h"
#include "master/topology/parts.h"
#include "shm/base/mem.h"

/*
 * The rule: a text of the template whose ${name} belongs to the plan gives the engine what the plan has decided.  A
 * text of the user in its place must have the same name; else the router and other engines would use another value.
 */
static void
compare(struct topo_plan *p, const struct topo_engine *e, const char *what, const char *template,
	const struct topo_text *users, const char *value)
{
	const char *at = template;
	size_t n = 0;
	char *name, *key;

	while ((at = topo_names_next(at, &n)) != NULL) {
		name = mem_strndup(at, n);
		key = topo_names_key(at + 2, n - 3);
		if (key != NULL && strstr(value, name) == NULL)
			topo_found(p, users->file, users->line, topo_role_name(e->role),
				"%.60s overrules the plan, which has %.60s there: write %.60s",
				what, name, key);
		free(name);
		free(key);
		at += n;
	}
}

/* The words of the user that give `flag`, as `flag VALUE` or `flag=VALUE`, under each of its names. */
static void
compare_flag(struct topo_plan *p, const struct topo_engine *e, const char *flag, size_t nflag,
	const char *template, const struct topo_texts *users)
{
	const struct topo_settings *same = &p->template->same_flags;

	for (size_t i = 0; i < users->n; i++) {
		const char *word = users->v[i].text, *name = word;
		size_t n = strcspn(word, "="), nname = n;
		const char *value = word[n] == '='     ? word + n + 1
				    : i + 1 < users->n ? users->v[i + 1].text
						       : "";

		for (size_t k = 0; k < same->n; k++)
			if (topo_same_flag(word, n, same->v[k].name, strlen(same->v[k].name))) {
				name = same->v[k].value.text;
				nname = strlen(name);
			}
		if (topo_same_flag(name, nname, flag, nflag))
			compare(p, e, word, template, &users->v[i], value);
	}
}

/* Each flag of the template's words that has a value. */
static void
compare_words(struct topo_plan *p, const struct topo_engine *e, const struct topo_texts *template,
	const struct topo_texts *users)
{
	for (size_t i = 0; i < template->n; i++) {
		const char *word = template->v[i].text;
		size_t n = strcspn(word, "=");
		const char *value = word[n] == '='        ? word + n + 1
				    : i + 1 < template->n ? template->v[i + 1].text
							  : "";

		if (word[0] == '-')
			compare_flag(p, e, word, n, value, users);
	}
}

static void
compare_variables(struct topo_plan *p, const struct topo_engine *e,
	const struct topo_settings *template, const struct topo_settings *users)
{
	const struct topo_setting *own;

	for (size_t i = 0; i < template->n; i++) {
		own = topo_setting(users, template->v[i].name);
		if (own != NULL)
			compare(p, e, own->name, template->v[i].value.text, &own->value,
				own->value.text);
	}
}

static void
check(struct topo_plan *p, const struct topo_engine *e, const struct topo_texts *args,
	const struct topo_settings *env)
{
	const struct topo_part *parts[TOPO_PARTS];
	size_t n = topo_parts(p, e, parts);
	bool own_command = p->t->engine.command.n > 0; /* it has none of the template's flags */

	if (!own_command)
		compare_words(p, e, &p->template->command, args);
	for (size_t i = 0; i < n; i++) {
		if (!own_command)
			compare_words(p, e, &parts[i]->args, args);
		compare_variables(p, e, &parts[i]->env, env);
	}
}

void
topo_overrule(struct topo_plan *p)
{
	for (size_t i = 0; i < p->nengines; i++) {
		const struct topo_engine *e = &p->engines[i];

		if (e->replica == 0)
			check(p, e, &e->group->args, &e->group->env);
		if (e->override != NULL)
			check(p, e, &e->override->args, &e->override->env);
	}
}
