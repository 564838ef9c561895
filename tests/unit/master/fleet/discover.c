/* What several sources say of one fleet, folded into one set; and what becomes of it at a reload. */
#include "tests/unit/master/fleet.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "master/config/conf.h"
#include "master/fleet/discover.h"
#include "master/fleet/publish.h"
#include "master/fleet/state.h"
#include "shm/announce.h"
#include "shm/base/clock.h"

#define P1 "http://10.0.0.1:8100"
#define P2 "http://10.0.0.2:8100"
#define P3 "http://10.0.0.3:8100"
#define D1 "http://10.0.1.1:8200"
#define DNS "dns prefill.test:8100:prefill:http"

static void
setup(void)
{
	static char nobody[] = "127.0.0.1:9";

	name_servers[0] = nobody;
	nname_servers = 1;
	fleet_setup(6, 4);
}

TestSuite(discover, .init = setup, .fini = fleet_teardown);

/* Pool "main" with D1 and these prefill engines configured; it asks DNS and takes announcements. */
static struct conf *
conf_of(const char *const *urls, size_t n)
{
	static struct conf_dns dns = {.port = 8100, .as = {.role = ROLE_PREFILL}};
	static char name[] = "prefill.test";
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");

	dns.name = name;
	conf_endpoint(p, ROLE_DECODE, D1);
	for (size_t i = 0; i < n; i++)
		conf_endpoint(p, ROLE_PREFILL, urls[i]);
	p->dns = &dns;
	p->ndns = 1;
	p->nannounce_networks = 1;
	return c;
}
#define CONF(...)                                                                                  \
	conf_of((const char *const[]){__VA_ARGS__},                                                \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static struct found
found(char *url, uint32_t weight, const char *kv_addr)
{
	struct found f = {.as = {.url = url, .role = ROLE_PREFILL, .weight = weight}};

	(void)snprintf(f.kv_addr, sizeof(f.kv_addr), "%s", kv_addr);
	return f;
}

static void
find(const char *source, const char *const *urls, size_t n)
{
	struct found list[16] = {0};

	for (size_t i = 0; i < n; i++)
		list[i] = found(mem_strdup(urls[i]), 7, "");
	fleet_found(fleet, "main", source, list, n);
	for (size_t i = 0; i < n; i++)
		free(list[i].as.url);
	publish_poll(fleet->publish); /* what the end of the loop's turn does */
}
#define FIND(source, ...)                                                                          \
	find(source, (const char *const[]){__VA_ARGS__},                                           \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))
#define FIND_NONE(source) find(source, NULL, 0)

Test(discover, found_endpoints_stand_beside_configured_ones)
{
	apply(CONF(P1));
	FIND(DNS, P2, P3);
	cr_assert_eq(table_now()->nendpoints, 4);
	cr_assert_eq(row_of(P2)->weight, 7);
	cr_assert_str_eq(endpoint_of(P1)->source, "config");
	cr_assert_str_eq(endpoint_of(P2)->source, "dns prefill.test");
	cr_assert_not_null(endpoint_of(P2)->engine.health, "and are probed");
	FIND(DNS, P3);
	cr_assert_null(row_of(P2));
	cr_assert_not_null(row_of(P3));
}

