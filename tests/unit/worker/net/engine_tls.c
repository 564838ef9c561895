/*
 * Connections to an engine that speaks TLS: its verification, sessions that are resumed, what an idle connection may carry,
 * and whether a request that failed may be sent again.
 */
#include "worker/net/connpool.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/clock.h"
#include "shm/base/conf.h"
#include "shm/metrics.h"
#include "tests/unit/pem.h"
#include "tests/unit/worker/one_engine.h"
#include "worker/net/tls.h"

#define NAME "engine.test"
#define LATE_US 100000 /* longer than any kernel puts off its word */

static struct pem ca, own, stranger;
static struct tls_client *client;
static struct conf conf;
static SSL_CTX *server_ctx;
static SSL *server; /* the engine's session */
static int listener, engine = -1;
static struct upconn *uc;

/* what the connection reported to its user */
static unsigned drained, broken;
static char got[256];
static ssize_t last;

static void
on_readable(void *user)
{
	const ssize_t n = sock_read(&uc->sock, got, sizeof(got));

	(void)user;
	if (n != -EAGAIN)
		last = n;
}

static void
on_drained(void *user)
{
	(void)user;
	drained++;
}

static void
on_broken(void *user)
{
	(void)user;
	broken++;
	last = sock_read(&uc->sock, got, sizeof(got));
	if (uc->sock.ev_write != NULL)
		event_del(uc->sock.ev_write); /* as a leg would, which ends */
}

static const struct upconn_ops ops = {on_readable, on_drained, on_broken};

static struct tls_client *
client_of(const char *ca_pem, const char *server_name)
{
	struct conf_engine_tls keys = {.ca_pem = (char *)(uintptr_t)ca_pem,
		.server_name = (char *)(uintptr_t)server_name,
		.verify = 1};
	struct tls_client *made;
	struct tls_fault fault;

	cr_assert_eq(tls_client_new(&keys, &made, &fault), 0, "%s", fault.text);
	return made;
}

static void
on_tick(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
}

static void
listen_at(struct ep_addr *ret)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(sin);

	listener = socket(AF_INET, SOCK_STREAM, 0);
	cr_assert_eq(bind(listener, (struct sockaddr *)&sin, len), 0);
	cr_assert_eq(listen(listener, 4), 0);
	cr_assert_eq(getsockname(listener, (struct sockaddr *)&sin, &len), 0);
	*ret = (struct ep_addr){
		.family = AF_INET, .port = ntohs(sin.sin_port), .ip = {127, 0, 0, 1}};
}

static void
setup(void)
{
	one_engine();
	(void)signal(SIGPIPE, SIG_IGN); /* as in a worker */
	w.slab = seg_slab(w.seg, 0);
	w.base = event_base_new();
	conf.live.upstream_max_idle = 4;
	conf.live.upstream_idle_ms = 60000;
	w.conf = &conf;
	event_assign(&w.ev_tick, w.base, -1, 0, on_tick, NULL);
	w.connpool = connpool_new(&w);
	ca = pem_make("ca.test", 9, NULL);
	own = pem_make(NAME, 9, &ca);
	stranger = pem_make(NAME, 9, NULL);
	client = client_of(ca.cert, NULL);
	ep.refs = 1;
	ep.current = true;
	ep.https = true;
	ep.tls = client;
	ep.host = (char *)(uintptr_t)NAME;
	TAILQ_INIT(&ep.idle);
	TAILQ_INIT(&ep.legs);
	listen_at(&ep.addr);
	server_ctx = SSL_CTX_new(TLS_server_method());
	cr_assert_eq(SSL_CTX_use_certificate(server_ctx, own.x509), 1);
	cr_assert_eq(SSL_CTX_use_PrivateKey(server_ctx, own.pkey), 1);
}

static void
engine_ends(void)
{
	SSL_free(server);
	server = NULL;
	if (engine != -1)
		(void)close(engine);
	engine = -1;
}

static void
teardown(void)
{
	if (uc != NULL)
		connpool_drop(w.connpool, &uc);
	connpool_drop_idle(w.connpool, &ep);
	connpool_free(&w.connpool);
	engine_ends();
	(void)close(listener);
	tls_memory_clear(&ep.memory);
	tls_client_free(&client);
	SSL_CTX_free(server_ctx);
	event_del(&w.ev_tick);
	event_base_free(w.base);
	pem_free(&ca);
	pem_free(&own);
	pem_free(&stranger);
	seg_free(&w.seg);
}

