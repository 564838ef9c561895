/*
 * master/topology: the input is a fleet file, or after "TEMPLATE\n" the template of a small fleet.
 *
 * Held against it: a plan has engines with hosts and GPUs of their own or findings that can be printed; a plan
 * without findings renders the same bytes twice, and paths that stay below the root.  A file that can be scaled is
 * a fleet file afterwards, and the same one but for those replicas.
 */
#include "master/topology/edit.h"
#include "master/topology/kubernetes.h"
#include "master/topology/plan.h"
#include "master/topology/render.h"
#include "tests/fuzz/check.h"

#define MARK "TEMPLATE\n"

static const char template_text[] =
	"command: [/bin/engine, \"${model}\", \"${port.api}\", \"${gpus}\"]\n"
	"all: {env: {A: \"${address}\"}, file: [\"${ports.side}\"]}\n"
	"data_parallel: {args: [\"${data_parallel}\"]}\n"
	"program: e\n"
	"containers: [{name: podman, command: [/bin/run], gpus: [g], rdma: [r], model: [\"${model}\"],\n"
	"   file: [\"${file}\"], variable: -e, image: [\"${program}\", \"${image}\"], cleanup: [/bin/rm, \"${name}\"]}]\n"
	"prefill: {ports: {api: 8100}}\n"
	"decode: {ports: {api: 8200}}\n"
	"engines: {ports: {api: 8300}}\n"
	"connectors:\n"
	" - {name: nixl, until: \"0.13\", tensor_parallel: equal, agree: [--size, --kv.n, A], all: {ports: {side: {first: 5600, each: rank}}}}\n"
	" - {name: nixl, since: \"0.14\", all: {ports: {side: 5600}}, rdma: {args: [\"${rdma}\"]}}\n";
static const char fleet_text[] =
	"fleet: f\nmodel: {path: m}\nengine: {kind: k, version: \"0.12\", venv: /v}\nconnector: nixl\n"
	"hosts: {a: {address: 10.0.0.1, gpus: 4, rdma: r}}\nprefill: {}\ndecode: {tensor_parallel: 2}\n"
	"router: {hosts: [a]}\n";

static void
check_printable(const struct conf_error *err)
{
	CHECK(err->what[0] != '\0' && err->line >= 0);
	for (const char *p = err->what; *p != '\0'; p++)
		CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
	for (const char *p = err->key; *p != '\0'; p++)
		CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void
check_engines(const struct topo_plan *p)
{
	for (size_t i = 0; i < p->nengines; i++) {
		const struct topo_engine *e = &p->engines[i];

		CHECK(e->host != NULL && e->argv.n > 0 && e->argv.v[0].text[0] == '/');
		CHECK(e->gpus.n == 0 || e->gpus.n == e->group->tensor_parallel);
		for (size_t k = 0; k < i; k++)
			for (size_t g = 0; p->engines[k].host == e->host && g < e->gpus.n; g++)
				for (size_t h = 0; h < p->engines[k].gpus.n; h++)
					CHECK(p->engines[k].gpus.v[h] != e->gpus.v[g]);
	}
}

static void
check_files(const struct topo_plan *p, const struct topo_host *h)
{
	struct topo_files a = topo_render(p, h), b = topo_render(p, h);

	CHECK(a.n == b.n);
	for (size_t i = 0; i < a.n; i++) {
		CHECK(strcmp(a.v[i].path, b.v[i].path) == 0 && a.v[i].n == b.v[i].n);
		CHECK(memcmp(a.v[i].bytes, b.v[i].bytes, a.v[i].n) == 0);
		CHECK(strncmp(a.v[i].path, "etc/", 4) == 0 && strstr(a.v[i].path, "/../") == NULL);
	}
	topo_files_free(&a);
	topo_files_free(&b);
}

/* Objects or findings; the last thing that is done with the plan. */
static void
check_kubernetes(struct topo_plan *p)
{
	const struct topo_kubernetes how = {"engine", "router", "default"};
	struct topo_files f = topo_render_kubernetes(p, &how);

	CHECK((f.n > 0) == (p->nfindings == 0));
	for (size_t i = 0; i < p->nfindings; i++)
		check_printable(&p->findings[i]);
	for (size_t i = 0; i < f.n; i++)
		CHECK(strchr(f.v[i].path, '/') == NULL &&
			memchr(f.v[i].bytes, 0, f.v[i].n) == NULL);
	topo_files_free(&f);
}

static void
check_plan(const struct topology *t, const struct topo_template *template)
{
	struct topo_plan *p = topo_plan_make(t, template);

	for (size_t i = 0; i < p->nfindings; i++)
		check_printable(&p->findings[i]);
	if (p->nfindings == 0) {
		check_engines(p);
		for (size_t i = 0; i < t->nhosts; i++)
			check_files(p, &t->hosts[i]);
		check_kubernetes(p);
	}
	topo_plan_free(&p);
}

/* Scaled, the file has so many replicas of that group and as many as before of the others. */
static void
check_scale(const void *text, size_t n, enum topo_role role)
{
	struct topology *before = NULL, *after = NULL;
	struct membuf once = {.p = NULL}, twice = {.p = NULL};
	struct conf_error err = {.line = 0};
	char *copy = exact_copy(text, n);

	if (topo_scale("f.yaml", copy, n, role, 7, &once, &err) != 0) {
		check_printable(&err);
		free(copy);
		return;
	}
	CHECK(topo_parse("f.yaml", once.p, once.n, &after, &err) == 0);
	CHECK(topo_scale("f.yaml", once.p, once.n, role, 7, &twice, &err) == 0);
	CHECK(once.n == twice.n && memcmp(once.p, twice.p, once.n) == 0);
	CHECK(after->groups[role].replicas == 7);
	if (topo_parse("f.yaml", copy, n, &before, &err) == 0)
		for (unsigned other = 0; other < TOPO_ROLE_N; other++)
			CHECK(other == role ||
				before->groups[other].replicas == after->groups[other].replicas);
	membuf_free(&once);
	membuf_free(&twice);
	topo_free(&before);
	topo_free(&after);
	free(copy);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t n = strlen(MARK);
	bool is_template = size >= n && memcmp(data, MARK, n) == 0;
	const void *fleet = is_template ? (const void *)fleet_text : data;
	const void *template = is_template ? (const void *)(data + n) : template_text;
	struct conf_error err = {.line = 0};
	struct topology *t = NULL;
	struct topo_template *tp = NULL;

	if (topo_parse("f.yaml", fleet, is_template ? strlen(fleet_text) : size, &t, &err) != 0 ||
		topo_template_parse("t.yaml", template,
			is_template ? size - n : strlen(template_text), &tp, &err) != 0)
		check_printable(&err);
	else
		check_plan(t, tp);
	for (unsigned role = 0; !is_template && role < TOPO_ROLE_N; role++)
		check_scale(data, size, role);
	topo_template_free(&tp);
	topo_free(&t);
	return 0;
}