/* What a source says of an engine beside its URL: it keeps copies, and another word is news. */
Test(discover, all_terms_are_kept_and_compared)
{
	char host[] = "dec-0", kv[] = ":1", ports[] = "[7300]";
	struct found f = found((char[]){P2}, 1, "");
	uint64_t version = 0;

	f.as.receiver_host = host;
	f.as.receiver_init_port = (struct conf_ports){1, {7300}};
	f.as.receiver_alloc_port = (struct conf_ports){1, {7400}};
	f.as.weight = 5;
	f.as.dp_ranks = 2;
	f.as.kv_addr = kv;
	apply(CONF(P1));
	for (int i = 0; i < 7; i++) {
		fleet_found(fleet, "main", DNS, &f, 1);
		publish_poll(fleet->publish);
		cr_assert_gt(table_now()->version, version, "%d: news", i);
		version = table_now()->version;
		fleet_found(fleet, "main", DNS, &f, 1);
		publish_poll(fleet->publish);
		cr_assert_eq(table_now()->version, version, "%d: the same again", i);
		cr_assert_eq(row_of(P2)->dp_ranks, f.as.dp_ranks, "%d", i);
		cr_assert_eq(row_of(P2)->weight, f.as.weight, "%d", i);
		cr_assert_not_null(strstr(row_of(P2)->disagg_spec, host), "%d", i);
		cr_assert_not_null(strstr(row_of(P2)->disagg_spec, ports), "%d", i);
		cr_assert_not_null(strstr(row_of(P2)->kv_addr, kv), "%d", i);
		host[4] = (char)('1' + (i == 0));
		kv[1] = (char)('1' + (i == 1));
		f.as.weight += i == 2;
		f.as.dp_ranks += i == 3;
		ports[4] = (char)('0' + (i == 4));
		f.as.receiver_init_port.port[0] = (uint16_t)(7300 + (i == 4));
		f.as.receiver_alloc_port.port[0] = (uint16_t)(7400 + (i == 5));
	}
}

Test(discover, the_same_answer_publishes_nothing)
{
	apply(CONF(P1));
	FIND(DNS, P2, P3);
	uint64_t version = table_now()->version;

	FIND(DNS, P2, P3);
	cr_assert_eq(table_now()->version, version);
	FIND_NONE("announced");
	cr_assert_eq(table_now()->version, version, "nothing instead of nothing");
}

Test(discover, the_configured_entry_wins_and_takes_the_kv_address)
{
	struct conf *c = CONF(P1);
	struct found f = found((char[]){P1}, 9, "10.0.0.1:21001");

	c->pools[0].endpoints[1].weight = 2;
	apply(c);
	uint32_t slot = row_of(P1)->slot;

	fleet_found(fleet, "main", DISCOVER_ANNOUNCED, &f, 1);
	publish_poll(fleet->publish);
	cr_assert_eq(table_now()->nendpoints, 2);
	cr_assert_eq(row_of(P1)->slot, slot);
	cr_assert_eq(row_of(P1)->weight, 2);
	cr_assert_str_eq(row_of(P1)->kv_addr, "10.0.0.1:21001");
	cr_assert_str_eq(endpoint_of(P1)->source, "config");
	FIND_NONE(DISCOVER_ANNOUNCED);
	cr_assert_str_eq(row_of(P1)->kv_addr, "");
}

Test(discover, another_spelling_of_a_configured_url_is_the_same_engine)
{
	apply(CONF("http://10.0.0.1", "http://Engine.Test:8100", "http://10.0.0.2/prefix"));
	FIND(DNS, "http://10.0.0.1:80", "http://engine.test:8100");
	cr_assert_eq(table_now()->nendpoints, 4);
	FIND(DNS, "http://10.0.0.2:80");
	cr_assert_eq(table_now()->nendpoints, 5, "behind a prefix is another one");
}

Test(discover, two_sources_are_one_endpoint_until_neither_names_it)
{
	apply(CONF(P1));
	FIND(DNS, P2);
	uint32_t slot = row_of(P2)->slot;

	FIND(DISCOVER_ANNOUNCED, P2, P2);
	cr_assert_eq(table_now()->nendpoints, 3);
	FIND_NONE(DNS);
	cr_assert_eq(row_of(P2)->slot, slot);
	cr_assert_str_eq(endpoint_of(P2)->source, "announced");
	FIND_NONE(DISCOVER_ANNOUNCED);
	cr_assert_null(row_of(P2));
}