TestSuite(engine_tls, .init = setup, .fini = teardown, .timeout = 60);

static void
turn(void)
{
	(void)event_base_loop(w.base, EVLOOP_NONBLOCK);
}

static uint64_t
count(enum metric_counter m)
{
	return w.slab->counters[m];
}

/* A new connection, and what becomes of its handshake. */
static void
begin(void)
{
	const int on = 1;
	int err = 0;

	drained = broken = 0;
	last = -EAGAIN;
	uc = connpool_get(w.connpool, &ep, true, &err);
	cr_assert_not_null(uc);
	uc->ops = &ops;
	engine = accept(listener, NULL, NULL);
	cr_assert_geq(engine, 0);
	cr_assert_eq(fcntl(engine, F_SETFL, O_NONBLOCK), 0);
	cr_assert_eq(setsockopt(engine, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
	server = SSL_new(server_ctx);
	SSL_set_fd(server, engine);
	SSL_set_accept_state(server);
	for (int i = 0; i < 50 && drained + broken == 0; i++) {
		(void)SSL_do_handshake(server);
		turn();
	}
	for (int i = 0; i < 50 && drained > 0 && SSL_do_handshake(server) != 1; i++)
		turn();
	ERR_clear_error();
}

/* One request and its answer; the kernel has acknowledged all when the connection is used again. */
static void
exchange(void)
{
	char buf[16];

	last = -EAGAIN;
	cr_assert_eq(sock_write(&uc->sock, "one", 3), 0);
	cr_assert_eq(SSL_read(server, buf, sizeof(buf)), 3);
	cr_assert_eq(SSL_write(server, "1", 1), 1);
	for (int i = 0; i < 50 && last != 1; i++)
		turn();
	cr_assert_eq(last, 1);
}

static void
use_again(void)
{
	int err;

	connpool_put(w.connpool, &uc);
	turn();
	uc = connpool_get(w.connpool, &ep, false, &err);
	cr_assert_not_null(uc);
	uc->ops = &ops;
	cr_assert(uc->reused);
}

/* --- verification ----------------------------------------------------------------------------- */

Test(engine_tls, an_engine_is_verified_and_asked_for_by_its_name)
{
	begin();
	cr_expect_eq(drained, 1);
	cr_expect_str_eq(SSL_get_servername(server, TLSEXT_NAMETYPE_host_name), NAME);
	exchange();
	cr_expect_eq(count(M_ENGINE_TLS_FULL), 1);
	cr_expect_eq(count(M_TLS_FULL), 0);
}

Test(engine_tls, an_engine_that_another_authority_has_signed)
{
	cr_assert_eq(SSL_CTX_use_certificate(server_ctx, stranger.x509), 1);
	cr_assert_eq(SSL_CTX_use_PrivateKey(server_ctx, stranger.pkey), 1);
	begin();
	cr_expect(drained == 0 && broken == 1);
	cr_expect_str_eq(
		sock_tls_why(&uc->sock), "tls: certificate verify failed: self-signed certificate");
	cr_expect_eq(count(M_ENGINE_TLS_FAILED), 1);
}

Test(engine_tls, an_engine_of_another_name)
{
	ep.host = (char *)(uintptr_t) "10.0.0.1";
	begin();
	cr_expect_str_eq(
		sock_tls_why(&uc->sock), "tls: certificate verify failed: IP address mismatch");
	cr_expect_null(SSL_get_servername(server, TLSEXT_NAMETYPE_host_name));
	engine_ends();
	connpool_drop(w.connpool, &uc);
	tls_client_free(&client);
	ep.tls = client = client_of(ca.cert, NAME);
	begin();
	cr_expect_eq(drained, 1, "tls.server_name replaces the host");
}

Test(engine_tls, a_worker_that_is_older_than_the_pools_context)
{
	int err = 0;

	ep.tls = NULL;
	cr_expect_null(connpool_get(w.connpool, &ep, false, &err));
	cr_expect_eq(err, ENOKEY);
}

/* --- sessions --------------------------------------------------------------------------------- */

static void
again(void)
{
	exchange(); /* the ticket comes before the answer */
	connpool_drop(w.connpool, &uc);
	engine_ends();
	begin();
}

Test(engine_tls, a_session_is_resumed_in_the_same_context_alone)
{
	struct tls_client *other;

	begin();
	for (int i = 0; i < 3; i++)
		again();
	cr_expect_eq(count(M_ENGINE_TLS_RESUMED), 3);
	ep.tls = other = client_of(ca.cert, NULL);
	again();
	cr_expect_eq(count(M_ENGINE_TLS_RESUMED), 3);
	cr_expect_eq(count(M_ENGINE_TLS_FULL), 2);
	again();
	cr_expect_eq(count(M_ENGINE_TLS_RESUMED), 4);
	tls_client_free(&other);
}

/* --- an engine that refuses a large request ----------------------------------------------------- */

/* It answers, and closes before it has read everything: the kernel resets the connection. */
Test(engine_tls, what_came_before_a_write_failed_is_still_read)
{
	static char large[8 << 20];

	begin();
	cr_assert_eq(sock_write(&uc->sock, large, sizeof(large)), 0);
	cr_assert_gt(sock_queued(&uc->sock), 0);
	sock_read_stop(&uc->sock); /* else it would be read before the write */
	cr_assert_eq(SSL_write(server, "413", 3), 3);
	(void)SSL_shutdown(server);
	engine_ends();
	for (int i = 0; i < 50 && broken == 0; i++)
		turn();
	cr_expect_eq(broken, 1);
	cr_expect_eq(last, 3);
}

/* --- idle connections ------------------------------------------------------------------------- */

static bool
is_kept_idle(void)
{
	for (int i = 0; i < 10; i++)
		turn();
	return ep.nidle == 1;
}

Test(engine_tls, an_idle_connection_takes_tickets_and_no_bytes)
{
	begin();
	exchange();
	connpool_put(w.connpool, &uc);
	cr_assert_eq(SSL_new_session_ticket(server), 1);
	cr_assert_eq(SSL_do_handshake(server), 1);
	cr_expect(is_kept_idle());
	cr_assert_eq(SSL_write(server, "?", 1), 1);
	cr_expect_not(is_kept_idle());
}

Test(engine_tls, an_idle_connection_that_the_engine_ends)
{
	begin();
	exchange();
	connpool_put(w.connpool, &uc);
	cr_expect(is_kept_idle());
	(void)SSL_shutdown(server);
	cr_expect_not(is_kept_idle());
}

/* --- may the request be sent again? ------------------------------------------------------------- */

static void
send_next(void)
{
	cr_assert_eq(sock_write(&uc->sock, "next", 4), 0);
	uc->sent_us = clock_us();
}

/* The end of it, as it is found a good while later. */
static ssize_t
end_of_connection(void)
{
	(void)usleep(20000);
	uc->sent_us -= LATE_US;
	return sock_read(&uc->sock, got, sizeof(got));
}

Test(engine_tls, an_end_that_crossed_the_request_is_certain)
{
	begin();
	exchange();
	use_again();
	(void)SSL_shutdown(server);
	engine_ends();
	send_next();
	cr_expect_eq(end_of_connection(), 0);
	cr_expect(connpool_nothing_acked(uc));
}

Test(engine_tls, an_end_after_the_request_was_taken_is_certain_too)
{
	char buf[16];

	begin();
	exchange();
	use_again();
	send_next();
	cr_assert_eq(SSL_read(server, buf, sizeof(buf)), 4);
	(void)SSL_shutdown(server);
	engine_ends();
	cr_expect_eq(end_of_connection(), 0);
	cr_expect_not(connpool_nothing_acked(uc));
}

Test(engine_tls, an_end_without_a_close_notify_is_a_reset)
{
	begin();
	exchange();
	use_again();
	(void)close(engine);
	engine = -1;
	send_next();
	cr_expect_eq(end_of_connection(), -ECONNRESET);
	cr_expect(uc->sock.reset);
	cr_expect_not(connpool_nothing_acked(uc), "it came late");
}
