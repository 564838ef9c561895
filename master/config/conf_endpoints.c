#include "master/config/conf_endpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_connector.h"
#include "proto/http/http.h"
#include "shm/base/mem.h"

/* Room grows by doubling: lists of tens of thousands are read one by one. */
struct conf_endpoint *
conf_endpoint_add(struct conf_pool *p)
{
	size_t n = p->nendpoints;

	if ((n & (n - 1)) == 0)
		p->endpoints = mem_resize(p->endpoints, n > 0 ? 2 * n : 1, sizeof(*p->endpoints));
	memset(&p->endpoints[n], 0, sizeof(*p->endpoints));
	p->nendpoints++;
	return &p->endpoints[n];
}

int
conf_endpoints_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	struct conf_pool *p = base;
	struct conf_endpoint *ep;
	yaml_node_t *item;
	int lines[CONF_ENTRY_KEYS] = {0};
	size_t n, mark;

	if (conf_is_list(r, k, list, &n) != 0)
		return -1;
	for (size_t i = 0; (item = conf_item(r, list, i)) != NULL; i++) {
		mark = conf_enter_entry(r, i);
		ep = conf_endpoint_add(p);
		ep->role = k->type == CONF_T_PREFILL ? ROLE_PREFILL : ROLE_DECODE;
		ep->line = conf_line(item);
		memset(lines, 0, sizeof(lines));
		if (conf_walk(r, &conf_endpoint_keys, ep, item, lines) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

int
conf_dns_set(struct conf_read *r, const struct conf_key *k, void *base, yaml_node_t *list)
{
	struct conf_pool *p = base;
	struct conf_dns *d;
	yaml_node_t *item;
	int lines[CONF_ENTRY_KEYS];
	size_t n, mark;

	if (conf_is_list(r, k, list, &n) != 0)
		return -1;
	p->dns = mem_array(n + 1, sizeof(*p->dns));
	for (size_t i = 0; (item = conf_item(r, list, i)) != NULL; i++) {
		mark = conf_enter_entry(r, i);
		d = &p->dns[p->ndns++];
		d->as.line = conf_line(item);
		memset(lines, 0, sizeof(lines));
		if (conf_walk(r, &conf_dns_keys, d, item, lines) != 0)
			return -1;
		if (d->name[0] == '_' && d->port != 0)
			return conf_fail(r, d->as.line,
				"%.100s is the name of SRV records, which say the port: leave out port",
				d->name);
		for (const struct conf_dns *q = p->dns; q < d; q++)
			if (strcasecmp(q->name, d->name) == 0 && q->port == d->port &&
				q->as.role == d->as.role)
				return conf_fail(r, d->as.line,
					"%.100s is listed twice, first in line %d", d->name,
					q->as.line);
		conf_leave(r, mark);
	}
	return 0;
}

/* --- checks ----------------------------------------------------------------------------------- */

struct seen {
	struct http_url url;
	const struct conf_endpoint *ep;
};

/* Compares host without case, port and prefix, not the text: port 80 may be left out. */
static int
address_cmp(const struct seen *a, const struct seen *b)
{
	int d = (int)a->ep->role - (int)b->ep->role;

	if (d == 0)
		d = strcasecmp(a->url.host, b->url.host);
	if (d == 0)
		d = (int)a->url.port - (int)b->url.port;
	return d != 0 ? d : strcmp(a->url.prefix, b->url.prefix);
}

static int
seen_cmp(const void *va, const void *vb)
{
	const struct seen *a = *(const struct seen *const *)va,
			  *b = *(const struct seen *const *)vb;
	int d = address_cmp(a, b);

	return d != 0 ? d : (a->ep > b->ep) - (a->ep < b->ep);
}

/* No engine twice in one role: it would get twice its share.  Both roles at once is fine. */
int
conf_endpoints_check(struct conf_read *r, const struct conf_pool *p)
{
	struct seen *all = mem_array(p->nendpoints, sizeof(*all));
	const struct seen **by_address = mem_array(p->nendpoints, sizeof(const struct seen *));
	const char *why;
	int rc = 0;

	for (size_t i = 0; i < p->nendpoints; i++) {
		all[i].ep = &p->endpoints[i];
		if (http_url_parse(p->endpoints[i].url, &all[i].url, &why) != 0)
			abort(); /* its key was accepted */
		by_address[i] = &all[i];
	}
	qsort(by_address, p->nendpoints, sizeof(const struct seen *), seen_cmp);
	for (size_t i = 1; rc == 0 && i < p->nendpoints; i++) {
		const struct conf_endpoint *ep = by_address[i]->ep, *first = by_address[i - 1]->ep;

		if (address_cmp(by_address[i - 1], by_address[i]) != 0)
			continue;
		(void)conf_enter(r, "%s%s", r->path[0] != '\0' ? "." : "", role_name(ep->role));
		rc = conf_fail(r, ep->line, "%.100s is listed twice, first in line %d", ep->url,
			first->line);
	}
	free(by_address);
	free(all);
	return rc;
}

/* Of the endpoints_file, the fleet_file, or of prefill and decode. */
int
conf_endpoints_check_terms(struct conf_read *r, const struct conf_pool *p)
{
	size_t n[ROLE_N] = {0}, mark;

	for (size_t i = 0; i < p->nendpoints; i++) {
		const struct conf_endpoint *ep = &p->endpoints[i];

		if (p->endpoints_file != NULL)
			mark = conf_enter_entry(r, i);
		else
			mark = conf_enter(r, "%s%s[%zu]", r->path[0] != '\0' ? "." : "",
				role_name(ep->role), n[ep->role]++);
		if (conf_connector_check_endpoint(r, p, ep, false) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

int
conf_dns_check_terms(struct conf_read *r, const struct conf_pool *p)
{
	size_t mark;

	for (size_t i = 0; i < p->ndns; i++) {
		mark = conf_enter(r, ".dns[%zu]", i);
		if (p->dns[i].scheme == SCHEME_HTTPS && p->nannounce_networks > 0)
			return conf_fail(r, p->dns[i].as.line,
				"engines that announce themselves speak plain HTTP: use either scheme: https or announce_networks");
		if (conf_connector_check_endpoint(r, p, &p->dns[i].as, true) != 0)
			return -1;
		conf_leave(r, mark);
	}
	return 0;
}

/* True unless there are too many. */
static bool
note_group(struct conf_pool *p, char *group)
{
	if (group == NULL || conf_strs_has(p->groups, p->ngroups, group))
		return true;
	if (p->ngroups == CONF_GROUPS_MAX)
		return false;
	if (p->groups == NULL)
		p->groups = mem_array(CONF_GROUPS_MAX, sizeof(*p->groups));
	p->groups[p->ngroups++] = group;
	return true;
}

int
conf_groups_note(struct conf_read *r, struct conf_pool *p)
{
	for (size_t i = 0; i < p->nendpoints; i++)
		if (!note_group(p, p->endpoints[i].group))
			return conf_fail(r, p->endpoints[i].line, "more than %d groups in pool %s",
				CONF_GROUPS_MAX, p->name);
	for (size_t i = 0; i < p->ndns; i++)
		if (!note_group(p, p->dns[i].as.group))
			return conf_fail(r, p->dns[i].as.line, "more than %d groups in pool %s",
				CONF_GROUPS_MAX, p->name);
	return 0;
}

/* Whether a group, or those without one, has endpoints of both roles. */
bool
conf_group_has_both(const struct conf_pool *p)
{
	bool has[CONF_GROUPS_MAX + 1][ROLE_N] = {{false}};

	for (size_t i = 0; i < p->nendpoints; i++) {
		const struct conf_endpoint *ep = &p->endpoints[i];
		size_t g = 0;

		while (g < p->ngroups &&
			(ep->group == NULL || strcmp(p->groups[g], ep->group) != 0))
			g++;
		has[g][ep->role] = true;
		if (has[g][ROLE_PREFILL] && has[g][ROLE_DECODE])
			return true;
	}
	return false;
}
