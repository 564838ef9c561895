/* As many pools and models as there may be: the cost of reading them must not grow with their square. */
#include "master/config/conf.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "shm/base/conf.h"

#define POOLS 256
#define MODELS 256 /* of each pool */
/* CPU time of one reading: about 50 ms on a busy machine, where comparing each with each took 8 s */
#define LIMIT_MS 500

/* The model `twice` of the last pool is the first model of the first pool. */
static char *
text_of(bool twice, size_t *ret_n)
{
	char *text;
	FILE *out = open_memstream(&text, ret_n);

	cr_assert_not_null(out);
	(void)fprintf(out, "shared_memory: {max_pools: %d}\npools:\n", POOLS);
	for (int p = 0; p < POOLS; p++) {
		(void)fprintf(out,
			"- {name: p%d, connector: nixl, prefill: [{url: http://p}], decode: [{url: http://d}], models: [",
			p);
		for (int m = 0; m < MODELS; m++)
			(void)fprintf(out, "%sorganisation/model-%d-%d", m > 0 ? ", " : "",
				twice && p == POOLS - 1 && m == MODELS - 1 ? 0 : p,
				twice && p == POOLS - 1 && m == MODELS - 1 ? 0 : m);
		(void)fputs("]}\n", out);
	}
	cr_assert_eq(fclose(out), 0);
	return text;
}

Test(conf_many, pools_and_models_are_read_in_time)
{
	struct conf_error err;
	struct conf *c = NULL;
	size_t n;
	char *text = text_of(false, &n);
	clock_t start = clock();
	double ms;

	cr_assert_eq(conf_parse("t.yaml", text, n, &c, &err), 0, "%s: %s", err.key, err.what);
	ms = (double)(clock() - start) * 1000 / CLOCKS_PER_SEC;
	(void)fprintf(stderr, "%d pools of %d models: %.1f ms\n", POOLS, MODELS, ms);
	cr_expect_lt(ms, LIMIT_MS, "%.1f ms", ms);
	cr_expect_eq(c->npools, POOLS);
	conf_free(&c);
	free(text);
}

Test(conf_many, the_last_model_twice)
{
	struct conf_error err;
	struct conf *c = NULL;
	size_t n;
	char *text = text_of(true, &n);

	cr_assert_eq(conf_parse("t.yaml", text, n, &c, &err), -1);
	cr_expect_eq(err.line, POOLS + 2);
	cr_expect_str_eq(err.key, "pools[255].models");
	cr_expect_str_eq(err.what, "organisation/model-0-0 is already a model of pool p0");
	free(text);
}
