#include "master/topology/kubernetes.h"

#include <stdlib.h>
#include <string.h>

#include "master/config/conf.h"
#include "master/topology/finding.h"
#include "master/topology/kubernetes_plan.h"
#include "master/topology/names.h"
#include "master/topology/router_file.h"
#include "master/topology/text.h"

#define LABEL_MAX 63 /* bytes of the name of a service (RFC 1035) */
#define FILE_VARIABLE "PDROUTER_FILE"
#define DOMAIN "svc.cluster.local"

/* What is being written. */
struct kube {
	const struct topo_plan *plan;
	const struct topo_kubernetes_plan *k;
	const struct topo_kubernetes *how;
	struct membuf *out;
};

/* --- texts
 * --------------------------------------------------------------------------------------- */

/* A text of an engine in YAML.  Kubernetes replaces $(NAME), and $$ by $. */
static void
add_text(struct membuf *out, const char *s)
{
	struct membuf b = {.p = NULL};

	for (; *s != '\0'; s++) {
		const struct topo_pod_variable *v = NULL;

		for (size_t i = 0; i < TOPO_POD_N; i++)
			if (*s == topo_pods[i].text[0])
				v = &topo_pods[i];
		if (v != NULL)
			topo_add(&b, "$(%s)", v->name);
		else
			topo_add(&b, "%s%c", *s == '$' ? "$" : "", *s);
	}
	membuf_add(&b, "", 1);
	topo_add_yaml(out, b.p);
	membuf_free(&b);
}

static bool
texts_have(const struct topo_texts *v, const char *byte)
{
	for (size_t i = 0; i < v->n; i++)
		if (strstr(v->v[i].text, byte) != NULL)
			return true;
	return false;
}

/* Whether the pods need numbers that stay: those of a StatefulSet. */
static bool
is_numbered(const struct topo_engine *e)
{
	const char *byte = topo_pods[TOPO_POD_INDEX].text;

	for (size_t i = 0; i < e->env.n; i++)
		if (strstr(e->env.v[i].value.text, byte) != NULL)
			return true;
	return texts_have(&e->argv, byte) || texts_have(&e->file, byte);
}

/* The head of an object; `part`: the group, or router. */
static void
add_head(struct kube *w, const char *api, const char *kind, const char *part)
{
	const char *fleet = w->plan->t->name;

	topo_add(w->out,
		"apiVersion: %s\nkind: %s\nmetadata:\n  name: %s-%s\n  namespace: \"%s\"\n"
		"  labels: {app.kubernetes.io/part-of: \"%s\", app.kubernetes.io/component: %s}\n",
		api, kind, fleet, part, w->how->namespace, fleet, part);
}

static void
add_labels(struct kube *w, const char *before, const char *part)
{
	topo_add(w->out, "%s{app.kubernetes.io/part-of: \"%s\", app.kubernetes.io/component: %s}\n",
		before, w->plan->t->name, part);
}

/* --- engines
 * ------------------------------------------------------------------------------------- */

/* The value of a name that each engine in a pod has. */
static char *
value_of(const struct kube *w, const struct topo_engine *e, const char *name)
{
	char *bad = NULL;

	return topo_names_replace(w->plan, e, name, &bad);
}

/* The file of an engine comes with its environment, since it may name the pod's address. */
static void
add_command(struct kube *w, const struct topo_engine *e)
{
	char *program = value_of(w, e, "${program}");

	topo_add(w->out, "          command: [");
	if (e->file.n > 0) {
		char *path = value_of(w, e, "${file}");
		char *script = mem_printf(
			"printf %%s \"$" FILE_VARIABLE "\" > \"%s\" && exec \"$@\"", path);

		topo_add(w->out, "/bin/sh, -c, ");
		add_text(w->out, script);
		topo_add(w->out, ", sh, ");
		free(script);
		free(path);
	}
	add_text(w->out, program);
	for (size_t i = 0; i < e->argv.n; i++) {
		topo_add(w->out, ", ");
		add_text(w->out, e->argv.v[i].text);
	}
	topo_add(w->out, "]\n");
	free(program);
}

