#include "master/topology/source.h"

#include "master/topology/endpoint.h"
#include "master/topology/plan.h"
#include "master/topology/template_find.h"

int
topo_source(const char *path, struct conf_fleet *ret, struct conf_error *err)
{
	struct topo_template *template = NULL;
	struct topology *t = NULL;
	struct topo_plan *p = NULL;
	int rc = topo_load(path, &t, err);

	if (rc == 0)
		rc = topo_template_find(t, NULL, &template, err);
	if (rc == 0)
		p = topo_plan_engines(t, template);
	if (p != NULL && p->nfindings > 0) {
		*err = p->findings[0];
		rc = -1;
	} else if (p != NULL)
		*ret = topo_endpoints(p);
	topo_plan_free(&p);
	topo_template_free(&template);
	topo_free(&t);
	return rc;
}
