/* Building a table, what is refused, and what is found in it. */
#include "shm/table.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

static _Alignas(8) unsigned char arena[16384];

/* Two pools, five endpoints.  Returns table_end()'s answer. */
static int
build(struct table_builder *b, size_t size)
{
	static const struct {
		uint32_t pool;
		enum role role;
	} eps[] = {
		{0, ROLE_PREFILL},
		{1, ROLE_DECODE},
		{0, ROLE_DECODE},
		{0, ROLE_DECODE},
		{1, ROLE_PREFILL},
	};
	static const char *const models[] = {"llama", "llama-3-70b"};

	(void)table_begin(b, arena, size, 2, 5);
	for (uint32_t i = 0; i < 2; i++) {
		struct table_pool *p = table_pool_at(b, i);

		if (p == NULL)
			return table_end(b);
		p->name = table_str(b, i == 0 ? "first" : "second");
		p->models = table_strv(b, models + i, 1);
		p->nmodels = 1;
	}
	for (uint32_t i = 0; i < 5; i++) {
		struct table_endpoint *e = table_endpoint_at(b, i);

		e->pool = eps[i].pool;
		e->role = eps[i].role;
		e->slot = 10 + i;
		e->url = table_str(b, "http://engine:8000");
	}
	return table_end(b);
}

static const struct table *
built(void)
{
	struct table_builder b;

	cr_assert_eq(build(&b, sizeof(arena)), 0);
	return (const struct table *)(const void *)arena;
}

/* A limit of tokens is compared with it: it must be true of every decode engine. */
Test(shm_table, the_context_of_a_pool_is_its_decode_engines_largest)
{
	static const struct {
		uint32_t decode[2], want;
	} rows[] = {{{64, 32}, 64}, {{32, 64}, 64}, {{64, 0}, 0}, {{0, 0}, 0}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct table_builder b;
		const struct table *t = table_begin(&b, arena, sizeof(arena), 1, 3);

		for (uint32_t k = 0; k < 3; k++) {
			struct table_endpoint *e = table_endpoint_at(&b, k);

			e->role = k == 0 ? ROLE_PREFILL : ROLE_DECODE;
			e->max_context = k == 0 ? 128 : rows[i].decode[k - 1];
			e->url = table_str(&b, "http://engine:8000");
		}
		cr_assert_eq(table_end(&b), 0);
		cr_assert_eq(t->pools[0].max_context, rows[i].want, "%zu", i);
	}
}

Test(shm_table, pools_list_their_endpoints_by_role)
{
	const struct table *t = built();

	cr_assert_eq(t->npools, 2);
	cr_assert_eq(t->nendpoints, 5);
	cr_assert_eq(t->pools[0].n[ROLE_PREFILL], 1);
	cr_assert_eq(t->pools[0].picks[ROLE_PREFILL][0].endpoint, 0);
	cr_assert_eq(t->pools[0].n[ROLE_DECODE], 2);
	cr_assert_eq(t->pools[0].picks[ROLE_DECODE][0].endpoint, 2);
	cr_assert_eq(t->pools[0].picks[ROLE_DECODE][1].endpoint, 3);
	cr_assert_eq(t->pools[1].n[ROLE_PREFILL], 1);
	cr_assert_eq(t->pools[1].picks[ROLE_PREFILL][0].endpoint, 4);
	cr_assert_eq(t->pools[1].picks[ROLE_DECODE][0].endpoint, 1);
	cr_assert_eq(t->endpoints[4].slot, 14);
	cr_assert_str_eq(t->endpoints[4].url, "http://engine:8000");
}

