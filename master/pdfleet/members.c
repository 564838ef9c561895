#include "master/pdfleet/members.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "master/pdfleet/complain.h"
#include "master/pdfleet/owned.h"
#include "master/pdfleet/process.h"
#include "master/pdfleet/tree.h"
#include "master/pdfleet/unit_file.h"
#include "master/topology/router_file.h"
#include "shm/base/mem.h"

#define FAILED_PROBES 3

const struct change_words change_words[CHANGE_N] = {
	[CHANGE_REMOVE] = {{"drain", "stop"}, "the fleet file does not have it"},
	[CHANGE_START] = {{"start"}, "it does not run"},
	[CHANGE_UNDRAIN] = {{"undrain"}, NULL},
	[CHANGE_NONE] = {{NULL}, NULL},
	[CHANGE_RESTART] = {{"drain", "restart", "undrain"}, "it runs with other files"},
};

enum change
member_change(const struct member_facts *f)
{
	if (!f->wanted)
		return CHANGE_REMOVE;
	if (!f->runs)
		return CHANGE_START;
	if (!f->current || f->again)
		return CHANGE_RESTART;
	return f->drained ? CHANGE_UNDRAIN : CHANGE_NONE;
}

bool
member_is_down(unsigned failed, enum routers_view view)
{
	return failed >= FAILED_PROBES && view != ROUTERS_UP;
}

/* --- digests
 * ------------------------------------------------------------------------------------- */

/* Where the digest is: in a variable of the process, and in the line of a file that gives it to the process. */
struct digest_place {
	const char *name, *begin;
};

static const struct digest_place in_env = {TOPO_ENV_DIGEST, "\n" TOPO_ENV_DIGEST "=\""};
static const struct digest_place in_drop_in = {TOPO_ENV_UNIT, "\nEnvironment=\"" TOPO_ENV_UNIT "="};

/* The digest in the text of a file; "" if it has none. */
static const char *
digest_of(const char *text, const struct digest_place *place, char buf[static 17])
{
	const char *at = text != NULL ? strstr(text, place->begin) : NULL;

	buf[0] = '\0';
	if (at != NULL)
		(void)snprintf(buf, 17, "%s", at + strlen(place->begin));
	return buf;
}

/* An engine that writes its title over its environment (setproctitle) runs with the file on disk, if it has started
 * after that was written. */
static bool
file_has(const char *path, const struct digest_place *place, time_t since, const char *want)
{
	char *text = tree_read(path, NULL), buf[17];
	struct stat st;
	bool yes = text != NULL && stat(path, &st) == 0 && since >= st.st_mtime &&
		   strcmp(digest_of(text, place, buf), want) == 0;

	free(text);
	return yes;
}

static bool
runs_with(const struct unit_status *s, const char *path, const struct digest_place *place,
	const char *want)
{
	char *runs = process_env(s->pid, place->name);
	bool yes = runs != NULL ? strcmp(runs, want) == 0 : file_has(path, place, s->since, want);

	free(runs);
	return yes;
}

bool
member_is_current(const struct runner *r, const struct member *m)
{
	char *text = m->files.n > 0 ? mem_strndup(m->files.v[0].bytes, m->files.v[0].n) : NULL;
	char *env = mem_printf("%s%s.env", r->paths.fleet, m->name), want[17];
	char *drop_in = runner_drop_in(r, m->unit);
	bool yes;

	(void)digest_of(text, &in_env, want);
	yes = runs_with(&m->status, env, &in_env, want) &&
	      runs_with(&m->status, drop_in, &in_drop_in, want);
	free(text);
	free(env);
	free(drop_in);
	return yes;
}

/* --- files that it does not need any more
 * ---------------------------------------------------------------- */

static bool
needs_file(const struct member *m, const char *path)
{
	for (size_t i = 0; i < m->files.n; i++)
		if (strcmp(m->files.v[i].path, path + 1) == 0)
			return true;
	return false;
}

/* Takes the path. */
static void
add_if_spare(const struct member *m, const char *fleet, char *path, struct words *ret)
{
	if (!needs_file(m, path) && owned_is_left(path, fleet))
		words_add(ret, path);
	else
		free(path);
}

