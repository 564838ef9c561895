/* Slots, pool numbers, publication: what workers see of a configuration, without a packet sent. */
#include "shm/eject.h" /* before the fixture, whose names its own would hide */
#include "tests/unit/master/fleet.h"

#include <stdio.h>

#include "master/config/conf.h"
#include "master/fleet/publish.h"
#include "master/fleet/state.h"
#include "shm/base/prefix_key.h"
#include "shm/base/clock.h"
#include "shm/kv_events.h"
#include "shm/metrics.h"

#define P1 "http://127.0.0.1:8101"
#define P1B "http://127.0.0.1:8102"
#define P2 "http://127.0.0.2:8102/engine"
#define D1 "http://[::1]:8201"
#define D2 "http://127.0.0.4:8202"

static void
setup(void)
{
	fleet_setup(4, 2);
}

TestSuite(publish, .init = setup, .fini = fleet_teardown);

/* A configuration of one pool "main"; ports 82.. are decode engines. */
static struct conf *
conf_of(const char *const *urls, size_t n)
{
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");

	for (size_t i = 0; i < n; i++)
		conf_endpoint(
			p, strstr(urls[i], ":82") != NULL ? ROLE_DECODE : ROLE_PREFILL, urls[i]);
	return c;
}
#define CONF(...)                                                                                  \
	conf_of((const char *const[]){__VA_ARGS__},                                                \
		sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

Test(publish, first_table_says_all)
{
	apply(CONF(P1, P2, D1));
	const struct table *t = table_now();
	const struct table_endpoint *e = row_of(P2);

	cr_assert_eq(t->version, 1);
	cr_assert_eq(t->config, 1);
	cr_assert_gt(t->created_s, 1600000000);
	cr_assert_eq(t->nendpoints, 3);
	cr_assert_str_eq(t->pools[0].name, "main");
	cr_assert_str_eq(t->pools[0].models[0], "m");
	cr_assert_eq(t->pools[0].n[ROLE_PREFILL], 2);
	cr_assert_eq(t->pools[0].n[ROLE_DECODE], 1);
	cr_assert_str_eq(e->authority, "127.0.0.2:8102");
	cr_assert_str_eq(e->host, "127.0.0.2");
	cr_assert_str_eq(e->prefix, "/engine");
	cr_assert_eq(e->tag, 1);
	cr_assert_eq(ep_state_get(seg, e->slot), EP_STARTING);
	cr_assert_str_eq(row_of(D1)->authority, "[::1]:8201");
	cr_assert_eq(metric_sum(seg, M_PUBLISHED), 1);
}

static struct conf_endpoint *
last_endpoint(struct conf *c)
{
	return &c->pools[0].endpoints[c->pools[0].nendpoints - 1];
}

/* A star is the engine's own address; an endpoint that leaves has no source. */
Test(publish, where_kv_events_are_published)
{
	static char all[] = "tcp://*:5557", replay[] = "tcp://*:5558", own[] = "tcp://10.0.0.9:1";
	struct conf *c = CONF(P1, P2, D1);
	struct prefix_secret secret;
	struct kv_source s;
	uint64_t seq[4] = {0};
	uint32_t first;

	c->pools[0].kv_events = all;
	c->pools[0].kv_events_replay = replay;
	c->pools[0].endpoints[1].kv_events = own;
	c->pools[0].endpoints[1].dp_ranks = 4;
	apply(c);
	first = row_of(P1)->slot;
	cr_assert(kv_source_get(seg, first, &seq[0], &s));
	cr_assert_str_eq(s.events, "tcp://127.0.0.1:5557");
	cr_assert_str_eq(s.replay, "tcp://127.0.0.1:5558");
	cr_assert_eq(s.ranks, 1);
	cr_assert_eq(s.tag, row_of(P1)->tag);
	cr_assert_eq(s.row, 1);
	prefix_secret_make(&secret, seg->hdr->prefix_seed);
	cr_assert_eq(s.root, prefix_ids_model(&secret, "m", 1));
	cr_assert(kv_source_get(seg, row_of(P2)->slot, &seq[1], &s));
	cr_assert_str_eq(s.events, "tcp://10.0.0.9:1");
	cr_assert_str_eq(s.replay, "tcp://127.0.0.2:5558");
	cr_assert_eq(s.ranks, 4);
	cr_assert(kv_source_get(seg, row_of(D1)->slot, &seq[2], &s));
	cr_assert_str_eq(s.events, "tcp://[::1]:5557");
	apply(CONF(P2, D1));
	cr_assert(kv_source_get(seg, first, &seq[0], &s));
	cr_assert_eq(s.ranks, 0);
	c->pools[0].kv_events = c->pools[0].kv_events_replay = NULL; /* not the heap's */
	c->pools[0].endpoints[1].kv_events = NULL;
}

/* Of LMCache pools alone.  One that leaves still sends while requests hold its KV. */
Test(publish, who_sends_notices)
{
	struct conf *c = CONF(P1, P2, D1);
	struct kv_sender s;
	uint64_t seq = 0;
	uint32_t first, third;

	apply(c);
	first = row_of(P1)->slot;
	third = row_of(D1)->slot;
	cr_assert_not(kv_sender_get(seg, first, &seq, &s), "of another connector");
	c = CONF(P1, P2, D1);
	c->pools[0].connector = CONNECTOR_LMCACHE;
	apply(c);
	cr_assert(kv_sender_get(seg, first, &seq, &s));
	cr_assert_eq(s.family, AF_INET);
	cr_assert_arr_eq(s.ip, ((const uint8_t[16]){127, 0, 0, 1}), 16);
	seq = 0;
	cr_assert(kv_sender_get(seg, third, &seq, &s));
	cr_assert_eq(s.family, AF_INET6);
	cr_assert_arr_eq(s.ip, ((const uint8_t[16]){[15] = 1}), 16);
	cr_assert(load_reserve(seg, 0, first, 0));
	c = CONF(P2, D1);
	c->pools[0].connector = CONNECTOR_LMCACHE;
	apply(c);
	seq = 0;
	cr_assert(kv_sender_get(seg, first, &seq, &s) && s.family == AF_INET, "it may still send");
	load_release(seg, 0, first);
	c = CONF(P2, D1);
	c->pools[0].connector = CONNECTOR_LMCACHE;
	apply(c);
	while (!TAILQ_EMPTY(&fleet->draining))
		event_base_loop(base, EVLOOP_ONCE);
	c = CONF(P2, D1);
	c->pools[0].connector = CONNECTOR_NIXL;
	apply(c);
	cr_assert(kv_sender_get(seg, first, &seq, &s) && s.family == 0);
	cr_assert(kv_sender_get(seg, third, &(uint64_t){2}, &s) && s.family == 0);
}

Test(publish, where_an_lmcache_listens)
{
	static char host[] = "dec-0.svc";
	struct conf *c = CONF(P1, D1);

	last_endpoint(c)->receiver_init_port = (struct conf_ports){1, {7300}};
	last_endpoint(c)->receiver_alloc_port = (struct conf_ports){1, {7400}};
	conf_endpoint(&c->pools[0], ROLE_DECODE, D2);
	last_endpoint(c)->receiver_host = host;
	last_endpoint(c)->receiver_init_port = (struct conf_ports){3, {7300, 7301, 65535}};
	last_endpoint(c)->receiver_alloc_port = (struct conf_ports){3, {1, 7401, 7402}};
	apply(c);
	cr_assert_str_eq(row_of(P1)->disagg_spec, "");
	cr_assert_eq(row_of(P1)->notices, 0);
	cr_assert_str_eq(row_of(D1)->disagg_spec,
		"\"receiver_host\":\"[::1]\",\"receiver_init_port\":[7300],\"receiver_alloc_port\":[7400]");
	cr_assert_eq(row_of(D1)->notices, 1, "as many as it has init ports");
	cr_assert_str_eq(row_of(D2)->disagg_spec,
		"\"receiver_host\":\"dec-0.svc\",\"receiver_init_port\":[7300,7301,65535],"
		"\"receiver_alloc_port\":[1,7401,7402]");
	cr_assert_eq(row_of(D2)->notices, 3);
}

Test(publish, ready_messages_as_configured)
{
	struct conf *c = CONF(P1, D1, D2);

	for (size_t i = 1; i < 3; i++)
		c->pools[0].endpoints[i].receiver_init_port = (struct conf_ports){2, {1, 2}};
	c->pools[0].shake.ready_messages = 255;
	apply(c);
	cr_assert_eq(row_of(P1)->notices, 0);
	cr_assert_eq(row_of(D1)->notices, 255);
	cr_assert_eq(row_of(D2)->notices, 255);
}

/* Every rank of the widest engine, with the longest host there may be. */
Test(publish, the_longest_disagg_spec)
{
	static char host[256];
	struct conf *c = CONF(P1, D2);
	struct conf_endpoint *d = last_endpoint(c);
	const char *spec;

	memset(host, 'h', sizeof(host) - 1);
	d->receiver_host = host;
	d->receiver_init_port.n = d->receiver_alloc_port.n = CONF_PORTS_MAX;
	for (uint16_t i = 0; i < CONF_PORTS_MAX; i++)
		d->receiver_init_port.port[i] = d->receiver_alloc_port.port[i] =
			(uint16_t)(UINT16_MAX - i);
	apply(c);
	spec = row_of(D2)->disagg_spec;
	cr_assert_eq(strlen(spec), strlen("\"receiver_host\":\"\"") + 255 +
					   strlen(",\"receiver_init_port\":[]") +
					   strlen(",\"receiver_alloc_port\":[]") +
					   2 * (CONF_PORTS_MAX * strlen("65535,") - 1));
	cr_assert_str_eq(spec + strlen(spec) - 7, ",65472]");
}

Test(publish, kv_addresses)
{
	static char all[] = "10.0.0.1:21001", port[] = ":22001";
	struct conf *c = CONF(P1, D1, D2);

	c->pools[0].endpoints[0].kv_addr = all;
	c->pools[0].endpoints[1].kv_addr = port;
	c->pools[0].endpoints[1].dp_ranks = 8;
	c->pools[0].endpoints[2].kv_addr = port;
	apply(c);
	cr_assert_str_eq(row_of(P1)->kv_addr, "10.0.0.1:21001");
	cr_assert_str_eq(row_of(D1)->kv_addr, "[::1]:22001", "the host of its URL");
	cr_assert_str_eq(row_of(D2)->kv_addr, "127.0.0.4:22001");
	cr_assert_eq(row_of(P1)->dp_ranks, 0);
	cr_assert_eq(row_of(D1)->dp_ranks, 8);
}

Test(publish, bootstrap_addresses)
{
	static char host[] = "[fd00::7]";
	struct conf *c = CONF(P1, P2, "http://[::1]:8103", D2);

	c->pools[0].connector = CONNECTOR_MOONCAKE;
	c->pools[0].endpoints[1].bootstrap_host = host;
	c->pools[0].endpoints[1].bootstrap_port = 7000;
	apply(c);
	cr_assert_str_eq(row_of(P1)->bootstrap_host, "127.0.0.1");
	cr_assert_eq(row_of(P1)->bootstrap_port, 8998, "where Mooncake's is");
	cr_assert_str_eq(row_of(P2)->bootstrap_host, "[fd00::7]");
	cr_assert_eq(row_of(P2)->bootstrap_port, 7000);
	cr_assert_str_eq(row_of("http://[::1]:8103")->bootstrap_host, "[::1]");
	cr_assert_eq(row_of(D2)->bootstrap_port, 0, "a decode engine has none");
}

Test(publish, what_a_connector_asks_of_its_pool)
{
	struct conf *c = CONF(P1, D1);

	c->pools[0].shake = (struct conf_handshake){.handoff = HANDOFF_TRANSFER_ID,
		.first_token = ROLE_DECODE,
		.routing_threshold = THRESHOLD_AUTO,
		.kv_lease_ms = 7,
		.cache_hit_threshold = "0.80"};
	c->pools[0].timeouts.kv_ready_ms = 9;
	apply(c);
	cr_assert_eq(memcmp(&table_now()->pools[0].shake, &c->pools[0].shake,
			     sizeof(struct conf_handshake)),
		0);
	cr_assert_eq(table_now()->pools[0].timeouts.kv_ready_ms, 9);
}

Test(publish, same_key_keeps_slot_and_tag)
{
	apply(CONF(P1, D1));
	uint32_t slot = row_of(D1)->slot;

	apply(CONF(D2, P2, D1, D1)); /* other order, others, and twice */
	cr_assert_eq(table_now()->nendpoints, 3);
	cr_assert_eq(row_of(D1)->slot, slot);
	cr_assert_eq(row_of(D1)->tag, 1);
	cr_assert_null(row_of(P1));
	cr_assert_eq(table_now()->config, 2);
}

Test(publish, same_url_in_both_roles_are_two)
{
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m"), *q = conf_pool(c, "other", "n");

	conf_endpoint(p, ROLE_PREFILL, P1);
	conf_endpoint(p, ROLE_DECODE, P1);
	conf_endpoint(q, ROLE_DECODE, P1);
	apply(c);
	const struct table *t = table_now();

	cr_assert_eq(t->nendpoints, 3);
	cr_assert_neq(t->endpoints[0].slot, t->endpoints[1].slot);
	cr_assert_neq(t->endpoints[1].slot, t->endpoints[2].slot);
	cr_assert_eq(t->endpoints[2].pool, 1);
}

Test(publish, slot_waits_for_readers_and_reservations)
{
	apply(CONF(P1, P2, D1, D2));
	uint32_t slot = row_of(P1)->slot;

	cr_assert(load_reserve(seg, 1, slot, 0));
	(void)rcu_enter(seg, 1); /* may hold the table with P1 */
	apply(CONF(P2, D1, D2, "http://127.0.0.9:8109"));
	cr_assert_eq(ep_state_get(seg, slot), EP_DRAINING);
	cr_assert_null(row_of(P1));
	cr_assert_null(row_of("http://127.0.0.9:8109"), "no slot is free");
	load_release(seg, 1, slot);
	publish_poll(fleet->publish);
	cr_assert_null(row_of("http://127.0.0.9:8109"), "a reader may still reserve there");
	cr_assert(load_reserve(seg, 1, slot, 0));
	rcu_leave(seg, 1);
	publish_poll(fleet->publish);
	cr_assert_null(row_of("http://127.0.0.9:8109"), "a request still runs there");
	load_release(seg, 1, slot);
	fleet_worker_reaped(fleet);
	cr_assert_eq(row_of("http://127.0.0.9:8109")->slot, slot);
	cr_assert_eq(row_of("http://127.0.0.9:8109")->tag, 2);
	cr_assert_eq(ep_state_get(seg, slot), EP_STARTING);
}

Test(publish, drained_slot_becomes_empty)
{
	apply(CONF(P1, D1));
	uint32_t slot = row_of(P1)->slot;

	apply(CONF(D1));
	publish_poll(fleet->publish);
	cr_assert_eq(ep_state_get(seg, slot), EP_EMPTY);
	cr_assert(TAILQ_EMPTY(&fleet->draining));
}

Test(publish, same_key_revives_a_draining_slot)
{
	apply(CONF(P1, D1));
	uint32_t slot = row_of(P1)->slot;

	cr_assert(load_reserve(seg, 0, slot, 0));
	apply(CONF(D1));
	cr_assert_null(row_of(P1));
	apply(CONF(D1, P1));
	cr_assert_eq(row_of(P1)->slot, slot);
	cr_assert_eq(row_of(P1)->tag, 1, "the reservation is of the same life");
	cr_assert_eq(ep_state_get(seg, slot), EP_STARTING);
	cr_assert_eq(load_count(seg, slot), 1);
	load_release(seg, 0, slot);
	publish_poll(fleet->publish);
	cr_assert_not_null(row_of(P1));
	apply(CONF(D1)); /* and it can be dropped again */
	publish_poll(fleet->publish);
	cr_assert_eq(ep_state_get(seg, slot), EP_EMPTY);
}

Test(publish, a_drained_one_remembers_its_health)
{
	struct conf *c = CONF(P1, D1);

	c->pools[0].slow_start_ms = 1000;
	apply(c);
	struct endpoint *ep = endpoint_of(P1);
	const uint32_t slot = ep->engine.slot;

	state_drain(ep); /* STARTING */
	state_drain(ep); /* twice is once */
	cr_assert_eq(ep_state_get(seg, slot), EP_DRAINING);
	publish_down(fleet->publish, ep);
	publish_up(fleet->publish, ep);
	publish_now(fleet->publish);
	cr_assert_eq(ep_state_get(seg, slot), EP_DRAINING);
	cr_assert_eq(ep->state, EP_UP);
	publish_down(fleet->publish, ep);
	state_undrain(ep);
	cr_assert_eq(ep_state_get(seg, slot), EP_DOWN);
	state_drain(ep);
	publish_up(fleet->publish, ep);
	cr_assert_eq(ep_ramp_from(seg, slot), 0);
	state_undrain(ep);
	cr_assert_eq(ep_state_get(seg, slot), EP_UP);
	cr_assert_neq(ep_ramp_from(seg, slot), 0, "it is idle");
}

Test(publish, a_removed_one_is_no_longer_drained)
{
	apply(CONF(P1, D1));
	struct endpoint *ep = endpoint_of(P1);
	const uint32_t slot = ep->engine.slot;

	state_drain(ep);
	cr_assert(load_reserve(seg, 0, slot, 0));
	apply(CONF(D1));
	apply(CONF(D1, P1));
	cr_assert_eq(endpoint_of(P1), ep);
	cr_assert_eq(ep_state_get(seg, slot), EP_STARTING);
	cr_assert_not(ep->drained);
	load_release(seg, 0, slot);
}

Test(publish, undrained_it_is_no_longer_ejected)
{
	const struct conf_ejection now = {
		.failures = 1, .max_percent = 100, .time_ms = 60000, .max_ms = 60000};
	struct conf *c = CONF(P1, P1B, D1);
	uint64_t left;

	c->pools[0].ejection = now;
	apply(c);
	struct endpoint *ep = endpoint_of(P1);

	publish_up(fleet->publish, ep);
	publish_up(fleet->publish, endpoint_of(P1B)); /* one must stay */
	publish_now(fleet->publish);
	cr_assert_neq(eject_bad_answer(seg, &table_now()->pools[0], ROLE_PREFILL, ep->engine.slot,
			      true, clock_ms()),
		0);
	state_drain(ep);
	cr_assert_eq(eject_read(seg, ep->engine.slot, clock_ms(), &left), EJECT_EJECTED);
	cr_assert_eq(state_undrain(ep), ENDED_DRAIN | ENDED_EJECTION);
	cr_assert_eq(eject_read(seg, ep->engine.slot, clock_ms(), &left), EJECT_IN);
	cr_assert_neq(eject_bad_answer(seg, &table_now()->pools[0], ROLE_PREFILL, ep->engine.slot,
			      true, clock_ms()),
		0);
	cr_assert_eq(state_undrain(ep), ENDED_EJECTION, "it was not drained");
	cr_assert_eq(eject_read(seg, ep->engine.slot, clock_ms(), &left), EJECT_IN);
	cr_assert_eq(state_undrain(ep), 0);
}

Test(publish, pool_names_keep_their_numbers)
{
	struct conf *c = conf_make();

	conf_endpoint(conf_pool(c, "a", "m"), ROLE_DECODE, D1);
	apply(c);
	c = conf_make();
	conf_endpoint(conf_pool(c, "b", "m"), ROLE_DECODE, D1);
	apply(c);
	cr_assert_eq(table_now()->pools[0].id, 1);
}

Test(publish, a_name_too_many_is_refused_with_its_line)
{
	char path[] = "x.yaml";
	struct conf *c = conf_make();
	struct conf_error err;

	conf_endpoint(conf_pool(c, "a", "m"), ROLE_DECODE, D1);
	cr_assert_eq(fleet_check(fleet, c, &err), 0);
	apply(c);
	c = conf_make();
	conf_endpoint(conf_pool(c, "a", "m"), ROLE_DECODE, D1);
	conf_endpoint(conf_pool(c, "b", "m"), ROLE_DECODE, D1);
	conf_endpoint(conf_pool(c, "c", "m"), ROLE_DECODE, D1);
	c->pools[2].line = 17;
	c->path = path;
	cr_assert_eq(fleet_check(fleet, c, &err), -1, "there are two numbers only");
	cr_assert_eq(err.line, 17);
	cr_assert_str_eq(err.file, "x.yaml");
	cr_assert_str_eq(err.key, "pools[2].name");
	cr_assert_not_null(strstr(err.what, "max_pools"));
	c = conf_make();
	conf_endpoint(conf_pool(c, "a", "m"), ROLE_DECODE, D1);
	conf_endpoint(conf_pool(c, "b", "m"), ROLE_DECODE, D1);
	cr_assert_eq(fleet_check(fleet, c, &err), 0, "a refusal takes no number");
	apply(c);
	c = conf_make();
	conf_endpoint(conf_pool(c, "c", "m"), ROLE_DECODE, D1);
	cr_assert_eq(fleet_check(fleet, c, &err), -1, "names that are gone keep theirs");
	cr_assert_str_eq(err.key, "pools[0].name");
}

Test(publish, a_table_too_large_is_refused)
{
	struct conf *c = CONF(P1, D1);
	struct conf_error err;

	cr_assert_eq(fleet_check(fleet, c, &err), 0);
	free(c->pools[0].models[0]);
	c->pools[0].models[0] = mem_printf("%0*d", (int)seg->arena_bytes, 0);
	c->pools[0].line = 3;
	cr_assert_eq(fleet_check(fleet, c, &err), -1);
	cr_assert_eq(err.line, 3);
	cr_assert_str_eq(err.key, "pools");
	cr_assert_not_null(strstr(err.what, "max_endpoints"));
}

Test(publish, newest_configuration_after_readers_have_left)
{
	apply(CONF(P1, D1));
	(void)rcu_enter(seg, 1); /* stopped inside its section */
	for (int i = 0; i < 10; i++)
		apply(i % 2 == 0 ? CONF(P2, D1) : CONF(P1, D1, D2));
	cr_assert_lt(table_now()->config, 11, "arenas are few");
	cr_assert_not(fleet_published(fleet));
	cr_assert_eq(ep_state_get(seg, endpoint_of(P1)->engine.slot), EP_STARTING,
		"states are never delayed");
	rcu_leave(seg, 1);
	publish_poll(fleet->publish);
	cr_assert(fleet_published(fleet));
	cr_assert_eq(table_now()->config, 11);
	cr_assert_eq(table_now()->nendpoints, 3);
}

Test(publish, up_is_said_at_once_if_the_row_is_right)
{
	apply(CONF(P1, D1));
	publish_up(fleet->publish, endpoint_of(P1));
	cr_assert_eq(ep_state_get(seg, row_of(P1)->slot), EP_UP);
	cr_assert_eq(table_now()->version, 1);
	publish_down(fleet->publish, endpoint_of(P1));
	cr_assert_eq(ep_state_get(seg, row_of(P1)->slot), EP_DOWN);
}

Test(publish, up_waits_for_the_row_with_its_address)
{
	apply(CONF("http://engine.invalid:8100", D1));
	struct endpoint *ep = endpoint_of("http://engine.invalid:8100");

	cr_assert_eq(row_of(ep->engine.url)->addr.family, 0);
	ep->engine.addr = (struct ep_addr){.family = AF_INET, .port = 8100, .ip = {127, 0, 0, 1}};
	publish_up(fleet->publish, ep);
	cr_assert_eq(ep_state_get(seg, ep->engine.slot), EP_STARTING);
	publish_poll(fleet->publish);
	cr_assert_eq(ep_state_get(seg, ep->engine.slot), EP_UP);
	cr_assert_eq(row_of(ep->engine.url)->addr.family, AF_INET);
}

static void
teach(struct endpoint *ep, const char *prefix, size_t n, size_t len)
{
	models_clear(&ep->engine.models);
	ep->engine.models.names = mem_array(n, sizeof(char *));
	ep->engine.models.cards = mem_array(n, sizeof(struct model_card));
	for (size_t i = 0; i < n; i++) {
		ep->engine.models.cards[i].members = mem_printf("\"root\":\"%s\"", ep->engine.url);
		ep->engine.models.names[ep->engine.models.n++] =
			mem_printf("%s%0*zu", prefix, (int)len, i);
	}
	ep->engine.models_number++;
	publish_soon(fleet->publish);
}

static struct conf *
conf_learning(void)
{
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", NULL);

	conf_endpoint(p, ROLE_PREFILL, P1);
	conf_endpoint(p, ROLE_DECODE, D1);
	return c;
}

Test(publish, pool_without_models_has_what_its_endpoints_serve)
{
	apply(conf_learning());
	cr_assert_eq(table_now()->pools[0].nmodels, 0);
	teach(endpoint_of(P1), "a", 2, 1); /* a0 a1 */
	teach(endpoint_of(D1), "a", 3, 1); /* a0 a1 a2 */
	publish_up(fleet->publish, endpoint_of(P1));
	cr_assert_eq(ep_state_get(seg, endpoint_of(P1)->engine.slot), EP_STARTING,
		"its row does not know a0 yet");
	publish_poll(fleet->publish);
	const struct table_pool *p = &table_now()->pools[0];

	cr_assert_eq(ep_state_get(seg, endpoint_of(P1)->engine.slot), EP_UP);
	cr_assert_eq(table_now()->version, 2, "two changes, one publication");
	cr_assert_eq(p->nmodels, 3);
	cr_assert_str_eq(p->models[2], "a2");
	cr_assert_eq(row_of(P1)->nmodels, 2);
	cr_assert_str_eq(row_of(P1)->models[1], "a1");
	cr_assert_eq(row_of(D1)->nmodels, 3);
}

/* Engines name the adapter of a block that one has computed, and no model otherwise. */
Test(publish, blocks_that_name_no_adapter_are_of_the_first_model_that_is_none)
{
	static char all[] = "tcp://*:5557";
	struct conf *c = conf_learning();
	struct prefix_secret secret;
	struct kv_source s;
	uint64_t seq = 0;

	c->pools[0].kv_events = all;
	apply(c);
	cr_assert(kv_source_get(seg, row_of(P1)->slot, &seq, &s));
	cr_expect_eq(s.row, 0, "no model is known yet");
	teach(endpoint_of(P1), "a", 2, 1); /* a0 a1 */
	free(endpoint_of(P1)->engine.models.cards[0].members);
	endpoint_of(P1)->engine.models.cards[0].members = mem_printf("\"parent\":\"a1\"");
	publish_poll(fleet->publish);
	cr_assert(kv_source_get(seg, row_of(P1)->slot, &seq, &s));
	prefix_secret_make(&secret, seg->hdr->prefix_seed);
	cr_expect_eq(s.root, prefix_ids_model(&secret, "a1", 2));
	cr_expect_eq(s.row, 1);
	c->pools[0].kv_events = NULL; /* not the heap's */
}

Test(publish, cards_go_before_names_where_there_is_no_room)
{
	const size_t n = MODELS_MAX / 4;
	struct endpoint *ep;

	apply(conf_learning());
	ep = endpoint_of(D1);
	teach(ep, "a", n, 1);
	publish_poll(fleet->publish);
	cr_assert_str_eq(
		table_now()->pools[0].cards[0], "\"root\":\"" D1 "\",\"max_model_len\":null");
	for (size_t i = 0; i < n; i++) {
		free(ep->engine.models.cards[i].members);
		ep->engine.models.cards[i].members = mem_printf("\"root\":\"%0*d\"", 700, 0);
	}
	cr_assert_gt(n * 700, seg->arena_bytes, "the test is about too much");
	publish_now(fleet->publish);
	cr_assert_null(table_now()->pools[0].cards);
	cr_assert_eq(table_now()->pools[0].nmodels, n);
}

/* --- many endpoints with many models ------------------------------------------------------------ */

#define MANY 512

static void
setup_many(void)
{
	fleet_setup(MANY, 2);
}

TestSuite(publish_many, .init = setup_many, .fini = fleet_teardown);

/* Each endpoint serves one of `nmodels` configured models, which stand in no order. */
static void
many(size_t nmodels)
{
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", NULL);
	char text[64];

	free(p->models);
	p->models = mem_array(nmodels, sizeof(*p->models));
	for (size_t i = 0; i < nmodels; i++)
		p->models[p->nmodels++] = mem_printf("m%zu", nmodels - i);
	for (unsigned i = 0; i < MANY; i++) {
		(void)snprintf(text, sizeof(text), "http://127.0.%u.%u:8201", i / 200, i % 200 + 1);
		conf_endpoint(p, ROLE_DECODE, text);
	}
	apply(c);
	for (size_t i = 0; i < fleet->norder; i++) {
		struct model_set *set = &fleet->order[i]->engine.models;
		size_t left_out;

		(void)snprintf(text, sizeof(text),
			"{\"data\":[{\"id\":\"m%zu\",\"max_model_len\":%zu}]}", i % nmodels + 1,
			MANY - i);
		cr_assert_eq(models_read(text, strlen(text), NULL, 0, set, &left_out), 1);
	}
}

/* The least of some tries. */
static uint64_t
publication_us(void)
{
	uint64_t least = UINT64_MAX;

	for (int i = 0; i < 9; i++) {
		const uint64_t from = clock_us();
		uint64_t took;

		publish_now(fleet->publish);
		took = clock_us() - from;
		least = took < least ? took : least;
	}
	return least;
}

Test(publish_many, a_card_is_of_all_engines_that_serve_the_model)
{
	many(200);
	publish_now(fleet->publish);
	const struct table_pool *p = &table_now()->pools[0];

	cr_assert_not_null(p->cards);
	cr_expect_str_eq(p->models[199], "m1");
	cr_expect(strstr(p->cards[199], "\"root\":\"m1\"") != NULL, "%s", p->cards[199]);
	cr_expect(strstr(p->cards[199], ",\"max_model_len\":112") != NULL, "the least: %s",
		p->cards[199]);
}

Test(publish_many, time_grows_with_models_and_endpoints_not_with_their_product)
{
	uint64_t few, most;

	many(20);
	few = publication_us();
	many(1000);
	most = publication_us();
	cr_assert_not_null(table_now()->pools[0].cards);
	cr_expect_lt(most, 8 * few, "%lu us, with 20 models %lu us", most, few);
}

Test(publish, too_many_names_do_not_hold_up_a_configuration)
{
	apply(conf_learning());
	teach(endpoint_of(P1), "p", MODELS_MAX, MODELS_NAME_MAX - 1);
	teach(endpoint_of(D1), "d", MODELS_MAX, MODELS_NAME_MAX - 1);
	cr_assert_gt((size_t)2 * MODELS_MAX * MODELS_NAME_MAX, seg->arena_bytes,
		"the test is about too much");
	publish_poll(fleet->publish);
	cr_assert_eq(table_now()->version, 2);
	cr_assert_gt(table_now()->pools[0].nmodels, 0);
	cr_assert_lt(table_now()->pools[0].nmodels, 2 * MODELS_MAX);
}

Test(publish, many_changes_one_publication_a_turn)
{
	apply(CONF(P1, D1));
	for (int i = 0; i < 5; i++)
		publish_soon(fleet->publish);
	cr_assert_eq(table_now()->version, 1);
	event_base_loop(base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
	cr_assert_eq(table_now()->version, 2);
}

Test(publish, endpoints_take_turns_evenly)
{
	struct engine e = {0};
	unsigned bucket[10] = {0};

	for (e.number = 0; e.number < 1000; e.number++) {
		uint64_t wait = engine_wait_ms(&e, 123456789, 2000);

		cr_assert(wait >= 1000 && wait < 3000, "%lu", (unsigned long)wait);
		bucket[wait % 2000 / 200]++;
		cr_assert_eq((123456789 + wait) % 2000,
			(123456789 + wait + engine_wait_ms(&e, 123456789 + wait, 2000)) % 2000,
			"an endpoint keeps its place in the interval");
	}
	for (size_t i = 0; i < 10; i++)
		cr_assert(bucket[i] >= 90 && bucket[i] <= 110, "%zu: %u", i, bucket[i]);
}

/* The master wakes up for all probes of a turn. */
Test(publish, endpoints_share_turns)
{
	static bool taken[2000];
	struct engine e = {0};
	unsigned turns = 0;

	for (e.number = 0; e.number < 1000; e.number++) {
		const uint64_t at = (123456789 + engine_wait_ms(&e, 123456789, 2000)) % 2000;

		turns += !taken[at];
		taken[at] = true;
	}
	cr_assert_eq(turns, 20);
	for (uint64_t interval = 1; interval < 250; interval++)
		cr_assert_leq(engine_wait_ms(&e, 123456789, interval), 2 * interval);
}

/* A worker that still reads the former table would send its request to the former address. */
Test(publish, up_is_not_seen_beside_an_older_row)
{
	apply(CONF("http://engine.invalid:8100", D1));
	struct endpoint *ep = endpoint_of("http://engine.invalid:8100");
	const struct table *older = rcu_enter(seg, 0);

	cr_assert_eq(older->endpoints[0].addr.family, 0);
	ep->engine.addr = (struct ep_addr){.family = AF_INET, .port = 8100, .ip = {127, 0, 0, 1}};
	publish_up(fleet->publish, ep);
	event_base_loop(base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
	cr_assert_eq(rcu_current(fleet_writer(fleet))->version, older->version + 1,
		"the new row is published");
	cr_assert_eq(
		ep_state_get(seg, ep->engine.slot), EP_STARTING, "and a reader has the old one");
	publish_up(fleet->publish, ep);
	cr_assert_eq(ep_state_get(seg, ep->engine.slot), EP_STARTING);
	rcu_leave(seg, 0);
	for (uint64_t end = clock_ms() + 20000;
		clock_ms() < end && ep_state_get(seg, ep->engine.slot) != EP_UP;)
		event_base_loop(base, EVLOOP_ONCE);
	cr_assert_eq(ep_state_get(seg, ep->engine.slot), EP_UP, "as soon as it has gone");
}

/* The endpoint goes down while the row is read: the earlier request to bring it up is dropped. */
Test(publish, down_while_an_older_row_is_read)
{
	apply(CONF("http://engine.invalid:8100", D1));
	struct endpoint *ep = endpoint_of("http://engine.invalid:8100");

	(void)rcu_enter(seg, 0);
	ep->engine.addr = (struct ep_addr){.family = AF_INET, .port = 8100, .ip = {127, 0, 0, 1}};
	publish_up(fleet->publish, ep);
	event_base_loop(base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
	publish_down(fleet->publish, ep);
	rcu_leave(seg, 0);
	publish_poll(fleet->publish);
	cr_assert_eq(ep_state_get(seg, ep->engine.slot), EP_DOWN);
	publish_up(fleet->publish, ep);
	cr_assert_eq(ep_state_get(seg, ep->engine.slot), EP_UP);
}
