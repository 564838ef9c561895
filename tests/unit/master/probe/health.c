/* Probes and scrapes against engines that run in the same loop. */
#include "shm/eject.h" /* before `seg` has a meaning */
#include "tests/unit/master/engines.h"

#include <arpa/inet.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "master/fleet/status.h"
#include "master/probe/health.h"
#include "master/probe/probe.h"
#include "master/probe/resolve.h"
#include "shm/base/clock.h"
#include "shm/metrics.h"

TestSuite(health, .init = engines_setup, .fini = engines_teardown, .timeout = 200);

Test(health, up_at_the_first_answer_down_after_fall_up_after_rise)
{
	struct fake *f = fake_new("127.0.0.1");

	apply_fakes("m");
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(f->nhealth, 1);
	cr_assert_eq(f->nmodels, 1, "asked once, beside configured models too");
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000));
	cr_assert_eq(f->nhealth, 4);
	cr_assert_eq(metric_sum(seg, M_PROBES_FAILED), 3);
	cr_assert_str_eq(health_reason(&endpoint_of(f->url)->engine), "GET /health: status 503");
	f->health = OK;
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(f->nhealth, 6);
	cr_assert_str_empty(health_reason(&endpoint_of(f->url)->engine), "it is of the past");
	cr_assert_eq(metric_sum(seg, M_PROBES_OK), 3);
	cr_assert_eq(table_now()->version, 1, "states are words, not publications");
}

static bool
has_reason(void *f)
{
	return health_reason(&endpoint_of(((struct fake *)f)->url)->engine)[0] != '\0';
}

static bool
has_no_reason(void *f)
{
	return !has_reason(f);
}

Test(health, one_that_is_up_and_answers_again_has_no_reason)
{
	struct fake *f = fake_new("127.0.0.1");

	apply_fakes("m");
	cr_assert(wait_for(is_up, f, 5000));
	f->health = UNHEALTHY;
	cr_assert(wait_for(has_reason, f, 5000));
	f->health = OK;
	cr_assert(wait_for(has_no_reason, f, 5000));
	cr_assert_eq(state_of(f), EP_UP);
}

Test(health, failing_engines_go_down_and_delay_no_other)
{
	static const struct {
		const char *does, *reason;
	} failing[] = {
		{SILENT, "GET /health: no answer in time"},
		{RESET, "GET /health: Connection reset by peer"},
		{CLOSES, "GET /health: closed without an answer"},
		{ENDLESS, "GET /health: answer too large"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx",
			"GET /health: answer not complete in time"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nx",
			"GET /health: answer broke off"},
	};
	struct fake *f = fake_new("127.0.0.1"), *well = fake_new("127.0.0.1");

	apply_fakes("m");
	for (size_t i = 0; i < sizeof(failing) / sizeof(*failing); i++) {
		f->health = OK;
		cr_assert(wait_for(is_up, f, 5000), "%s", failing[i].does);
		f->health = failing[i].does;
		unsigned asked = well->nhealth;
		cr_assert(wait_for(is_down, f, 5000), "%s", failing[i].does);
		cr_assert_str_eq(health_reason(&endpoint_of(f->url)->engine), failing[i].reason);
		cr_assert_gt(well->nhealth, asked);
		cr_assert_eq(state_of(well), EP_UP);
	}
}

Test(health, garbage_is_refused)
{
	static const char *const garbage[] = {"SSH-2.0-x\r\n\r\n", "HTTP/1.1 200 OK\n\n",
		"\r\n\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"};
	struct fake *f = fake_new("127.0.0.1");

	apply_fakes("m");
	for (size_t i = 0; i < sizeof(garbage) / sizeof(*garbage); i++) {
		f->health = OK;
		cr_assert(wait_for(is_up, f, 5000), "%zu", i);
		f->health = garbage[i];
		cr_assert(wait_for(is_down, f, 5000), "%zu", i);
	}
}

Test(health, a_head_without_end_is_bounded)
{
	struct fake *f = fake_new("127.0.0.1");
	char *head = malloc(40 << 10);
	size_t at = (size_t)sprintf(head, "HTTP/1.1 200 OK\r\n");

	while (at < (38 << 10))
		at += (size_t)sprintf(
			head + at, "X-Filler: 0123456789012345678901234567890123456789\r\n");
	apply_fakes("m");
	cr_assert(wait_for(is_up, f, 5000));
	f->health = head;
	cr_assert(wait_for(is_down, f, 5000));
	cr_assert_str_eq(
		health_reason(&endpoint_of(f->url)->engine), "GET /health: too many header fields");
	free(head);
}