struct words
member_spare_files(const struct runner *r, const char *fleet, const struct member *m)
{
	struct words ret = {.v = NULL};

	for (size_t i = 0; topo_engine_files[i] != NULL; i++)
		add_if_spare(m, fleet,
			mem_printf("%s%s%s", r->paths.fleet, m->name, topo_engine_files[i]), &ret);
	/* the drop-in is last: it tells the next run that there is something left */
	add_if_spare(m, fleet, runner_drop_in(r, m->unit), &ret);
	return ret;
}

/* --- what is there
 * ------------------------------------------------------------------------------- */

static struct member *
add(struct members *ms, const char *name)
{
	struct member *m;

	ms->v = mem_resize(ms->v, ms->n + 1, sizeof(*ms->v));
	m = &ms->v[ms->n++];
	*m = (struct member){.unit = mem_printf(TOPO_UNIT "%s", name)};
	m->name = m->unit + sizeof(TOPO_UNIT) - 1;
	return m;
}

/* FLEET-ROLE-N */
static bool
role_of(const char *name, const char *fleet, enum topo_role *ret)
{
	const size_t n = strlen(fleet);

	if (strncmp(name, fleet, n) != 0 || name[n] != '-')
		return false;
	for (unsigned role = 0; role < TOPO_ROLE_N; role++) {
		const char *word = topo_role_name(role), *s = name + n + 1;
		const size_t len = strlen(word);

		if (strncmp(s, word, len) != 0 || s[len] != '-' || s[len + 1] == '\0' ||
			s[len + 1 + strspn(s + len + 1, "0123456789")] != '\0')
			continue;
		*ret = (enum topo_role)role;
		return true;
	}
	return false;
}

static bool
has(const struct members *ms, const char *name)
{
	for (size_t i = 0; i < ms->n; i++)
		if (strcmp(ms->v[i].name, name) == 0)
			return true;
	return false;
}

/* Where names of engines are found: FOLDER/BEGIN NAME END, and REST behind that is the path of a file of the fleet. */
struct trace {
	const char *begin, *end, *rest;
};

/* The environment file is written first and removed first, the drop-in last. */
static const struct trace in_units = {TOPO_UNIT, TOPO_DROP_IN_DIR, TOPO_DROP_IN_FILE};
static const struct trace in_fleet[] = {{"", ".env", ""}, {"", ".env.new", ""}};

/* An engine that the plan does not have, and of which a file of this fleet is there. */
static void
add_if_gone(const char *fleet, const char *folder, const char *entry, const struct trace *t,
	struct members *ms)
{
	const size_t n = strlen(entry), begin = strlen(t->begin), end = strlen(t->end);
	char *name, *path;
	enum topo_role role;

	if (n <= begin + end || strncmp(entry, t->begin, begin) != 0 ||
		strcmp(entry + n - end, t->end) != 0)
		return;
	name = mem_strndup(entry + begin, n - begin - end);
	path = mem_printf("%s%s%s", folder, entry, t->rest);
	if (role_of(name, fleet, &role) && !has(ms, name) && owned_is(path, fleet))
		add(ms, name)->role = role;
	free(path);
	free(name);
}

static int
add_gone_in(const char *fleet, const char *folder, const struct trace *traces, size_t n,
	struct members *ms)
{
	const struct dirent *entry;
	DIR *d = opendir(folder);

	if (d == NULL && errno == ENOENT)
		return 0;
	if (d == NULL)
		return complain_of(folder, strerror(errno));
	while ((entry = readdir(d)) != NULL)
		for (size_t i = 0; i < n; i++)
			add_if_gone(fleet, folder, entry->d_name, &traces[i], ms);
	(void)closedir(d);
	return 0;
}

/* Engines that the plan does not have: with a drop-in, or of an apply that was killed before it wrote that. */
static int
add_gone(const struct topo_plan *p, const struct runner *r, struct members *ms)
{
	const char *fleet = p->t->name;

	if (add_gone_in(fleet, r->paths.units, &in_units, 1, ms) != 0)
		return -1;
	return add_gone_in(
		fleet, r->paths.fleet, in_fleet, sizeof(in_fleet) / sizeof(in_fleet[0]), ms);
}