/* One pool; what a selection reads must be what the rows say. */
Test(shm_table, picks_say_what_a_selection_needs)
{
	static const char *const models[] = {"base", "adapter"};
	struct table_builder b;
	struct table *t = table_begin(&b, arena, sizeof(arena), 1, 6);
	struct table_pool *pool = table_pool_at(&b, 0);
	const struct table_pick *picks;

	pool->name = table_str(&b, "pool");
	pool->models = table_strv(&b, models, 2);
	pool->nmodels = 2;
	for (uint32_t i = 0; i < 6; i++) {
		struct table_endpoint *e = table_endpoint_at(&b, i);
		char url[] = "http://engine-0:8000";

		url[14] = (char)('0' + i);
		e->role = i < 5 ? ROLE_DECODE : ROLE_PREFILL;
		e->slot = 20 + i;
		e->tag = 30 + i;
		e->max_inflight = i * 1000000;
		e->weight = (uint32_t[]){1, 100, 0, 7, 7, 50}[i];
		e->group = i == 1 ? TABLE_GROUPS - 1 : i == 3 ? 2 : 0;
		e->addr.family = i == 2 ? 0 : AF_INET;
		e->url = table_str(&b, url);
		/* learned: all of the pool's, one of them, nothing yet */
		e->models = i == 3 ? table_strv(&b, models, 1) : pool->models;
		e->nmodels = i == 4 ? 0 : i == 3 ? 1 : 2;
	}
	cr_assert_eq(table_end(&b), 0);
	picks = pool->picks[ROLE_DECODE];
	cr_assert_eq(pool->n[ROLE_DECODE], 5);
	for (uint32_t i = 0; i < 5; i++) {
		const struct table_endpoint *e = &t->endpoints[i];

		cr_expect_eq(picks[i].endpoint, i);
		cr_expect_eq(picks[i].slot, 20 + i);
		cr_expect_eq(picks[i].tag, 30 + i);
		cr_expect_eq(picks[i].max_inflight, i * 1000000);
		cr_expect_eq(picks[i].weight, e->weight == 0 ? 1 : e->weight);
		cr_expect_eq(picks[i].group, e->group);
		cr_expect_eq(picks[i].resolved, i != 2);
		cr_expect_eq(picks[i].models != NULL, i == 3, "endpoint %u", i);
		for (uint32_t k = 0; k < i; k++)
			cr_expect_neq(picks[i].hash, picks[k].hash);
	}
	cr_expect(table_serves(&picks[3], 0));
	cr_expect_not(table_serves(&picks[3], 1));
	cr_expect(table_serves(&picks[3], TABLE_ANY_MODEL));
	cr_expect(table_serves(&picks[1], 1));
	cr_expect_eq(pool->max_weight[ROLE_DECODE], 100);
	cr_expect_eq(pool->max_weight[ROLE_PREFILL], 50);
	cr_expect_eq(pool->turns[ROLE_DECODE][0], 1 + 1 + 7);
	cr_expect_eq(pool->turns[ROLE_DECODE][2], 7);
	cr_expect_eq(pool->turns[ROLE_DECODE][TABLE_GROUPS - 1], 100);
	cr_expect_eq(pool->turns[ROLE_PREFILL][0], 50);
	cr_expect_eq(pool->turns[ROLE_PREFILL][2], 0);
}

/* Sessions must find their engine after a reload, and in another router beside this one. */
Test(shm_table, the_hash_is_of_the_url_alone)
{
	uint64_t hash[2];

	for (uint32_t k = 0; k < 2; k++) {
		struct table_builder b;

		(void)table_begin(&b, arena, sizeof(arena), 1, 1 + k);
		table_pool_at(&b, 0)->name = table_str(&b, k == 0 ? "a" : "b");
		for (uint32_t i = 0; i <= k; i++) {
			table_endpoint_at(&b, i)->slot = 7 * k + i;
			table_endpoint_at(&b, i)->url =
				table_str(&b, i == k ? "http://10.0.0.1:8100" : "http://x");
		}
		cr_assert_eq(table_end(&b), 0);
		hash[k] = table_pool_at(&b, 0)->picks[ROLE_PREFILL][k].hash;
	}
	cr_assert_eq(hash[0], hash[1]);
	/* XXH3 of that text: another hash would move every session at an upgrade */
	cr_assert_eq(hash[0], UINT64_C(0x25f57050784323c4), "%llx", (unsigned long long)hash[0]);
}

