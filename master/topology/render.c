#include "master/topology/render.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "master/topology/router_file.h"
#include "master/topology/text.h"
#include "shm/base/sip.h"

#define HEAD TOPO_HEAD "\n"
#define MODE 0644u
#define MODE_ENV 0600u /* an environment may hold keys */

#define ENV ".env"
#define OWN ".yaml"
const char *const topo_engine_files[] = {ENV, OWN, NULL};

static void
put(struct topo_files *f, char *path, unsigned mode, struct membuf *bytes)
{
	f->v = mem_resize(f->v, f->n + 1, sizeof(*f->v));
	f->v[f->n++] = (struct topo_file){path, mode, bytes->p, bytes->n};
	*bytes = (struct membuf){.p = NULL};
}

/* The last two lines tell what runs: they are read from the environment of the engine's process. */
static void
environment(const struct topo_plan *p, const struct topo_engine *e, struct topo_files *f)
{
	struct membuf b = {.p = NULL};
	char *url = topo_url(e);

	topo_add(&b, HEAD, p->t->name);
	for (size_t i = 0; i < e->env.n; i++) {
		topo_add(&b, "%s=", e->env.v[i].name);
		topo_add_env(&b, e->env.v[i].value.text);
		topo_add(&b, "\n");
	}
	topo_add(&b, TOPO_ENV_URL "=\"%s\"\n", url);
	free(url);
	put(f, mem_printf("%s%s" ENV, p->paths->fleet + 1, e->name), MODE_ENV, &b);
}

static void
add_line(struct topo_file *f, const char *begin, uint64_t digest)
{
	struct membuf b = {.p = f->bytes, .n = f->n, .cap = f->n};

	topo_add(&b, "%s%016" PRIx64 "\"\n", begin, digest);
	f->bytes = b.p;
	f->n = b.n;
}

/* Of all bytes of the engine's files before its lines are added to the environment file, which is written first, and to
 * the drop-in, which is written last. */
static void
add_digest(struct topo_files *f)
{
	static const uint64_t key[2] = {0};
	uint64_t digest;
	struct sip s;

	sip_begin(&s, key);
	for (size_t i = 0; i < f->n; i++) {
		sip_add(&s, f->v[i].path, strlen(f->v[i].path) + 1);
		sip_add(&s, f->v[i].bytes, f->v[i].n);
	}
	digest = sip_end(&s);
	add_line(&f->v[0], TOPO_ENV_DIGEST "=\"", digest);
	add_line(&f->v[f->n - 1], "Environment=\"" TOPO_ENV_UNIT "=", digest);
}

static void
command(struct membuf *b, const char *key, const struct topo_texts *words)
{
	topo_add(b, "%s", key);
	for (size_t i = 0; i < words->n; i++) {
		topo_add(b, "%s", i > 0 ? " " : "");
		topo_add_exec(b, words->v[i].text);
	}
	topo_add(b, "\n");
}

static void
unit(const struct topo_plan *p, const struct topo_engine *e, struct topo_files *f)
{
	struct membuf b = {.p = NULL};

	topo_add(&b, HEAD, p->t->name);
	topo_add(&b, "[Unit]\nDescription=%s engine %u of the fleet %s\n\n[Service]\n",
		topo_role_name(e->role), e->replica, p->t->name);
	topo_add(&b, "EnvironmentFile=%s%s" ENV "\n", p->paths->fleet, e->name);
	command(&b, "ExecStart=", &e->argv);
	if (e->cleanup.n > 0) {
		command(&b, "ExecStartPre=-", &e->cleanup);
		command(&b, "ExecStopPost=-", &e->cleanup);
	}
	for (size_t i = 0; p->container != NULL && i < p->container->unit.n; i++)
		topo_add(&b, "%s\n", p->container->unit.v[i].text);
	put(f, mem_printf("%s" TOPO_UNIT "%s" TOPO_DROP_IN, p->paths->units + 1, e->name), MODE,
		&b);
}

/* The one more file that some connectors need, such as LMCache's. */
static void
own_file(const struct topo_plan *p, const struct topo_engine *e, struct topo_files *f)
{
	struct membuf b = {.p = NULL};

	if (e->file.n == 0)
		return;
	topo_add(&b, HEAD, p->t->name);
	for (size_t i = 0; i < e->file.n; i++)
		topo_add(&b, "%s\n", e->file.v[i].text);
	put(f, mem_printf("%s%s" OWN, p->paths->fleet + 1, e->name), MODE, &b);
}

struct topo_files
topo_render_engine(const struct topo_plan *p, const struct topo_engine *e)
{
	struct topo_files f = {.v = NULL};

	environment(p, e, &f);
	own_file(p, e, &f);
	unit(p, e, &f);
	add_digest(&f);
	return f;
}

struct topo_files
topo_render_router(const struct topo_plan *p, const struct topo_host *h)
{
	struct topo_files f = {.v = NULL};
	struct membuf b = {.p = NULL};

	for (size_t i = 0; i < p->t->router.hosts.n; i++)
		if (strcmp(p->t->router.hosts.v[i].text, h->name) == 0) {
			topo_router_file(p, &b);
			put(&f, mem_strdup(p->paths->router + 1), MODE, &b);
			break;
		}
	return f;
}

/* Moves the files of *from behind those of *to. */
static void
append(struct topo_files *to, struct topo_files *from)
{
	to->v = mem_resize(to->v, to->n + from->n + 1, sizeof(*to->v));
	for (size_t i = 0; i < from->n; i++)
		to->v[to->n++] = from->v[i];
	free(from->v);
}

struct topo_files
topo_render(const struct topo_plan *p, const struct topo_host *h)
{
	struct topo_files f = {.v = NULL}, one;

	for (size_t i = 0; i < p->nengines; i++)
		if (p->engines[i].host == h) {
			one = topo_render_engine(p, &p->engines[i]);
			append(&f, &one);
		}
	one = topo_render_router(p, h);
	append(&f, &one);
	return f;
}

void
topo_files_free(struct topo_files *f)
{
	for (size_t i = 0; i < f->n; i++) {
		free(f->v[i].path);
		free(f->v[i].bytes);
	}
	free(f->v);
	*f = (struct topo_files){.v = NULL};
}