/* In the environment file of an engine that hides its environment: it changes only while the engine does not run. */
static char *
url_on_disk(const struct runner *r, const struct member *m)
{
	static const char key[] = TOPO_ENV_URL "=";
	char *path = mem_printf("%s%s.env", r->paths.fleet, m->name);
	char *text = tree_read(path, NULL), *ret = NULL;
	struct words env = {.v = NULL};

	if (text != NULL && unit_file_read_env(text, &env) == 0)
		for (size_t i = 0; i < env.n && ret == NULL; i++)
			if (strncmp(env.v[i], key, sizeof(key) - 1) == 0)
				ret = mem_strdup(env.v[i] + sizeof(key) - 1);
	words_free(&env);
	free(text);
	free(path);
	return ret;
}

char *
member_url(const struct runner *r, const struct member *m)
{
	char *url = NULL;

	if (m->status.pid != 0)
		url = process_env(m->status.pid, TOPO_ENV_URL);
	if (m->status.pid != 0 && url == NULL)
		url = url_on_disk(r, m);
	return url != NULL || m->engine == NULL ? url : topo_url(m->engine);
}

bool
member_is_named(const char *name, const char *fleet, const char *word)
{
	const size_t n = strlen(fleet);

	return strcmp(name, word) == 0 ||
	       (strncmp(name, fleet, n) == 0 && name[n] == '-' && strcmp(name + n + 1, word) == 0);
}

static bool
is_again(const struct topo_plan *p, const struct members_options *o, const struct member *m)
{
	for (int i = 0; o->again && i < o->nonly; i++)
		if (member_is_named(m->name, p->t->name, o->only[i]))
			return true;
	return o->again && o->nonly == 0;
}

static int
look_at(const struct topo_plan *p, const struct runner *r, const struct routers *routers,
	const struct members_options *o, struct member *m)
{
	struct member_facts f = {.wanted = m->engine != NULL, .again = is_again(p, o, m)};

	if (m->engine != NULL)
		m->files = topo_render_engine(p, m->engine);
	if (r->ops->status(r, m->unit, &m->status) != 0)
		return -1;
	f.runs = m->status.state == UNIT_RUNNING || m->status.state == UNIT_STARTING;
	f.current = f.runs && m->engine != NULL && member_is_current(r, m);
	m->url = member_url(r, m);
	f.drained = !o->keep_drains && f.current && routers_have_drained(routers, m->url);
	m->change = member_change(&f);
	return 0;
}

/* By change; the order of equals stays. */
static void
sort(struct members *ms)
{
	for (size_t i = 1; i < ms->n; i++) {
		struct member m = ms->v[i];
		size_t at = i;

		for (; at > 0 && ms->v[at - 1].change > m.change; at--)
			ms->v[at] = ms->v[at - 1];
		ms->v[at] = m;
	}
}

int
members_look(const struct topo_plan *p, const struct topo_host *h, const struct runner *r,
	const struct routers *routers, const struct members_options *o, struct members *ret)
{
	int rc;

	*ret = (struct members){.v = NULL};
	for (size_t i = 0; !o->remove && i < p->nengines; i++)
		if (p->engines[i].host == h) {
			struct member *m = add(ret, p->engines[i].name);

			m->engine = &p->engines[i];
			m->role = p->engines[i].role;
		}
	rc = add_gone(p, r, ret);
	for (size_t i = 0; rc == 0 && i < ret->n; i++)
		rc = look_at(p, r, routers, o, &ret->v[i]);
	sort(ret);
	return rc;
}

void
members_free(struct members *ms)
{
	for (size_t i = 0; i < ms->n; i++) {
		free(ms->v[i].unit);
		free(ms->v[i].url);
		free(ms->v[i].drained);
		topo_files_free(&ms->v[i].files);
	}
	free(ms->v);
	*ms = (struct members){.v = NULL};
}
