#include "master/pdfleet/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf.h"
#include "master/config/conf_address.h"
#include "master/pdfleet/complain.h"
#include "master/pdfleet/control.h"
#include "master/pdfleet/http_get.h"
#include "master/topology/router_file.h"
#include "shm/base/conf.h"
#include "shm/base/mem.h"

/* The first address where the router of that host answers /metrics in plain HTTP and `here` reaches it; NULL: there is none. */
static const struct conf_listen *
metrics_address(const struct conf *conf, const struct topo_host *h, const struct topo_host *here)
{
	const struct conf_listen *l;
	enum listen_list list;

	for (size_t i = 0; (l = conf_listen_at(conf, i, &list)) != NULL; i++)
		if (listen_list_transport(list) == TRANSPORT_TCP &&
			conf_has_metrics(conf, listen_list_door(list)) &&
			(h == here || !conf_address_is_loopback(l)))
			return l;
	return NULL;
}

/* An address of its host where the router listens at all of them. */
static char *
metrics_url(const struct conf *conf, const struct topo_host *h, const struct topo_host *here)
{
	const struct conf_listen *l = metrics_address(conf, h, here);
	const char *host;

	if (l == NULL)
		return NULL;
	host = l->host[0] == '\0' || strcmp(l->host, "0.0.0.0") == 0 || strcmp(l->host, "::") == 0
		       ? h->address
		       : l->host;
	return strchr(host, ':') != NULL ? mem_printf("http://[%s]:%u", host, l->port)
					 : mem_printf("http://%s:%u", host, l->port);
}

struct routers
routers_of(const struct topo_plan *p, const struct topo_host *here)
{
	struct routers r = {.v = NULL};
	struct conf_error err;
	struct conf *conf = NULL;

	if (p->t->router.line != 0)
		conf = topo_router_conf(p, &err); /* NULL would be a finding of the plan */
	for (size_t i = 0; conf != NULL && i < p->t->router.hosts.n; i++) {
		const struct topo_host *h = topo_host(p->t, p->t->router.hosts.v[i].text);

		r.v = mem_resize(r.v, r.n + 1, sizeof(*r.v));
		r.v[r.n++] = (struct router){
			.host = h,
			.control = h == here ? mem_strdup(conf->control_socket) : NULL,
			.url = metrics_url(conf, h, here),
		};
	}
	r.health_path = mem_strdup(
		conf != NULL && conf->npools > 0 ? conf->pools[0].health_path : "/health");
	conf_free(&conf);
	return r;
}

void
routers_free(struct routers *r)
{
	for (size_t i = 0; i < r->n; i++) {
		free(r->v[i].control);
		free(r->v[i].url);
	}
	free(r->v);
	free(r->health_path);
	*r = (struct routers){.v = NULL};
}

/* --- drains
 * ------------------------------------------------------------------------------------- */

/* Says the command to each router of this host; the last answer. */
static enum control_answer
say(const struct routers *r, const char *command, const char *url, struct membuf *answer)
{
	char *line = mem_printf("%s %s", command, url);
	enum control_answer ret = CONTROL_NONE;

	for (size_t i = 0; i < r->n; i++)
		if (r->v[i].control != NULL)
			ret = control_say(r->v[i].control, line, answer);
	free(line);
	return ret;
}

/* A router that refuses gets a message. */
static void
order(const struct routers *r, const char *command, const char *url)
{
	struct membuf b = {.p = NULL};

	if (say(r, command, url, &b) == CONTROL_ERR)
		(void)complain("the router refuses %s %s: %s", command, url, b.p);
	membuf_free(&b);
}

void
routers_drain(const struct routers *r, const char *url)
{
	order(r, "drain", url);
}

void
routers_undrain(const struct routers *r, const char *url)
{
	order(r, "undrain", url);
}

/* The words of the control socket. */
static const char *const use_names[ROUTER_USE_N] = {
	[ROUTER_USE_UNKNOWN] = NULL,
	[ROUTER_USE_SERVING] = "serving",
	[ROUTER_USE_DRAINING] = "draining",
	[ROUTER_USE_GONE] = "gone",
};

const char *
router_use_name(enum router_use use)
{
	return use_names[use];
}

static enum router_use
use_of(const char *word)
{
	unsigned use = ROUTER_USE_N - 1;

	while (use > ROUTER_USE_UNKNOWN && strcmp(use_names[use], word) != 0)
		use--;
	return use;
}

struct router_left
routers_left_at(const struct routers *r, const char *url)
{
	struct membuf b = {.p = NULL};
	struct router_left left = {.use = ROUTER_USE_UNKNOWN};
	char word[16];

	if (say(r, "in-flight", url, &b) == CONTROL_OK &&
		sscanf(b.p, "%lu in flight, %lu KV outstanding, %15s", &left.requests, &left.kv,
			word) == 3)
		left.use = use_of(word);
	if (left.use == ROUTER_USE_UNKNOWN)
		left.requests = left.kv = 0;
	membuf_free(&b);
	return left;
}

bool
routers_have_drained(const struct routers *r, const char *url)
{
	return routers_left_at(r, url).use == ROUTER_USE_DRAINING;
}

bool
routers_know(const struct routers *r, const char *url)
{
	const enum router_use use = routers_left_at(r, url).use;

	return use == ROUTER_USE_SERVING || use == ROUTER_USE_DRAINING;
}

/* --- metrics
 * ------------------------------------------------------------------------------------- */