Test(health, all_legal_framings_are_understood)
{
	static const char *const legal[] = {
		"HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nuntil it closes",
	};
	struct fake *f = fake_new("127.0.0.1");

	apply_fakes("m");
	for (size_t i = 0; i < sizeof(legal) / sizeof(*legal); i++) {
		f->health = legal[i];
		cr_assert(wait_for(is_up, f, 5000), "%s", legal[i]);
		f->health = UNHEALTHY;
		cr_assert(wait_for(is_down, f, 5000));
	}
}

Test(health, nobody_listens)
{
	struct fake *f = fake_new("127.0.0.1");

	evconnlistener_free(f->listener);
	f->listener = NULL;
	apply_fakes("m");
	run_for(600);
	cr_assert_eq(state_of(f), EP_DOWN, "nobody waits for it any more");
	cr_assert_str_eq(
		health_reason(&endpoint_of(f->url)->engine), "GET /health: Connection refused");
	cr_assert_geq(metric_sum(seg, M_PROBES_FAILED), 3);
}

Test(health, a_name_is_resolved_and_the_address_that_answers_is_published)
{
	struct fake *f = fake_new("localhost"); /* ::1 may come first and refuses */

	apply_fakes("m");
	cr_assert_eq(row_of(f->url)->addr.family, 0);
	cr_assert(wait_for(is_up, f, 5000), "%s", health_reason(&endpoint_of(f->url)->engine));
	cr_assert_eq(row_of(f->url)->addr.family, AF_INET);
	cr_assert_eq(row_of(f->url)->addr.port, f->port);
	cr_assert_eq(row_of(f->url)->addr.ip[0], 127);
	cr_assert_eq(metric_sum(seg, M_PROBES_FAILED), 0, "all addresses are tried in one round");
}

/* A name server for the tests: any name has these last bytes of 127.0.0.x, and no IPv6 address. */
static struct {
	int fd;
	struct event *event;
	uint8_t hosts[3];
	size_t nhosts;
	unsigned asked;
} dns;

static void
on_dns_query(evutil_socket_t fd, short what, void *arg)
{
	uint8_t m[512];
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	ssize_t n = recvfrom(fd, m, sizeof(m) / 2, 0, (struct sockaddr *)&from, &len);
	size_t end = 12; /* of the DNS question: names as length and bytes, then type and class */

	(void)what;
	(void)arg;
	cr_assert_gt(n, 12);
	while (m[end] != 0)
		end += m[end] + 1u;
	end += 5;
	dns.asked++;
	m[2] = 0x81; /* an answer, recursion was wanted */
	m[3] = 0x80;
	m[7] = m[end - 3] == 1 ? (uint8_t)dns.nhosts : 0; /* type A */
	memset(m + 8, 0, 4);
	for (size_t i = 0; i < m[7]; i++) {
		const uint8_t a[] = {
			0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, dns.hosts[i]};

		memcpy(m + end, a, sizeof(a));
		end += sizeof(a);
	}
	cr_assert_eq(sendto(fd, m, end, 0, (struct sockaddr *)&from, len), (ssize_t)end);
}

static void
dns_start(void)
{
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(sin);
	char where[32];

	dns.fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
	cr_assert_eq(bind(dns.fd, (struct sockaddr *)&sin, sizeof(sin)), 0);
	cr_assert_eq(getsockname(dns.fd, (struct sockaddr *)&sin, &len), 0);
	(void)snprintf(where, sizeof(where), "127.0.0.1:%u", ntohs(sin.sin_port));
	name_servers[0] = mem_strdup(where);
	nname_servers = 1;
	dns.event = event_new(base, dns.fd, EV_READ | EV_PERSIST, on_dns_query, NULL);
	event_add(dns.event, NULL);
}

static void
dns_stop(void)
{
	event_free(dns.event);
	(void)close(dns.fd);
	free(name_servers[0]);
}

static bool
has_moved(void *f)
{
	return row_of(((struct fake *)f)->url)->addr.ip[3] == 2;
}