Test(discover, a_reload_keeps_what_was_found)
{
	apply(CONF(P1));
	FIND(DNS, P2);
	uint32_t slot = row_of(P2)->slot;

	apply(CONF(P3));
	cr_assert_eq(row_of(P2)->slot, slot);
	cr_assert_eq(row_of(P2)->tag, 1);
	apply(CONF(P2)); /* now it is configured, too */
	cr_assert_str_eq(endpoint_of(P2)->source, "config");
	cr_assert_eq(row_of(P2)->slot, slot);
	apply(CONF(P1));
	cr_assert_str_eq(endpoint_of(P2)->source, "dns prefill.test");
	cr_assert_eq(row_of(P2)->slot, slot);
}

Test(discover, a_source_that_is_not_configured_any_more_is_forgotten)
{
	struct conf *c;

	apply(CONF(P1));
	FIND(DNS, P2);
	FIND(DISCOVER_ANNOUNCED, P3);
	c = CONF(P1);
	c->pools[0].ndns = 0;
	apply(c);
	cr_assert_null(row_of(P2));
	cr_assert_not_null(row_of(P3));
	c = CONF(P1);
	c->pools[0].nannounce_networks = 0;
	apply(c);
	cr_assert_null(row_of(P3));
	apply(CONF(P1));
	cr_assert_eq(table_now()->nendpoints, 2, "and stays so");
}

Test(discover, a_pool_that_is_gone_takes_its_found_ones_along)
{
	struct conf *c;

	apply(CONF(P1));
	FIND(DNS, P2);
	c = conf_make();
	conf_endpoint(conf_pool(c, "other", "m"), ROLE_DECODE, D1);
	apply(c);
	cr_assert_null(endpoint_of(P2));
	fleet_found(fleet, "main", DNS, &(struct found){.as = {.url = (char[]){P3}}}, 1);
	cr_assert_null(endpoint_of(P3), "nor does a late answer count");
}

Test(discover, removed_ones_drain_and_come_back_to_their_slot)
{
	apply(CONF(P1));
	FIND(DNS, P2);
	uint32_t slot = row_of(P2)->slot;

	cr_assert(load_reserve(seg, 0, slot, 0));
	FIND_NONE(DNS);
	cr_assert_null(row_of(P2));
	cr_assert_eq(ep_state_get(seg, slot), EP_DRAINING);
	FIND(DNS, P2);
	cr_assert_eq(row_of(P2)->slot, slot);
	cr_assert_eq(row_of(P2)->tag, 1, "the reservation is of the same life");
	cr_assert_not_null(endpoint_of(P2)->engine.health);
	load_release(seg, 0, slot);
}

#define P4 "http://10.0.0.4:8100"
#define P5 "http://10.0.0.5:8100"
#define P6 "http://10.0.0.6:8100"

Test(discover, more_than_max_endpoints_wait_for_a_slot)
{
	apply(CONF(P1));
	FIND(DNS, P2, P3, P4, P5, P6);
	cr_assert_eq(table_now()->nendpoints, 6);
	cr_assert_null(row_of(P6));
	FIND(DNS, P3, P4, P5, P6);
	publish_poll(fleet->publish); /* the table with P2 is read by nobody any more */
	cr_assert_eq(table_now()->nendpoints, 6);
	cr_assert_not_null(row_of(P6));
}

/* As many as there are slots were found before a reload names another one. */
Test(discover, found_ones_give_way_to_configured_ones)
{
	apply(CONF(P1));
	FIND(DNS, P2, P3, P4, P5);
	uint32_t slot = row_of(P5)->slot;

	cr_assert(load_reserve(seg, 0, slot, 0));
	apply(CONF(P1, P6));
	cr_assert_eq(ep_state_get(seg, slot), EP_DRAINING, "the last found one");
	cr_assert_null(row_of(P5));
	cr_assert_eq(endpoint_of(P5)->engine.slot, ENGINE_NO_SLOT, "it waits as others do");
	apply(CONF(P1, P6));
	cr_assert_null(row_of(P6), "a request runs there");
	load_release(seg, 0, slot);
	publish_poll(fleet->publish);
	publish_poll(fleet->publish); /* the first one freed the slot */
	cr_assert_eq(row_of(P6)->slot, slot);
	apply(CONF(P1));
	publish_poll(fleet->publish);
	publish_poll(fleet->publish);
	cr_assert_not_null(row_of(P5), "there is room again");
}

