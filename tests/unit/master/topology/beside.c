/* Two fleets on the same hosts: each finding is one of the second file. */
#include "tests/unit/master/topology.h"

#include "master/topology/beside.h"

#define SECOND(name, more, hosts, prefill)                                                         \
	"fleet: " name "\nmodel: {path: m}\nengine: {kind: vllm, version: \"0.12\"}\n"             \
	"connector: nixl\n" more "\nhosts: {" hosts "}\nprefill: {" prefill                        \
	"}\ndecode: {hosts: [y]}\n"
#define Y "y: {address: 10.0.0.9, gpus: 8}"

static void
expect_beside(const char *first, const char *second, int line, const char *key, const char *word)
{
	struct made a = make_good(first), b = make_good(second);
	bool found = false;
	char buf[1024] = "";

	topo_check_beside(b.plan, a.plan);
	for (size_t i = 0; i < b.plan->nfindings; i++) {
		const struct conf_error *f = &b.plan->findings[i];

		found = found || (f->line == line && strcmp(f->key, key) == 0 &&
					 strstr(f->what, word) != NULL);
		(void)conf_error_text(f, buf, sizeof(buf));
	}
	cr_expect(word == NULL ? b.plan->nfindings == 0 : found, "%zu findings, the last: %s",
		b.plan->nfindings, buf);
	unmake(&a);
	unmake(&b);
}

Test(beside, what_fleets_cannot_share)
{
	expect_beside(FULL("", ""), SECOND("f", "", Y, ""), 1, "fleet", "has this name too");
	expect_beside(FULL("hosts: [b]", "hosts: [a]"),
		SECOND("g", "port_offset: 1000", "x: {address: 10.0.0.2, gpus: 1}, " Y,
			"hosts: [x]"),
		7, "g-prefill-0", "GPU 0 of x is that of f-prefill-0 of f.yaml too");
	expect_beside(FULL("hosts: [b]", "hosts: [a]"),
		SECOND("g", "", "x: {address: 10.0.0.2, gpus: [7]}, " Y, "hosts: [x]"), 7,
		"prefill",
		"port 8100 (api) of g-prefill-0 on x is taken by f-prefill-0 (api) of f.yaml");
	expect_beside(FULL("", ""),
		SECOND("g", "port_offset: 1000", "x: {address: 10.0.0.1, gpus: [9]}, " Y,
			"hosts: [x], ports: {api: 8000}"),
		7, "prefill",
		"port 8000 (api) of g-prefill-0 on x is taken by the router (listen) of");
	expect_beside(FULL("", ""),
		SECOND("g", "port_offset: 1000", "x: {address: 10.0.0.1, gpus: [9]}, " Y,
			"hosts: [x]") "router: {hosts: [x], listen: [\"0.0.0.0:8100\"]}\n",
		9, "router.hosts", "x has the router of f.yaml");
	expect_beside(FULL("", ""),
		SECOND("g", "port_offset: 1000", "x: {address: 10.0.0.1, gpus: [9]}, " Y,
			"hosts: [x]") "router: {hosts: [x], listen: [\"0.0.0.0:8100\"]}\n",
		9, "router.listen",
		"port 8100 (listen) of the router on x is taken by f-prefill-0 (api) of f.yaml: "
		"write router.listen");
	expect_beside(FULL("", ""),
		SECOND("g", "port_offset: 1000", "x: {address: 10.0.0.1, gpus: [9]}, " Y,
			"hosts: [x]") "router: {hosts: [x], config: {admin: {listen: [\"0.0.0.0:8100\"]}}}\n",
		9, "router.listen",
		"port 8100 (admin.listen) of the router on x is taken by f-prefill-0 (api) of f.yaml: "
		"write router.config");
}

Test(beside, good_neighbours)
{
	expect_beside(FULL("", ""),
		SECOND("g", "port_offset: 10000", "x: {address: 10.0.0.1, gpus: [3, 4]}, " Y, ""),
		0, "", NULL);
}