/* The numbers of an endpoint's models, whatever the order in which it names them. */
Test(shm_table, a_bit_for_each_model_an_endpoint_serves)
{
	enum { MODELS = 130 };
	const char *names[MODELS], *some[MODELS + 1];
	char text[MODELS][8];
	const struct table_pick *picks;
	struct table_builder b;
	uint32_t n = 0;

	for (uint32_t i = 0; i < MODELS; i++) {
		(void)snprintf(text[i], sizeof(text[i]), "m%03u", i);
		names[i] = text[i];
	}
	for (uint32_t i = MODELS; i-- > 0;)
		if (i % 3 == 0)
			some[n++] = names[i];
	some[n++] = "nobody's";
	(void)table_begin(&b, arena, sizeof(arena), 1, 1);
	table_pool_at(&b, 0)->name = table_str(&b, "pool");
	table_pool_at(&b, 0)->nmodels = MODELS;
	table_pool_at(&b, 0)->models = table_strv(&b, names, MODELS);
	table_endpoint_at(&b, 0)->url = table_str(&b, "http://x");
	table_endpoint_at(&b, 0)->nmodels = n;
	table_endpoint_at(&b, 0)->models = table_strv(&b, some, n);
	cr_assert_eq(table_end(&b), 0);
	picks = table_pool_at(&b, 0)->picks[ROLE_PREFILL];
	for (uint32_t i = 0; i < MODELS; i++)
		cr_assert_eq(table_serves(picks, i), i % 3 == 0, "%u", i);
}

Test(shm_table, names_are_compared_whole)
{
	const struct table *t = built();
	uint32_t number;

	cr_assert_eq(table_pool_by_model(t, "llama", &number), &t->pools[0]);
	cr_assert_eq(table_pool_by_model(t, "llama-3-70b", &number), &t->pools[1]);
	cr_assert_null(table_pool_by_model(t, "llama-3", &number));
	cr_assert_null(table_pool_by_model(t, "", &number));
	cr_assert_eq(table_pool_by_name(t, "second"), &t->pools[1]);
	cr_assert_null(table_pool_by_name(t, "sec"));
}

/* 8 pools of 100 models; every tenth name of pool 0 is also a name of pool 1. */
Test(shm_table, each_of_many_models_is_found_in_the_first_pool_that_has_it)
{
	enum { POOLS = 8, MODELS = 100 };
	const size_t size = 1u << 20;
	void *big = aligned_alloc(8, size);
	struct table_builder b;
	struct table *t = table_begin(&b, big, size, POOLS, 0);
	uint32_t number;

	for (uint32_t i = 0; i < POOLS; i++) {
		static char names[MODELS][32];
		static const char *v[MODELS];

		for (uint32_t k = 0; k < MODELS; k++) {
			(void)snprintf(names[k], sizeof(names[k]), "org/model-%u-%u",
				k % 10 == 0 && i > 0 ? i - 1 : i, k);
			v[k] = names[k];
		}
		table_pool_at(&b, i)->name = table_str(&b, "pool");
		table_pool_at(&b, i)->models = table_strv(&b, v, MODELS);
		table_pool_at(&b, i)->nmodels = MODELS;
	}
	cr_assert_eq(table_end(&b), 0);
	for (uint32_t i = 0; i < POOLS; i++)
		for (uint32_t k = 0; k < MODELS; k++) {
			const char *name = t->pools[i].models[k];
			const uint32_t first = k % 10 == 0 && i == 1 ? 0 : i;

			cr_expect_eq(table_pool_by_model(t, name, &number), &t->pools[first], "%s",
				name);
			cr_expect_eq(number, k);
		}
	cr_assert_null(table_pool_by_model(t, "org/model-8-1", &number));
	free(big);
}

/* At every size below what it takes: -ENOSPC, and not a byte behind the arena's end. */
Test(shm_table, an_arena_too_small_is_said_so)
{
	struct table_builder b;
	const size_t needed = built()->used;

	for (size_t size = 0; size < needed; size++) {
		memset(arena, 0xee, sizeof(arena));
		cr_assert_eq(build(&b, size), -ENOSPC, "size %zu", size);
		for (size_t i = size; i < needed; i++)
			cr_assert_eq(arena[i], 0xee, "size %zu: byte %zu written", size, i);
	}
	cr_assert_eq(build(&b, needed), 0);
}