Test(discover, found_ones_do_not_give_way_to_found_ones)
{
	apply(CONF(P1));
	FIND(DNS, P3, P4, P5, P6);
	uint32_t slot = row_of(P6)->slot;

	FIND(DNS, P2, P3, P4, P5, P6);
	cr_assert_null(row_of(P2));
	cr_assert_eq(row_of(P6)->slot, slot, "who came first stays");
}

/* What waits in the place of one that drains takes no other slot: both would drain one day. */
Test(discover, one_that_gave_way_waits_for_its_own_slot)
{
	apply(CONF(P1));
	FIND(DNS, P2, P3, P4, P5);
	uint32_t slot = row_of(P5)->slot;

	cr_assert(load_reserve(seg, 0, slot, 0));
	apply(CONF(P1, P6));
	FIND(DNS, P4, P5); /* slots for P6 and one more */
	publish_poll(fleet->publish);
	publish_poll(fleet->publish);
	cr_assert_not_null(row_of(P6));
	publish_poll(fleet->publish);
	FIND(DNS, P4);
	FIND(DNS, P4, P5);
	cr_assert_eq(row_of(P5)->slot, slot);
	load_release(seg, 0, slot);
}

Test(discover, one_that_gave_way_comes_back_to_its_slot)
{
	apply(CONF(P1));
	FIND(DNS, P2, P3, P4, P5);
	uint32_t slot = row_of(P5)->slot;

	cr_assert(load_reserve(seg, 0, slot, 0));
	apply(CONF(P1, P6));
	FIND(DNS, P2, P3, P4);
	FIND(DNS, P2, P3, P4, P5);
	cr_assert_eq(ep_state_get(seg, slot), EP_DRAINING, "still one too many");
	apply(CONF(P1));
	cr_assert_eq(row_of(P5)->slot, slot);
	cr_assert_eq(row_of(P5)->tag, 1, "the reservation is of the same life");
	cr_assert_not_null(endpoint_of(P5)->engine.health);
	load_release(seg, 0, slot);
}

Test(discover, one_that_gave_way_stays_drained)
{
	apply(CONF(P1));
	FIND(DNS, P2, P3, P4, P5);
	const uint32_t slot = row_of(P5)->slot;

	state_drain(endpoint_of(P5));
	cr_assert(load_reserve(seg, 0, slot, 0));
	apply(CONF(P1, P6));
	cr_assert_eq(endpoint_of(P5)->engine.slot, ENGINE_NO_SLOT);
	cr_assert(endpoint_of(P5)->drained);
	apply(CONF(P1));
	cr_assert_eq(row_of(P5)->slot, slot, "revived");
	cr_assert_eq(ep_state_get(seg, slot), EP_DRAINING);
	apply(CONF(P1, P6));
	load_release(seg, 0, slot);
	publish_poll(fleet->publish);
	publish_poll(fleet->publish);
	apply(CONF(P1));
	publish_poll(fleet->publish);
	publish_poll(fleet->publish);
	cr_assert_eq(ep_state_get(seg, row_of(P5)->slot), EP_DRAINING, "in its slot's next life");
}

Test(discover, what_is_no_url_is_left_out)
{
	apply(CONF(P1));
	FIND(DNS, "http://a b:80", "ftp://10.0.0.2", P3, "");
	cr_assert_eq(table_now()->nendpoints, 3);
	cr_assert_not_null(row_of(P3));
}

