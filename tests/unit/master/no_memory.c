/* Each allocation of what the master does at run time fails, one after the other, until the reserve has been given up. */
#include "tests/unit/master/fleet.h"

#include <event2/buffer.h>
#include <stdio.h>
#include <unistd.h>

#include "master/config/conf.h"
#include "master/fleet/discover.h"
#include "master/fleet/drain.h"
#include "master/fleet/status.h"
#include "master/probe/models.h"
#include "master/supervise/reload.h"
#include "shm/base/log.h"

#define RESERVE (1u << 20)

Test(no_memory_reserve, is_given_up_once_and_had_again)
{
	uint64_t counter = 0;

	cr_assert(mem_reserve(RESERVE, &counter) && mem_has_reserve());
	cr_assert(mem_give_up_reserve() && !mem_has_reserve());
	cr_assert(!mem_give_up_reserve());
	cr_assert_eq(counter, 1);
	cr_assert(mem_reserve(RESERVE, &counter) && mem_has_reserve());
	cr_assert(mem_reserve(0, NULL) && !mem_has_reserve());
}

Test(no_memory_reserve, room_is_asked_for_beside_it)
{
	uint64_t counter = 0;

	cr_assert(mem_reserve(RESERVE, &counter));
	cr_assert(mem_has_room(RESERVE));
	cr_assert_eq(counter, 0);
	cr_assert(!mem_has_room(SIZE_MAX / 2));
	cr_assert_eq(counter, 1);
	cr_assert(mem_has_reserve());
	cr_assert(mem_reserve(0, NULL));
}

/* the sanitizer has an allocator of its own */
#ifndef __SANITIZE_ADDRESS__

#define P1 "http://127.0.0.1:8101"
#define D1 "http://127.0.0.1:8201"

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);

static bool armed;
static unsigned asked, fails_from; /* allocations */
static uint64_t failures;

static bool
is_refused(void)
{
	return armed && asked++ >= fails_from && mem_has_reserve();
}

void *
malloc(size_t size)
{
	return is_refused() ? NULL : __libc_malloc(size);
}

void *
calloc(size_t n, size_t size)
{
	return is_refused() ? NULL : __libc_calloc(n, size);
}

void *
realloc(void *p, size_t size)
{
	return is_refused() ? NULL : __libc_realloc(p, size);
}

/* Runs it, which asserts nothing by itself, once for each of its allocations, which is the first one to fail. */
static void
with_each_failing(bool (*act)(void))
{
	bool good;

	fails_from = 0;
	do {
		cr_assert(mem_reserve(RESERVE, &failures));
		asked = 0;
		armed = true;
		good = act();
		armed = false;
		cr_expect(good, "allocation %u", fails_from);
	} while (asked > fails_from++);
	cr_expect_gt(fails_from, 3, "%u allocations", fails_from);
	cr_expect_gt(failures, 0);
}

static char path[64];
static struct conf *conf;

static void
setup(void)
{
	static char network[] = "127.0.0.0/8", *networks[] = {network};

	event_set_mem_functions(mem_or_null, mem_resize_or_null, free);
	log_setup(LOG_L_ERROR, LOG_F_LOGFMT);
	fleet_setup(8, 4);
	conf = conf_make();
	conf->health_interval_ms = 3600000;
	conf_endpoint(conf_pool(conf, "main", "m"), ROLE_PREFILL, P1);
	conf_endpoint(&conf->pools[0], ROLE_DECODE, D1);
	conf->pools[0].announce_networks = networks;
	conf->pools[0].nannounce_networks = 1;
	apply(conf);
	(void)snprintf(path, sizeof(path), "/tmp/pdr-no-memory-%d.yaml", (int)getpid());
}

static void
teardown(void)
{
	fleet_teardown();
	(void)unlink(path);
}

TestSuite(no_memory, .init = setup, .fini = teardown, .timeout = 60);

static bool
read_conf(void)
{
	const struct conf_args args = {.file = path};
	struct conf_error err;
	struct conf *c = NULL;
	const bool good = reload_read(&args, NULL, &c, &err) == 0 || err.what[0] != '\0';

	conf_free(&c);
	return good;
}

Test(no_memory, a_configuration_is_read_or_refused)
{
	FILE *f = fopen(path, "w");

	(void)fputs(
		"listen: [\"127.0.0.1:1\"]\npools:\n - {connector: nixl, models: [m],\n"
		"    prefill: [{url: http://127.0.0.1:1}], decode: [{url: http://127.0.0.1:2}]}\n",
		f);
	(void)fclose(f);
	with_each_failing(read_conf);
}

static bool
find_engines(void)
{
	static char url[] = "http://127.0.0.1:8102";
	const struct found one = {.as = {.url = url, .role = ROLE_PREFILL, .weight = 1}};

	bool was;

	fleet_found(fleet, "main", DISCOVER_ANNOUNCED, &one, 1);
	was = endpoint_of(url) != NULL;
	fleet_found(fleet, "main", DISCOVER_ANNOUNCED, &one, 0);
	return was && endpoint_of(url) == NULL;
}

Test(no_memory, engines_come_and_go)
{
	with_each_failing(find_engines);
}

static bool
learn_models(void)
{
	static const char list[] =
		"{\"data\":[{\"id\":\"a\",\"root\":\"r\",\"max_model_len\":9},{\"id\":\"b\"}]}";
	struct model_set set = {0};
	size_t left_out;
	const int n = models_read(list, sizeof(list) - 1, NULL, 0, &set, &left_out);

	models_clear(&set);
	return n == 2;
}

Test(no_memory, models_are_learned)
{
	with_each_failing(learn_models);
}

static bool
command(void)
{
	struct evbuffer *out = evbuffer_new();
	bool good = drain_begin(fleet, P1, out) == 0 && drain_end(fleet, P1, out) == 0;

	fleet_status(fleet, out, false);
	good = good && evbuffer_search(out, D1, strlen(D1), NULL).pos > 0;
	evbuffer_free(out);
	return good;
}

Test(no_memory, commands_are_answered)
{
	with_each_failing(command);
}

#endif