Test(shm_table, every_changed_byte_is_noticed)
{
	const struct table *t = built();
	const size_t used = t->used;

	cr_assert(table_intact(t, sizeof(arena)));
	for (size_t i = 0; i < used; i++) {
		arena[i] ^= 0x10;
		cr_assert_not(table_intact(t, sizeof(arena)), "byte %zu", i);
		arena[i] ^= 0x10;
	}
	cr_assert(table_intact(t, sizeof(arena)));
	memset(arena, 0xdb, sizeof(arena));
	cr_assert_not(table_intact(t, sizeof(arena)));
	memset(arena, 0, sizeof(arena));
	cr_assert_not(table_intact(t, sizeof(arena)));
}

Test(shm_table, an_arena_of_the_formula_holds_what_it_promises)
{
	const uint32_t pools = 16, eps = 1024;
	const size_t size = table_arena_bytes(pools, eps);
	void *big = aligned_alloc(128, (size + 127) / 128 * 128);
	struct table_builder b;
	char text[200];

	memset(text, 'm', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	cr_assert_not_null(table_begin(&b, big, size, pools, eps));
	for (uint32_t i = 0; i < pools; i++)
		table_pool_at(&b, i)->name = table_str(&b, text);
	for (uint32_t i = 0; i < eps; i++) {
		struct table_endpoint *e = table_endpoint_at(&b, i);

		e->pool = i % pools;
		e->role = i % 3 == 0 ? ROLE_PREFILL : ROLE_DECODE;
		e->url = table_str(&b, text);
		e->host = table_str(&b, text);
		e->authority = table_str(&b, text);
		e->prefix = table_str(&b, text);
	}
	cr_assert_eq(table_end(&b), 0);
	free(big);
}

Test(shm_table, addresses_become_sockaddrs)
{
	struct sockaddr_storage ss;
	const struct sockaddr_in *in = (const struct sockaddr_in *)&ss;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&ss;
	struct ep_addr a = {.family = AF_INET, .port = 8100, .ip = {10, 0, 0, 1}};
	char text[INET6_ADDRSTRLEN];

	cr_assert_eq(ep_addr_sockaddr(&a, &ss), sizeof(*in));
	cr_assert_eq(in->sin_family, AF_INET);
	cr_assert_eq(ntohs(in->sin_port), 8100);
	cr_assert_str_eq(inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text)), "10.0.0.1");

	a = (struct ep_addr){
		.family = AF_INET6, .port = 1, .scope = 3, .ip = {0xfe, 0x80, [15] = 9}};
	cr_assert_eq(ep_addr_sockaddr(&a, &ss), sizeof(*in6));
	cr_assert_eq(in6->sin6_family, AF_INET6);
	cr_assert_eq(in6->sin6_scope_id, 3);
	cr_assert_str_eq(inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text)), "fe80::9");

	a.family = 0;
	cr_assert_eq(ep_addr_sockaddr(&a, &ss), 0);
}

Test(shm_table, addresses_are_shown_and_compared)
{
	struct ep_addr a = {.family = AF_INET, .port = 65535, .ip = {255, 255, 255, 255}}, b = a;
	char text[EP_ADDR_TEXT];

	cr_assert_str_eq(ep_addr_text(&a, text), "255.255.255.255:65535");
	cr_assert(ep_addr_equal(&a, &b));
	b.port--;
	cr_assert_not(ep_addr_equal(&a, &b));
	b = (struct ep_addr){.family = AF_INET6, .port = 80, .ip = {0xfd, [15] = 1}};
	cr_assert_not(ep_addr_equal(&a, &b));
	cr_assert_str_eq(ep_addr_text(&b, text), "[fd00::1]:80");
	a = b;
	a.scope = 2;
	cr_assert_not(ep_addr_equal(&a, &b), "a link-local address is another on another link");
	a = b;
	a.ip[15]++;
	cr_assert_not(ep_addr_equal(&a, &b));
	a.family = 0;
	cr_assert_str_eq(ep_addr_text(&a, text), "-");
}