Test(discover, found_before_the_first_configuration_waits_for_it)
{
	FIND(DNS, P2);
	apply(CONF(P1));
	cr_assert_not_null(row_of(P2));
}

/* The configuration's own endpoints fit (fleet_check has seen it); what is found on top may not. */
Test(discover, found_ones_that_the_table_has_no_room_for_are_left_out)
{
	struct conf *c = CONF(P1);
	struct conf_error err;
	char *urls[3];

	free(c->pools[0].models[0]);
	c->pools[0].models[0] = mem_printf("%0*d", (int)seg->arena_bytes - 3000, 0);
	cr_assert_eq(fleet_check(fleet, c, &err), 0);
	apply(c);
	for (size_t i = 0; i < 3; i++)
		urls[i] = mem_printf("http://%0200zu.test:80", i);
	find(DNS, (const char *const *)urls, 3);
	cr_assert_not_null(row_of(P1));
	cr_assert_not_null(row_of(D1));
	cr_assert_not_null(row_of(urls[0]), "what fits is there");
	cr_assert_null(row_of(urls[2]));
	publish_up(fleet->publish, endpoint_of(urls[2]));
	publish_poll(fleet->publish);
	cr_assert_neq(ep_state_get(seg, endpoint_of(urls[2])->engine.slot), EP_UP,
		"nobody could choose it");
	find(DNS, (const char *const *)urls + 2, 1);
	cr_assert_not_null(row_of(urls[2]), "there is room now");
	for (size_t i = 0; i < 3; i++)
		free(urls[i]);
}

/* Nor must an engine that announces itself: what it says of a configured one stands in the table, too. */
Test(discover, a_kv_address_finds_room_in_the_fullest_table)
{
	struct found f =
		found((char[]){P1}, 1, "2001:db8:1111:2222:3333:4444:5555:6666.test:21001");
	struct conf *c = CONF(P1);
	struct conf_error err;
	size_t n = seg->arena_bytes;

	do {
		free(c->pools[0].models[0]);
		c->pools[0].models[0] = mem_printf("%0*d", (int)n--, 0);
	} while (fleet_check(fleet, c, &err) != 0);
	apply(c);
	for (size_t i = 0; i < fleet->norder; i++) /* as long as what is learned can be */
		memset(fleet->order[i]->engine.runtime.version, 'v',
			sizeof(fleet->order[i]->engine.runtime.version) - 1);
	fleet_found(fleet, "main", DISCOVER_ANNOUNCED, &f, 1);
	publish_poll(fleet->publish);
	cr_assert_str_eq(row_of(P1)->kv_addr, f.kv_addr);
}

static void
wake(int fd)
{
	const uint64_t one = 1;

	cr_assert_eq(write(fd, &one, sizeof(one)), sizeof(one));
	(void)event_base_loop(base, EVLOOP_NONBLOCK);
}

/* One eventfd tells of both, and signs of a restart come with each request that fails. */
Test(discover, a_sign_of_a_restart_reads_no_announcements)
{
	static char network[] = "10.0.0.0/16", *networks[] = {network}, at[] = "tcp://x";
	const struct announcement one = {
		.role = ROLE_PREFILL, .http = "10.0.0.2:8100", .seen_ms = clock_ms()};
	const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	struct conf *c = CONF(P1);
	uint32_t slot;
	bool full;

	c->announce_listen = at;
	c->announce_forget_ms = 60000;
	c->pools[0].announce_networks = networks;
	fleet_hear(fleet, fd);
	apply(c);
	cr_assert(announce_put(seg, &one, 60000, &full));
	slot = endpoint_of(P1)->engine.slot;
	cr_assert(restart_doubt(seg, slot, restart_life(seg, slot)));
	wake(fd);
	cr_expect_null(endpoint_of(P2), "they are read within a second anyway");
	wake(fd);
	cr_expect_not_null(endpoint_of(P2));
	(void)close(fd);
}