/* A sample of the engine: its value and what follows it, or NULL. */
static const char *
next_sample(const char *text, const char *name, const char *url, double *ret)
{
	char *start = mem_printf("\n%s{engine=\"%s\",", name, url);
	const char *at = strstr(text, start), *value = at != NULL ? strstr(at, "} ") : NULL;

	free(start);
	if (value == NULL)
		return NULL;
	*ret = strtod(value + 2, NULL);
	return value;
}

static double
sum_of(const char *text, const char *name, const char *url)
{
	double v, sum = 0;

	while ((text = next_sample(text, name, url, &v)) != NULL)
		sum += v;
	return sum;
}

/* An engine has a sample for each role and pool.  A drained one is not up either. */
static enum routers_view
view_of(const char *page, const char *url)
{
	static const char draining[] = "state=\"draining\"";
	const size_t len = sizeof(draining) - 1;
	size_t known = 0, off = 0, drained = 0;
	const char *at = page;
	double v;

	while ((at = next_sample(at, "pdrouter_endpoint_up", url, &v)) != NULL) {
		known++;
		off += v <= 0;
	}
	at = page;
	while ((at = next_sample(at, "pdrouter_endpoint_state", url, &v)) != NULL)
		drained += strncmp(at - len, draining, len) == 0;
	if (known == 0)
		return ROUTERS_NONE;
	if (off > drained)
		return ROUTERS_DOWN;
	return drained > 0 ? ROUTERS_DRAINED : ROUTERS_UP;
}

/* The status of its answer; 0: no address is known, -1: none. */
static int
get_metrics(const struct router *r, struct membuf *page)
{
	const int status = r->url != NULL ? http_get(r->url, "/metrics", page) : 0;

	membuf_add(page, "", 1);
	return status;
}

static enum routers_view
ask(const struct router *r, const char *url)
{
	struct membuf page = {.p = NULL};
	const int status = get_metrics(r, &page);
	enum routers_view view = ROUTERS_NONE;

	if (status == -1 && r->control != NULL)
		view = ROUTERS_SILENT;
	else if (status == 200)
		view = view_of(page.p, url);
	membuf_free(&page);
	return view;
}

/* Of a router on another host.  One that does not answer may have requests: the engine gets all of the time of a drain. */
static enum routers_load
remote_load(struct router *r, const char *url)
{
	struct membuf page = {.p = NULL};
	const bool read = get_metrics(r, &page) == 200;
	const bool busy =
		read && (sum_of(page.p, "pdrouter_endpoint_in_flight", url) > 0 ||
				sum_of(page.p, "pdrouter_endpoint_kv_outstanding", url) > 0);

	membuf_free(&page);
	if (!read && r->figures != FIGURES_UNREAD)
		(void)complain("figures of the router on %s cannot be read: %s%s", r->host->name,
			r->url != NULL ? r->url : "it has no address for other hosts",
			r->url != NULL ? "/metrics" : "");
	r->figures = read ? FIGURES_READ : FIGURES_UNREAD;
	if (!read)
		return ROUTERS_UNKNOWN;
	return busy ? ROUTERS_BUSY : ROUTERS_IDLE;
}

enum routers_load
routers_load_at(struct routers *r, const char *url)
{
	const struct router_left left = routers_left_at(r, url);
	enum routers_load all = left.requests > 0 || left.kv > 0 ? ROUTERS_BUSY : ROUTERS_IDLE;

	for (size_t i = 0; i < r->n && all != ROUTERS_BUSY; i++)
		if (r->v[i].control == NULL) {
			const enum routers_load one = remote_load(&r->v[i], url);

			all = one > all ? one : all;
		}
	return all;
}

enum routers_view
routers_see(const struct routers *r, const char *url)
{
	enum routers_view all = ROUTERS_NONE;

	for (size_t i = 0; i < r->n; i++) {
		const enum routers_view one = ask(&r->v[i], url);

		all = one > all ? one : all;
	}
	return all;
}

bool
routers_say_up(const struct routers *r, const char *url)
{
	return routers_see(r, url) <= ROUTERS_UP;
}

bool
routers_are_settled(const struct routers *r, const char *url)
{
	return routers_see(r, url) <= ROUTERS_DRAINED;
}

/* Of the router of this host, as its control socket tells; NULL: it knows the engine, or is on another host. */
static char *
why_unknown(const struct router *r, const struct router_left *left)
{
	if (r->control == NULL)
		return NULL;
	if (left->use == ROUTER_USE_UNKNOWN)
		return mem_printf("no router answers on its control socket %s", r->control);
	return left->use == ROUTER_USE_GONE ? mem_printf("the router of this host does not know it")
					    : NULL;
}

char *
routers_why_not_up(const struct routers *r, const char *url)
{
	const struct router_left left = routers_left_at(r, url);
	char *why = NULL;

	for (size_t i = 0; i < r->n && why == NULL; i++) {
		const struct router *one = &r->v[i];
		const enum routers_view view = ask(one, url);

		why = why_unknown(one, &left);
		if (why == NULL && view == ROUTERS_SILENT)
			why = mem_printf(
				"the router of this host does not answer GET %s/metrics", one->url);
		else if (why == NULL && view == ROUTERS_DOWN)
			why = mem_printf("the router on %s takes it for down", one->host->name);
	}
	return why != NULL ? why : mem_strdup("it has said so just now");
}

int
routers_say_late(const struct routers *r, const char *name, const char *url)
{
	char *why = routers_why_not_up(r, url);

	(void)complain("%s: is healthy, but a router does not say up after %d s: %s", name,
		ROUTERS_UP_MS / 1000, why);
	free(why);
	return -1;
}