static void
add_variable(struct kube *w, const char *name, const char *value)
{
	topo_add(w->out, "            - {name: %s, value: ", name);
	add_text(w->out, value);
	topo_add(w->out, "}\n");
}

static void
add_environment(struct kube *w, const struct topo_engine *e)
{
	struct membuf file = {.p = NULL};

	topo_add(w->out, "          env:\n");
	for (size_t i = 0; i < TOPO_POD_N; i++) {
		if (i == TOPO_POD_INDEX && !is_numbered(e))
			continue;
		topo_add(w->out,
			"            - {name: %s, valueFrom: {fieldRef: {fieldPath: \"%s\"}}}\n",
			topo_pods[i].name, topo_pods[i].field);
	}
	for (size_t i = 0; i < e->env.n; i++)
		add_variable(w, e->env.v[i].name, e->env.v[i].value.text);
	for (size_t i = 0; i < e->file.n; i++)
		topo_add(&file, "%s\n", e->file.v[i].text);
	membuf_add(&file, "", 1);
	if (e->file.n > 0)
		add_variable(w, FILE_VARIABLE, file.p);
	membuf_free(&file);
}

static void
add_ports(struct kube *w, const struct topo_engine *e)
{
	topo_add(w->out, "          ports:\n            - {name: api, containerPort: %u}\n",
		topo_api_port(e));
	for (size_t i = 0; i < e->ports.n; i++)
		for (uint32_t k = 0; strcmp(e->ports.v[i].name, "api") != 0 && k < e->ports.v[i].n;
			k++)
			topo_add(w->out, "            - {containerPort: %u}\n",
				e->ports.v[i].first + k);
}

/* 20 minutes to start, as on metal; half a minute for the router to hear of an end from DNS. */
static void
add_life(struct kube *w, uint32_t port)
{
	topo_add(w->out,
		"          startupProbe: {httpGet: {path: /health, port: %u}, periodSeconds: 5, "
		"failureThreshold: 240}\n"
		"          readinessProbe: {httpGet: {path: /health, port: %u}, periodSeconds: 5, "
		"timeoutSeconds: 5}\n"
		"          lifecycle: {preStop: {exec: {command: [sleep, \"30\"]}}}\n",
		port, port);
}

/* Where the engine's file is: a folder of the pod's own.  Ranks talk through /dev/shm. */
static void
add_volumes(struct kube *w, const struct topo_engine *e)
{
	char *path = e->file.n > 0 ? value_of(w, e, "${file}") : NULL;

	topo_add(w->out,
		"          volumeMounts:\n            - {name: shm, mountPath: /dev/shm}\n");
	if (path != NULL)
		topo_add(w->out, "            - {name: file, mountPath: \"%.*s\"}\n",
			(int)(strrchr(path, '/') - path), path);
	topo_add(w->out, "      volumes:\n        - {name: shm, emptyDir: {medium: Memory}}\n");
	if (path != NULL)
		topo_add(w->out, "        - {name: file, emptyDir: {}}\n");
	free(path);
}

static void
add_pods(struct kube *w, const struct topo_engine *e)
{
	const char *role = topo_role_name(e->role);
	bool numbered = is_numbered(e);

	add_head(w, "apps/v1", numbered ? "StatefulSet" : "Deployment", role);
	topo_add(w->out, "spec:\n  replicas: %u\n", w->k->replicas[e->role]);
	if (numbered)
		topo_add(w->out, "  serviceName: %s-%s\n  podManagementPolicy: Parallel\n",
			w->plan->t->name, role);
	else /* a new pod gets the GPUs of an old one */
		topo_add(w->out, "  strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}\n");
	add_labels(w, "  selector:\n    matchLabels: ", role);
	add_labels(w, "  template:\n    metadata:\n      labels: ", role);
	/* vLLM takes the variables that Kubernetes makes of services for its own */
	topo_add(w->out, "    spec:\n      enableServiceLinks: false\n"
			 "      terminationGracePeriodSeconds: 150\n"
			 "      containers:\n        - name: engine\n          image: ");
	topo_add_yaml(w->out, w->how->image);
	topo_add(w->out, "\n");
	add_command(w, e);
	add_environment(w, e);
	add_ports(w, e);
	if (e->gpus.n > 0)
		topo_add(w->out, "          resources: {limits: {nvidia.com/gpu: %zu}}\n",
			e->gpus.n);
	add_life(w, topo_api_port(e));
	add_volumes(w, e);
}

