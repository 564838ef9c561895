/* The master's requests to an engine that speaks TLS: what one turn of the loop reads. */
#include "master/probe/probe.h"

#include <event2/event.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/tls/client.h"
#include "shm/base/conf.h"
#include "shm/table.h"
#include "tests/unit/pem.h"

#define BODY 100000
#define RECORD 512    /* the smallest that OpenSSL writes */
#define NEW_KEYS 2000 /* more than one turn reads */

static struct event_base *base;
static size_t nread, nreads; /* of the body */
static int answers, status;

static void
on_answer(const struct probe_answer *a, void *arg)
{
	(void)arg;
	answers++;
	status = a->status;
}

static void
on_piece(const char *data, size_t n, void *arg)
{
	(void)data;
	(void)arg;
	nread += n;
	nreads++;
}

static int
listen_at(struct ep_addr *ret)
{
	struct sockaddr_in sin = {
		.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	socklen_t len = sizeof(sin);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	cr_assert_eq(bind(fd, (struct sockaddr *)&sin, len), 0);
	cr_assert_eq(listen(fd, 1), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&sin, &len), 0);
	*ret = (struct ep_addr){
		.family = AF_INET, .port = ntohs(sin.sin_port), .ip = {127, 0, 0, 1}};
	return fd;
}

static void
one_turn(void)
{
	(void)event_base_loop(base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
}

/* The engine's session, when the request has been read. */
static SSL *
engine_of(SSL_CTX *ctx, int listener)
{
	int fd = accept(listener, NULL, NULL);
	SSL *ssl = SSL_new(ctx);
	char request[1024];

	cr_assert_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	SSL_set_fd(ssl, fd);
	SSL_set_accept_state(ssl);
	while (SSL_read(ssl, request, sizeof(request)) <= 0)
		one_turn();
	return ssl;
}

static void
engine_answers(SSL *ssl)
{
	static char body[BODY];
	char head[64];

	(void)snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", BODY);
	for (int i = 0; i < NEW_KEYS; i++) {
		cr_assert_eq(SSL_key_update(ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
		cr_assert_eq(SSL_do_handshake(ssl), 1);
	}
	cr_assert_eq(SSL_set_max_send_fragment(ssl, RECORD), 1);
	cr_assert_gt(SSL_write(ssl, head, (int)strlen(head)), 0);
	cr_assert_eq(SSL_write(ssl, body, BODY), BODY, "the kernel takes it");
}

Test(probe, a_turn_reads_once, .timeout = 60)
{
	struct pem ca = pem_make("engine.test", 9, NULL);
	struct conf_engine_tls keys = {
		.ca_pem = ca.cert, .server_name = (char *)(uintptr_t) "engine.test", .verify = 1};
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	struct ep_addr addr;
	struct tls_memory memory = {0};
	struct tls_fault fault;
	struct probe_request rq = {.addr = &addr,
		.authority = "engine.test",
		.prefix = "",
		.path = "/metrics",
		.timeout_ms = 60000,
		.max_body = BODY,
		.https = true,
		.host = "engine.test",
		.memory = &memory,
		.piece = on_piece};
	const int listener = listen_at(&addr);
	struct probe_env *env;
	struct probe *p;
	SSL *engine;

	(void)signal(SIGPIPE, SIG_IGN);
	base = event_base_new();
	env = probe_env_new(base, BODY);
	p = probe_new(env, on_answer, NULL);
	cr_assert_eq(tls_client_new(&keys, &rq.tls, &fault), 0, "%s", fault.text);
	cr_assert_eq(SSL_CTX_use_certificate(ctx, ca.x509), 1);
	cr_assert_eq(SSL_CTX_use_PrivateKey(ctx, ca.pkey), 1);
	probe_get(p, &rq);
	engine = engine_of(ctx, listener);
	engine_answers(engine);
	one_turn();
	one_turn();
	cr_assert_eq(nreads, 0, "it reads new keys");
	while (answers == 0) {
		const size_t had = nreads;

		one_turn();
		cr_assert_leq(nreads - had, 1, "after %zu bytes", nread);
	}
	cr_assert_eq(nread, BODY);
	cr_assert_eq(status, 200);
	probe_free(&p);
	probe_env_free(&env);
	SSL_free(engine);
	SSL_CTX_free(ctx);
	(void)close(listener);
	tls_memory_clear(&memory);
	tls_client_free(&rq.tls);
	event_base_free(base);
	pem_free(&ca);
}