Test(health, of_several_addresses_the_one_that_answers)
{
	struct fake *f = fake_new("engine.test");

	dns_start();
	memcpy(dns.hosts, (uint8_t[]){8, 1, 9}, 3); /* at .8 and .9 nobody listens */
	dns.nhosts = 3;
	apply_fakes("m");
	cr_assert_eq(row_of(f->url)->addr.family, 0);
	cr_assert(wait_for(is_up, f, 5000), "%s", health_reason(&endpoint_of(f->url)->engine));
	cr_assert_eq(row_of(f->url)->addr.ip[3], 1);
	cr_assert_eq(metric_sum(seg, M_PROBES_FAILED), 0, "all are tried in one round");
	dns_stop();
}

Test(health, an_engine_that_moves_keeps_its_slot)
{
	struct fake *f = fake_new("engine.test");
	struct sockaddr_in sin = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};

	dns_start();
	dns.hosts[0] = 1;
	dns.nhosts = 1;
	apply_fakes("m");
	cr_assert(wait_for(is_up, f, 5000), "%s", health_reason(&endpoint_of(f->url)->engine));
	dns.hosts[0] = 2;
	evconnlistener_free(f->listener);
	sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
	f->listener = evconnlistener_new_bind(base, on_connection, f,
		LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE, -1, (struct sockaddr *)&sin,
		sizeof(sin));
	cr_assert_not_null(f->listener);
	cr_assert(wait_for(has_moved, f, 5000));
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(row_of(f->url)->tag, 1);
	dns.nhosts = 0; /* the name server fails: the known addresses stay */
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000));
	unsigned asked = dns.asked;
	run_for(2500);
	cr_assert(dns.asked > asked && dns.asked <= asked + 12, "%u", dns.asked - asked);
	f->health = OK;
	cr_assert(wait_for(is_up, f, 5000));
	dns_stop();
}

Test(health, a_name_that_cannot_be)
{
	struct fake *f = fake_new("127.0.0.1");

	(void)snprintf(
		f->url, sizeof(f->url), "http://%064d.x", 0); /* a label has at most 63 bytes */
	apply_fakes("m");
	run_for(300);
	cr_assert_neq(state_of(f), EP_UP);
	cr_assert(strncmp(health_reason(&endpoint_of(f->url)->engine), "cannot resolve 00000",
			  20) == 0,
		"%s", health_reason(&endpoint_of(f->url)->engine));
}

Test(health, models_are_learned_before_it_is_up)
{
	struct fake *f = fake_new("127.0.0.1");

	f->models = SILENT;
	apply_fakes(NULL);
	run_for(300);
	cr_assert_neq(state_of(f), EP_UP);
	f->models = "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n";
	run_for(3500); /* the silent one's timeout */
	cr_assert_neq(state_of(f), EP_UP);
	cr_assert_str_eq(health_reason(&endpoint_of(f->url)->engine),
		"GET /v1/models: status 401, engine refuses our key");
	f->models = "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\r\n"
		    "{\"error\":\"no \\u001b[2J\\u009b2Jkey\"}";
	run_for(300);
	cr_assert_str_eq(health_reason(&endpoint_of(f->url)->engine),
		"GET /v1/models: status 401, engine refuses our key: no  [2J  2Jkey",
		"nothing a terminal obeys");
	f->models = MODELS(
		"{\"id\":\"b\"},{\"id\":\"a\"},{\"id\":\"b\"},{\"id\":\"evil\\nname\"},{\"id\":\"evil\\u009b2Jname\"},{"
		"\"id\":\"\"}");
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(table_now()->pools[0].nmodels, 2);
	cr_assert_str_eq(table_now()->pools[0].models[0], "a");
	cr_assert_eq(row_of(f->url)->nmodels, 2);
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000));
	cr_assert_eq(table_now()->pools[0].nmodels, 2, "unavailable, not unknown");
	f->health = OK;
	f->models = MODELS("{\"id\":\"c\"}"); /* came back with another model */
	cr_assert(wait_for(is_up, f, 5000));
	cr_assert_eq(table_now()->pools[0].nmodels, 1);
	cr_assert_str_eq(table_now()->pools[0].models[0], "c");
}

static bool
is_scraped_often(void *f)
{
	return ((struct fake *)f)->nmetrics > 5;
}

static unsigned
health_conns(const struct fake *f)
{
	return f->conns - f->nmodels - f->nversion - 1; /* of its scrapes */
}