/* Without an address of its own: the name has the addresses of all ready pods. */
static void
add_group_service(struct kube *w, const struct topo_engine *e)
{
	const char *role = topo_role_name(e->role);

	add_head(w, "v1", "Service", role);
	add_labels(w, "spec:\n  clusterIP: None\n  selector: ", role);
	topo_add(w->out, "  ports:\n    - {name: api, port: %u}\n---\n", topo_api_port(e));
}

/* --- routers
 * ------------------------------------------------------------------------------------- */

static void
add_dns(const struct kube *w, const struct topo_engine *e, const char *role, struct membuf *out)
{
	topo_add(out, "      - {name: %s-%s.%s." DOMAIN ", port: %u, role: %s", w->plan->t->name,
		topo_role_name(e->role), w->how->namespace, topo_api_port(e), role);
	for (size_t i = 0; i < e->endpoint.n; i++)
		topo_add(out, ", %s: %s", e->endpoint.v[i].name, e->endpoint.v[i].value.text);
	topo_add(out, "}\n");
}

static void
write_configuration(const struct kube *w, struct membuf *out)
{
	topo_router_head(w->plan, NULL, out);
	topo_add(out, "    dns:\n");
	for (size_t i = 0; i < w->plan->nengines; i++) {
		const struct topo_engine *e = &w->plan->engines[i];

		if (e->role == TOPO_PREFILL || !topo_is_split(w->plan))
			add_dns(w, e, topo_role_name(TOPO_PREFILL), out);
		if (e->role != TOPO_PREFILL)
			add_dns(w, e, topo_role_name(TOPO_DECODE), out);
	}
}

static void
add_router_service(struct kube *w)
{
	const struct topo_claims *ports = &w->plan->router_ports;

	add_head(w, "v1", "Service", "router");
	add_labels(w, "spec:\n  selector: ", "router");
	topo_add(w->out, "  ports:\n    - {name: http, port: %u}\n", w->k->router_port);
	for (size_t i = 0; i < ports->n;
		i++) /* not by its name in the template, which may be too long */
		topo_add(w->out, "    - {name: engines-%zu, port: %u}\n", i, ports->v[i].first);
	topo_add(w->out, "---\n");
}

static void
add_routers(struct kube *w, const struct membuf *configuration)
{
	add_head(w, "v1", "ConfigMap", "router");
	topo_add(w->out, "data:\n  pdrouter.yaml: |\n");
	for (const char *line = configuration->p; *line != '\0'; line += strcspn(line, "\n") + 1)
		topo_add(w->out, "    %.*s\n", (int)strcspn(line, "\n"), line);
	topo_add(w->out, "---\n");
	add_router_service(w);
	add_head(w, "apps/v1", "Deployment", "router");
	topo_add(w->out, "spec:\n  replicas: %u\n", w->k->nrouters);
	add_labels(w, "  selector:\n    matchLabels: ", "router");
	add_labels(w, "  template:\n    metadata:\n      labels: ", "router");
	topo_add(w->out, "    spec:\n      terminationGracePeriodSeconds: 150\n"
			 "      containers:\n        - name: router\n          image: ");
	topo_add_yaml(w->out, w->how->router_image);
	topo_add(w->out,
		"\n          command: [pdrouter, -c, /etc/pdrouter/pdrouter.yaml]\n"
		"          ports:\n            - {name: http, containerPort: %u}\n"
		"          readinessProbe: {httpGet: {path: /ready, port: %u}, periodSeconds: 2}\n"
		"          volumeMounts:\n"
		"            - {name: configuration, mountPath: /etc/pdrouter, readOnly: true}\n"
		"            - {name: run, mountPath: /run/pdrouter}\n"
		"      volumes:\n"
		"        - {name: configuration, configMap: {name: %s-router}}\n"
		"        - {name: run, emptyDir: {}}\n",
		w->k->router_port, w->k->router_port, w->plan->t->name);
}

