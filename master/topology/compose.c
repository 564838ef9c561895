#include "master/topology/compose.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "master/topology/finding.h"
#include "master/topology/names.h"
#include "master/topology/parts.h"
#include "shm/base/mem.h"

/* The master composes too: many engines with many long arguments must not take the machine's memory. */
#define ALL_TEXTS_MAX (32u << 20)
#define TEXT_OVERHEAD 48

static bool
is_full(const struct topo_plan *p)
{
	return p->composed > ALL_TEXTS_MAX;
}

/* A text with its names replaced; the text itself if that is impossible, which is a finding. */
static char *
replace(struct topo_plan *p, const struct topo_engine *e, const struct topo_text *text)
{
	char *name = NULL, *ret = topo_names_replace(p, e, text->text, &name);

	if (ret == NULL && name != NULL && strcmp(name, "${venv}") == 0 &&
		text->file != p->t->path) /* the template's command has it */
		topo_found(p, p->t->path, topo_line(p->t, "engine.kind"), "engine",
			"venv, container or command is needed: what starts %.40s?",
			p->t->engine.kind);
	else if (ret == NULL && name != NULL)
		topo_found(p, text->file, text->line, "", "%.60s has no value for %s", name,
			e != NULL ? topo_role_name(e->role) : "the router");
	else if (ret == NULL)
		topo_found(p, text->file, text->line, "",
			"is longer than %u bytes with its names replaced", TOPO_TEXT_MAX);
	free(name);
	if (ret == NULL)
		ret = mem_strdup(text->text);
	p->composed += strlen(ret) + TEXT_OVERHEAD;
	if (is_full(p))
		topo_found(p, p->t->path, 0, "",
			"the arguments and variables of all engines are larger than %u MiB",
			ALL_TEXTS_MAX >> 20);
	return ret;
}

static void
append(struct topo_plan *p, const struct topo_engine *e, const struct topo_texts *from,
	struct topo_texts *to)
{
	to->v = mem_resize(to->v, to->n + from->n + 1, sizeof(*to->v));
	for (size_t i = 0; i < from->n && !is_full(p); i++)
		to->v[to->n++] = (struct topo_text){
			replace(p, e, &from->v[i]), from->v[i].file, from->v[i].line};
}

/* A later value takes the place of an earlier one. */
static void
merge(struct topo_plan *p, const struct topo_engine *e, const struct topo_settings *from,
	struct topo_settings *to)
{
	for (size_t i = 0; i < from->n && !is_full(p); i++) {
		const struct topo_setting *s = &from->v[i];
		struct topo_setting *mine = topo_setting(to, s->name);

		if (mine == NULL) {
			to->v = mem_resize(to->v, to->n + 1, sizeof(*to->v));
			mine = &to->v[to->n++];
			*mine = (struct topo_setting){.name = mem_strdup(s->name)};
		}
		free(mine->value.text);
		mine->value =
			(struct topo_text){replace(p, e, &s->value), s->value.file, s->value.line};
	}
}

/* The runtime's words, up to image and program. */
static void
append_container(struct topo_plan *p, struct topo_engine *e)
{
	const struct topo_container *c = p->container;
	struct topo_text word = {.file = p->template->path};

	append(p, e, &c->command, &e->argv);
	if (e->gpus.n > 0)
		append(p, e, &c->gpus, &e->argv);
	if (e->host->rdma != NULL)
		append(p, e, &c->rdma, &e->argv);
	if (p->t->model[0] == '/')
		append(p, e, &c->model, &e->argv);
	if (e->file.n > 0)
		append(p, e, &c->file, &e->argv);
	for (size_t i = 0; c->variable != NULL && i < e->env.n; i++) {
		word.text = mem_printf("%s%s", c->variable, e->env.v[i].name);
		append(p, e, &(struct topo_texts){&word, 1}, &e->argv);
		free(word.text);
	}
	append(p, e, &p->t->engine.container_args, &e->argv);
	append(p, e, &c->image, &e->argv);
	append(p, e, &c->cleanup, &e->cleanup);
}