Test(health, load_is_scraped_on_one_connection)
{
	struct fake *f = fake_new("127.0.0.1");
	struct ep_scrape s;

	apply_fakes("m");
	uint32_t slot = row_of(f->url)->slot;

	cr_assert(load_reserve(seg, 0, slot, 0));
	load_sent(seg, 0, slot, 1);
	cr_assert(wait_for(is_scraped, f, 5000));
	s = ep_scrape_get(seg, slot);
	cr_assert_eq(s.running, 3);
	cr_assert_eq(s.waiting, 2);
	cr_assert_eq(s.kv_usage_ppm, 500000);
	cr_assert_eq(load_score(seg, slot, clock_ms(), 1000), 1 + 4,
		"its own one is among the engine's five");
	cr_assert(wait_for(is_scraped_often, f, 5000));
	cr_assert_leq(health_conns(f), f->nhealth);
	f->closes_after = true; /* stale kept connections are replaced unseen */
	run_for(300);
	f->closes_after = false;
	f->closes_reused = true; /* also while the next request is under way */
	run_for(300);
	cr_assert_eq(metric_sum(seg, M_SCRAPES_FAILED), 0);
	cr_assert_eq(metric_sum(seg, M_PROBES_FAILED), 0);
	cr_assert_eq(state_of(f), EP_UP);
	load_sent(seg, 0, slot, -1);
	load_release(seg, 0, slot);
}

static bool
asked_forty_times(void *f)
{
	return ((struct fake *)f)->nhealth >= 40;
}

Test(health, one_round_in_ten_opens_a_connection)
{
	struct fake *f = fake_new("127.0.0.1");

	apply_fakes("m");
	cr_assert(wait_for(asked_forty_times, f, 10000));
	cr_assert_geq(health_conns(f), 4);
	cr_assert_leq(health_conns(f), 6);
}

/* The requests of workers would fail, whatever is answered on a kept connection. */
Test(health, an_engine_that_accepts_no_more_is_down)
{
	struct fake *f = fake_new("127.0.0.1");

	apply_fakes("m");
	cr_assert(wait_for(is_scraped, f, 5000));
	evconnlistener_free(f->listener);
	f->listener = NULL;
	cr_assert(wait_for(is_down, f, 5000));
	cr_assert_neq(strstr(health_reason(&endpoint_of(f->url)->engine), "refused"), NULL);
}

/* A good probe brings back an engine that could not be reached: it must show that it can. */
Test(health, an_ejected_engine_is_asked_on_new_connections)
{
	struct fake *f = fake_new("127.0.0.1"), *other = fake_new("127.0.0.1");
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");
	unsigned asked, opened;

	conf_endpoint(p, ROLE_DECODE, f->url);
	conf_endpoint(p, ROLE_DECODE, other->url);
	p->ejection = (struct conf_ejection){
		.failures = 1, .max_percent = 100, .time_ms = 60000, .max_ms = 60000};
	apply(c);
	cr_assert(wait_for(is_scraped, f, 5000) && wait_for(is_up, other, 5000));
	cr_assert_neq(eject_bad_answer(seg, &table_now()->pools[0], ROLE_DECODE,
			      row_of(f->url)->slot, true, clock_ms()),
		0);
	asked = f->nhealth;
	opened = health_conns(f);
	cr_assert(wait_for(asked_forty_times, f, 5000));
	cr_assert_geq(health_conns(f) - opened + 1, f->nhealth - asked, "one may be under way");
}

static struct probe_answer answers[4];
static size_t nanswers;

static void
on_probed(const struct probe_answer *a, void *arg)
{
	(void)arg;
	answers[nanswers++] = *a;
}

static bool
is_answered(void *n)
{
	return nanswers == *(size_t *)n;
}