/* --- checks, and the files
 * ----------------------------------------------------------------------- */

static bool
is_label(const char *s, size_t most)
{
	size_t n = strlen(s);

	return n > 0 && n <= most && s[0] >= 'a' && s[0] <= 'z' && s[n - 1] != '-' &&
	       s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789-")] == '\0';
}

static void
check(struct topo_plan *p, const struct kube *w, const struct membuf *configuration)
{
	const struct topology *t = p->t;
	size_t most = LABEL_MAX - strlen("-prefill");
	struct conf_error err;
	struct conf *conf = NULL;

	if (!is_label(t->name, most))
		topo_found(p, t->path, topo_line(t, "fleet"), "fleet",
			"%.80s cannot be part of a service's name: up to %zu small letters, digits "
			"and -, a letter first",
			t->name, most);
	if (!is_label(w->how->namespace, LABEL_MAX))
		topo_found(p, t->path, 0, "", "%.80s cannot be a namespace", w->how->namespace);
	if (t->engine.command.n == 0 && p->template->program == NULL)
		topo_found(p, p->template->path, 0, "program",
			"is missing: what do containers execute?");
	for (size_t i = 0; i < w->plan->nfindings; i++) {
		const struct conf_error *f = &w->plan->findings[i];

		topo_found(p, f->file, f->line, f->key, "%s", f->what);
	}
	if (t->router.line != 0 && p->nfindings == 0 &&
		conf_parse("pdrouter.yaml", configuration->p, configuration->n - 1, &conf, &err) !=
			0)
		topo_found(p, t->path, t->router.line, "router", "pdrouter would refuse %s: %s",
			err.key, err.what);
	conf_free(&conf);
}

static void
put(struct topo_files *f, const struct topo_plan *p, const char *part, struct membuf *b)
{
	f->v = mem_resize(f->v, f->n + 1, sizeof(*f->v));
	f->v[f->n++] =
		(struct topo_file){mem_printf("%s-%s.yaml", p->t->name, part), 0644, b->p, b->n};
	*b = (struct membuf){.p = NULL};
}

struct topo_files
topo_render_kubernetes(struct topo_plan *p, const struct topo_kubernetes *how)
{
	struct topo_kubernetes_plan k;
	struct topo_files f = {.v = NULL};
	struct membuf b = {.p = NULL}, configuration = {.p = NULL};
	struct kube w = {.k = &k, .how = how, .out = &b};

	topo_kubernetes_plan(p, &k);
	w.plan = k.plan;
	write_configuration(&w, &configuration);
	membuf_add(&configuration, "", 1);
	check(p, &w, &configuration);
	for (size_t i = 0; p->nfindings == 0 && i < k.plan->nengines; i++) {
		const struct topo_engine *e = &k.plan->engines[i];

		topo_add(&b, TOPO_HEAD "\n", p->t->name);
		add_group_service(&w, e);
		add_pods(&w, e);
		put(&f, p, topo_role_name(e->role), &b);
	}
	if (p->nfindings == 0 && p->t->router.line != 0) {
		topo_add(&b, TOPO_HEAD "\n", p->t->name);
		add_routers(&w, &configuration);
		put(&f, p, "router", &b);
	}
	membuf_free(&configuration);
	topo_kubernetes_plan_fini(&k);
	return f;
}