static void
compose_environment(
	struct topo_plan *p, struct topo_engine *e, const struct topo_part *const *parts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		merge(p, e, &parts[i]->env, &e->env);
	merge(p, e, &e->group->env, &e->env);
	if (e->override != NULL)
		merge(p, e, &e->override->env, &e->env);
}

static void
compose_engine(struct topo_plan *p, struct topo_engine *e)
{
	const struct topo_texts *own = &p->t->engine.command;
	struct topo_texts command = own->n > 0 ? *own : p->template->command;
	const struct topo_part *parts[TOPO_PARTS];
	size_t n = topo_parts(p, e, parts);

	compose_environment(p, e, parts, n);
	for (size_t i = 0; i < n; i++) {
		append(p, e, &parts[i]->file, &e->file);
		merge(p, e, &parts[i]->endpoint, &e->endpoint);
	}
	if (p->container != NULL && command.n > 0) {
		append_container(p, e);
		command.v++; /* the program is that of the image */
		command.n--;
	}
	append(p, e, &command, &e->argv);
	for (size_t i = 0; own->n == 0 && i < n; i++)
		append(p, e, &parts[i]->args, &e->argv);
	append(p, e, &e->group->args, &e->argv);
	if (e->override != NULL)
		append(p, e, &e->override->args, &e->argv);
}

static void
check_needs(struct topo_plan *p, const struct topo_engine *e)
{
	const struct topo_connector *c = e->role == TOPO_ENGINES ? NULL : p->connector;

	for (size_t i = 0; c != NULL && i < c->needs_env.n; i++)
		if (topo_setting(&e->env, c->needs_env.v[i].text) == NULL)
			topo_found(p, p->t->path, e->group->line, topo_role_name(e->role),
				"%s needs env: {%.60s: ...}", p->t->connector,
				c->needs_env.v[i].text);
}

static void
check_variable(struct topo_plan *p, const struct topo_setting *s)
{
	const char *c = s->name;

	while (isalnum((unsigned char)*c) || *c == '_')
		c++;
	if (*c != '\0' || c == s->name || isdigit((unsigned char)s->name[0]))
		topo_found(p, s->value.file, s->value.line, "",
			"%.60s cannot be the name of a variable", s->name);
	else if (strncmp(s->name, TOPO_ENV_PREFIX, strlen(TOPO_ENV_PREFIX)) == 0)
		topo_found(p, s->value.file, s->value.line, "",
			"%.60s: names with " TOPO_ENV_PREFIX " are those of pdctl fleet", s->name);
}

static void
check_engine(struct topo_plan *p, const struct topo_engine *e)
{
	for (size_t i = 0; i < e->env.n; i++)
		check_variable(p, &e->env.v[i]);
	if (p->container != NULL && p->container->command.n == 0)
		return; /* not for systemd: the words behind the program of an image */
	if (e->argv.n == 0)
		topo_found(p, p->template->path, 0, "command", "is empty");
	else if (strstr(e->argv.v[0].text, "${") != NULL)
		return; /* a name without a value: a finding already */
	else if (e->argv.v[0].text[0] != '/')
		topo_found(p, e->argv.v[0].file, e->argv.v[0].line, "",
			"%.80s: systemd needs the full path of a program", e->argv.v[0].text);
	else if (strpbrk(e->argv.v[0].text, "$%") != NULL)
		topo_found(p, e->argv.v[0].file, e->argv.v[0].line, "",
			"%.80s: the path of a program can have no $ or %%", e->argv.v[0].text);
}

void
topo_compose(struct topo_plan *p)
{
	const struct topo_connector *c = p->connector;

	for (size_t i = 0; i < p->nengines && !is_full(p); i++) {
		if (p->engines[i].host == NULL)
			continue; /* a finding already */
		compose_engine(p, &p->engines[i]);
		check_engine(p, &p->engines[i]);
		check_needs(p, &p->engines[i]);
	}
	if (p->t->router.line == 0)
		return;
	merge(p, NULL, &p->template->pool, &p->pool);
	merge(p, NULL, &p->template->router, &p->router);
	if (c != NULL) {
		merge(p, NULL, &c->pool, &p->pool);
		merge(p, NULL, &c->router, &p->router);
	}
}