Test(health, answers_held_are_bounded_and_that_is_nobodys_fault)
{
	static const char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n";
	static char half[24 << 10];
	struct fake *f = fake_new("127.0.0.1");
	struct ep_addr addr = {.family = AF_INET, .port = (uint16_t)f->port, .ip = {127, 0, 0, 1}};
	struct probe_env *env = probe_env_new(base, 32 << 10);
	struct probe_request rq = {.addr = &addr,
		.authority = "x",
		.prefix = "",
		.path = "/metrics",
		.timeout_ms = 5000,
		.max_body = 1 << 20,
		.want_body = true};
	struct probe *p[3];
	size_t want = 1;

	for (size_t i = 0; i < 3; i++)
		p[i] = probe_new(env, on_probed, NULL);
	memset(half, 'x', sizeof(half) - 1);
	memcpy(half, head, strlen(head));
	f->metrics = half;
	probe_get(p[0], &rq);
	run_for(100); /* it holds all that may be */
	f->metrics = OK;
	rq.want_body = false;
	probe_get(p[1], &rq);
	cr_assert(wait_for(is_answered, &want, 3000));
	cr_assert_eq(answers[0].error, 0, "%s", answers[0].why);
	cr_assert_eq(answers[0].status, 200);
	rq.want_body = true;
	probe_get(p[2], &rq);
	want = 2;
	cr_assert(wait_for(is_answered, &want, 3000));
	cr_assert_neq(answers[1].error, 0);
	cr_assert(answers[1].local, "%s", answers[1].why);
	probe_cancel(p[0]);
	probe_get(p[2], &rq);
	want = 3;
	cr_assert(wait_for(is_answered, &want, 3000));
	cr_assert_eq(answers[2].error, 0, "%s", answers[2].why);
	for (size_t i = 0; i < 3; i++)
		probe_free(&p[i]);
	probe_env_free(&env);
}

Test(health, failed_scrapes_do_not_touch_health)
{
	static const char *const bad[] = {RESET, CLOSES, UNHEALTHY,
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", ENDLESS};
	struct fake *f = fake_new("127.0.0.1");

	f->metrics = RESET;
	apply_fakes("m");
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		uint64_t failed = metric_sum(seg, M_SCRAPES_FAILED);

		f->metrics = bad[i];
		for (uint64_t end = clock_ms() + 5000;
			metric_sum(seg, M_SCRAPES_FAILED) < failed + 2;) {
			run_for(10);
			cr_assert_lt(clock_ms(), end, "%s", bad[i]);
		}
		cr_assert_eq(state_of(f), EP_UP);
	}
	cr_assert_eq(metric_sum(seg, M_PROBES_FAILED), 0);
	cr_assert_eq(load_score(seg, row_of(f->url)->slot, clock_ms(), 1000), 0);
}

Test(health, an_absent_page_is_not_asked_for_again)
{
	struct fake *f = fake_new("127.0.0.1");

	f->metrics = ABSENT;
	apply_fakes("m");
	run_for(500);
	cr_assert_eq(f->nmetrics, 1);
	f->health = UNHEALTHY;
	cr_assert(wait_for(is_down, f, 5000));
	f->health = OK;
	f->metrics = PAGE;
	cr_assert(wait_for(is_scraped, f, 5000), "asked again when it has come up");
}

Test(health, removal_ends_what_is_under_way)
{
	struct fake *f = fake_new("127.0.0.1"), *other = fake_new("127.0.0.1");
	struct conf *c;

	f->metrics = other->health = SILENT;
	apply_fakes("m");
	cr_assert(wait_for(is_up, f, 5000));
	run_for(120); /* both have an open request now */
	c = conf_make();
	(void)conf_pool(c, "main", "m");
	apply(c);
	run_for(300);
	cr_assert(TAILQ_EMPTY(&fleet->draining));
	cr_assert_eq(table_now()->nendpoints, 0);
}

Test(health, two_hundred_endpoints_come_up)
{
	struct fake *f = fake_new("127.0.0.1");
	struct conf *c = conf_make();
	struct conf_pool *p = conf_pool(c, "main", "m");
	uint64_t begin = clock_ms();
	size_t up = 0;

	c->health_interval_ms = c->stats_interval_ms = 500;
	c->health_timeout_ms = 5000; /* a slow machine must not make an engine fail */
	for (unsigned i = 1; i <= 200; i++) {
		char url[64];

		(void)snprintf(url, sizeof(url), "http://127.0.0.%u:%u", i, f->port);
		conf_endpoint(p, i % 2 ? ROLE_PREFILL : ROLE_DECODE, url);
	}
	evconnlistener_free(f->listener);
	struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons((uint16_t)f->port)};

	f->listener = evconnlistener_new_bind(base, on_connection, f,
		LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE, 1024, (struct sockaddr *)&any,
		sizeof(any));
	cr_assert_not_null(f->listener);
	apply(c);
	while (up < 200 && clock_ms() < begin + 20000) {
		run_for(50);
		up = 0;
		for (size_t i = 0; i < fleet->norder; i++)
			up += ep_state_get(seg, fleet->order[i]->engine.slot) == EP_UP;
	}
	cr_assert_eq(up, 200);
	cr_assert_eq(table_now()->version, 1);
}

Test(health, status_is_a_table_and_json)
{
	struct fake *f = fake_new("127.0.0.1");
	struct evbuffer *out = evbuffer_new();
	const char *text;

	apply_fakes(NULL);
	cr_assert(wait_for(is_scraped, f, 5000));
	fleet_status(fleet, out, 0);
	(void)evbuffer_add(out, "", 1);
	text = (const char *)evbuffer_pullup(out, -1);
	cr_assert(strncmp(text, "pool  role    url ", 18) == 0, "%s", text);
	cr_assert_not_null(strstr(text, "up"), "%s", text);
	cr_assert_not_null(strstr(text, " 50.0  "), "%s", text);
	cr_assert_not_null(strstr(text, "  m\n"), "%s", text);
	evbuffer_drain(out, evbuffer_get_length(out));
	fleet_status(fleet, out, 1);
	(void)evbuffer_add(out, "", 1);
	text = (const char *)evbuffer_pullup(out, -1);
	cr_assert_not_null(strstr(text, "\"state\":\"up\",\"drained\":false,\"addr\":\"127.0.0.1:"),
		"%s", text);
	cr_assert_not_null(
		strstr(text, "\"running\":3,\"waiting\":2,\"kv_usage\":0.500000"), "%s", text);
	cr_assert_not_null(strstr(text, "\"models\":[\"m\"]"), "%s", text);
	cr_assert_not_null(
		strstr(text,
			"\"version\":\"\",\"mode\":\"\",\"bootstrap_port\":0,\"max_context\":0,"
			"\"contradiction\":\"\""),
		"%s", text);
	evbuffer_free(out);
}

static bool
asked_again(void *f)
{
	return ((struct fake *)f)->nhealth > 1;
}

/* A worker that died between the sign and the write of the eventfd. */
Test(health, a_sign_whose_worker_woke_no_master_is_seen_when_it_is_reaped)
{
	struct fake *f = fake_new("127.0.0.1");
	struct conf *c = conf_make();
	uint32_t slot;

	c->health_interval_ms = 60000;
	conf_endpoint(conf_pool(c, "main", "m"), ROLE_DECODE, f->url);
	apply(c);
	cr_assert(wait_for(is_up, f, 5000));
	slot = endpoint_of(f->url)->engine.slot;
	cr_assert(restart_doubt(seg, slot, restart_life(seg, slot)));
	fleet_worker_reaped(fleet);
	cr_assert(wait_for(asked_again, f, 2000));
}

static bool
asked_all_again(void *f)
{
	return ((struct fake *)f)->nmodels > 1;
}

static bool
asked_twice_again(void *f)
{
	return ((struct fake *)f)->nhealth > 2;
}

static void
doubt(const struct fake *f)
{
	const uint32_t slot = endpoint_of(f->url)->engine.slot;

	cr_assert(restart_doubt(seg, slot, restart_life(seg, slot)));
	fleet_worker_reaped(fleet); /* looks for signs */
}

/* An engine that refuses, and is the only one of its role, gives such a sign with each request. */
Test(health, signs_have_an_engine_probed_once_a_second_and_none_is_lost)
{
	struct fake *f = fake_new("127.0.0.1");
	struct conf *c = conf_make();
	uint64_t began_ms;

	c->health_interval_ms = 60000;
	conf_endpoint(conf_pool(c, "main", "m"), ROLE_DECODE, f->url);
	apply(c);
	cr_assert(wait_for(is_up, f, 5000));
	doubt(f);
	cr_assert(wait_for(asked_all_again, f, 2000));
	cr_assert_eq(f->nhealth, 2);
	began_ms = clock_ms();
	doubt(f);
	cr_assert(wait_for(asked_twice_again, f, 3000));
	cr_assert_geq(clock_ms() - began_ms, 900);
}

static bool
is_not_up(void *f)
{
	return state_of(f) != EP_UP;
}

/* A worker could not connect. */
Test(health, after_a_sign_a_connection_is_opened_at_once)
{
	struct fake *f = fake_new("127.0.0.1");
	struct conf *c = conf_make();

	c->health_interval_ms = 60000;
	conf_endpoint(conf_pool(c, "main", "m"), ROLE_DECODE, f->url);
	apply(c);
	cr_assert(wait_for(is_up, f, 5000));
	evconnlistener_free(f->listener);
	f->listener = NULL;
	doubt(f);
	cr_assert(wait_for(is_not_up, f, 2000));
}
