/*
 * The transport over TLS: a peer that cuts its bytes anywhere, what one write becomes, back-pressure, bytes that OpenSSL
 * has read ahead, ends of both kinds, tickets, names.
 */
#include "worker/net/tls.h"

#include <errno.h>
#include <event2/event.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/base/conf.h"
#include "shm/metrics.h"
#include "shm/tickets.h"
#include "tests/unit/pem.h"
#include "tests/unit/worker/one_engine.h"
#include "worker/net/sock.h"

#define MIB (1 << 20)
#define PIECE 65536u

static struct pem pem[2];
static struct conf_certificate certificates[2];
static struct conf_tls conf;
static struct tls_server *server;
static struct sock s;
static int peer; /* the client's end of the socket */
static SSL_CTX *client_ctx;
static SSL *client;
static SSL_SESSION *session; /* the newest ticket of the client */

/* what the socket reported to its user */
static unsigned drained;
static int broken;
static char got[2 * MIB];
static size_t ngot;
static ssize_t last; /* of sock_read() */
static size_t piece = sizeof(got);
static bool stops;   /* after each read */
static bool floods;  /* the client writes all of its pattern, as fast as it is read */
static size_t nsaid; /* bytes of the pattern that the client has written */

static void client_floods(void);

static void
on_read(void *arg)
{
	(void)arg;
	last = sock_read(&s, got + ngot, piece);
	if (last > 0)
		ngot += (size_t)last;
	else if (last != -EAGAIN)
		sock_close(&s);
	if (stops)
		sock_read_stop(&s);
	client_floods();
}

static void
on_drained(void *arg)
{
	(void)arg;
	drained++;
}

static void
on_error(void *arg, int err)
{
	(void)arg;
	broken = err;
	sock_close(&s);
}

static void
server_begin(void)
{
	for (size_t i = 0; i < 2; i++)
		certificates[i] =
			(struct conf_certificate){.cert_pem = pem[i].cert, .key_pem = pem[i].key};
	conf = (struct conf_tls){.certificates = certificates,
		.ncertificates = 2,
		.ciphers = (char *)(uintptr_t) "ECDHE-ECDSA-AES128-GCM-SHA256",
		.max_handshakes = 2};
	server = tls_server_new(&w, &conf);
	cr_assert_not_null(server);
}

static void
setup(void)
{
	one_engine();
	(void)signal(SIGPIPE, SIG_IGN); /* as in a worker */
	w.slab = seg_slab(w.seg, 0);
	w.base = event_base_new();
	s.fd = -1;
	tickets_keep(w.seg, 1);
	pem[0] = pem_make("a.test", 9, NULL);
	pem[1] = pem_make("*.b.test", 9, NULL);
	server_begin();
	client_ctx = SSL_CTX_new(TLS_client_method());
	SSL_CTX_set_session_cache_mode(client_ctx, SSL_SESS_CACHE_CLIENT);
}

static void
teardown(void)
{
	sock_close(&s);
	SSL_free(client);
	SSL_SESSION_free(session);
	SSL_CTX_free(client_ctx);
	tls_server_free(&server);
	event_base_free(w.base);
	pem_free(&pem[0]);
	pem_free(&pem[1]);
	seg_free(&w.seg);
}

TestSuite(tls, .init = setup, .fini = teardown);

/* A new connection; what is known of the one before is forgotten. */
static bool
connect_both(void)
{
	int fds[2];

	sock_close(&s);
	if (client != NULL) /* else OpenSSL would not resume its session */
		SSL_set_shutdown(client, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
	SSL_free(client);
	if (peer > 0)
		(void)close(peer);
	drained = 0;
	broken = 0;
	ngot = nsaid = 0;
	last = -EAGAIN;
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
	peer = fds[1];
	s = (struct sock){.on_read = on_read, .on_drained = on_drained, .on_error = on_error};
	sock_init(&s, &w, fds[0], false, &s);
	client = SSL_new(client_ctx);
	SSL_set_connect_state(client);
	return sock_start_tls(&s, server);
}

/* Until nothing is ready. */
static void
turn(void)
{
	(void)event_base_loop(w.base, EVLOOP_NONBLOCK);
}

/* As a worker: what is ready is called once. */
static void
one_turn(void)
{
	(void)event_base_loop(w.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
}

/* Client and socket until the handshake is over, and the client has its ticket. */
static void
shake_hands(void)
{
	cr_assert(connect_both());
	SSL_set_fd(client, peer);
	if (session != NULL)
		SSL_set_session(client, session);
	for (int i = 0; i < 20 && (SSL_do_handshake(client) != 1 || drained == 0); i++)
		turn();
	cr_assert_eq(drained, 1);
	drained = 0;
	ERR_clear_error();
	(void)SSL_read(client, got, sizeof(got));
	ERR_clear_error();
}

static void
keep_session(void)
{
	SSL_SESSION_free(session);
	session = SSL_get1_session(client);
}

static uint64_t
count(enum metric_counter m)
{
	return w.slab->counters[m];
}

/* --- a peer that cuts ------------------------------------------------------------------------- */

static size_t
least(size_t a, size_t b)
{
	const size_t n = a < b ? a : b;

	return n < PIECE ? n : PIECE;
}

/* The client's bytes come through memory: `cut` at a time, and none after `most`.  Returns how many there were. */
static size_t
pass_in_pieces(size_t cut, size_t most, const char *text)
{
	BIO *in = BIO_new(BIO_s_mem()), *out = BIO_new(BIO_s_mem());
	char buf[PIECE];
	size_t sent = 0;
	int said = 0, n;

	SSL_set_bio(client, in, out);
	for (int idle = 0; idle < 3 && sent < most; idle++) {
		if (SSL_do_handshake(client) == 1 && !said)
			said = SSL_write(client, text, (int)strlen(text));
		ERR_clear_error();
		while (sent < most && (n = BIO_read(out, buf, (int)least(cut, most - sent))) > 0) {
			cr_assert_eq(write(peer, buf, (size_t)n), n);
			sent += (size_t)n;
			turn();
			idle = 0;
		}
		while ((n = (int)read(peer, buf, sizeof(buf))) > 0)
			BIO_write(in, buf, n);
	}
	return sent;
}

Test(tls, bytes_in_pieces_of_any_size)
{
	for (size_t cut = 1; cut < 700; cut += 1 + cut / 8) {
		cr_assert(connect_both());
		(void)pass_in_pieces(cut, SIZE_MAX, "GET /");
		cr_assert_eq(ngot, 5, "cut %zu", cut);
		cr_assert_eq(drained, 1);
	}
	cr_assert_eq(count(M_TLS_FULL) > 20 && count(M_TLS_UNFINISHED) == 0, 1);
}

Test(tls, a_peer_that_leaves_after_any_byte, .timeout = 60)
{
	size_t all, shaken = 0;

	cr_assert(connect_both());
	all = pass_in_pieces(SIZE_MAX, SIZE_MAX, "GET /");
	for (size_t most = 0; most < all; most++) {
		cr_assert(connect_both());
		(void)pass_in_pieces(SIZE_MAX, most, "GET /");
		(void)shutdown(peer, SHUT_RDWR);
		turn();
		shaken += drained;
		cr_assert_eq(ngot, 0);
		cr_assert(drained == 1 ? last == -ECONNRESET && s.reset : broken != 0,
			"after %zu bytes: %zd, %d", most, last, broken);
	}
	cr_assert_gt(shaken, 5, "the record with the request was cut, too");
	sock_close(&s);
	cr_assert_eq(count(M_TLS_UNFINISHED), all - shaken);
}

Test(tls, bytes_that_are_no_tls)
{
	static const char *const firsts[] = {"\x16\x03\x01\xff\xff",
		"\x17\x03\x03\xff\xffxxxxxxxxx", "\r\n\r\n\r\n",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n"};

	for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++) {
		cr_assert(connect_both());
		cr_assert_gt(write(peer, firsts[i], strlen(firsts[i])), 0);
		turn();
		cr_expect_neq(broken, 0, "%zu", i);
	}
	cr_assert_eq(count(M_TLS_FAILED), sizeof(firsts) / sizeof(firsts[0]));
}

Test(tls, plain_http_is_told_so)
{
	char answer[512] = "";

	cr_assert(connect_both());
	cr_assert_gt(write(peer, "GET / HTTP/1.1\r\n\r\n", 18), 0);
	turn();
	cr_assert_gt(read(peer, answer, sizeof(answer) - 1), 0);
	cr_assert_eq(strncmp(answer, "HTTP/1.1 400 ", 13), 0);
	cr_assert_eq(strlen(strstr(answer, "\r\n\r\n") + 4), 38, "its Content-Length");
	cr_assert_eq(count(M_TLS_PLAIN), 1);
}

Test(tls, handshakes_in_progress_are_bounded)
{
	struct sock other[2] = {0};

	cr_assert(connect_both());
	for (int i = 0; i < 2; i++) {
		int fds[2];

		cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
		sock_init(&other[i], &w, fds[0], false, NULL);
		cr_assert_eq(sock_start_tls(&other[i], server), i == 0);
	}
	cr_assert_eq(count(M_TLS_REFUSED), 1);
	sock_close(&other[0]);
	sock_close(&other[1]);
	shake_hands();
	cr_assert_eq(count(M_TLS_UNFINISHED), 2);
}

/* --- records ---------------------------------------------------------------------------------- */

/* The records that lie in the socket; their payload is not read. */
static unsigned
records(void)
{
	static unsigned char buf[MIB];
	ssize_t n = recv(peer, buf, sizeof(buf), MSG_PEEK);
	unsigned found = 0;

	for (ssize_t at = 0; at < n; found++)
		at += 5 + (buf[at + 3] << 8 | buf[at + 4]);
	return found;
}

Test(tls, the_pieces_of_a_write_are_one_record)
{
	const struct iovec iov[] = {{(char *)(uintptr_t) "5\r\n", 3}, {NULL, 0},
		{(char *)(uintptr_t) "event", 5}, {(char *)(uintptr_t) "\r\n", 2}};

	shake_hands();
	for (unsigned i = 1; i <= 3; i++) {
		cr_assert_eq(sock_writev(&s, iov, 4, 4), 0);
		cr_assert_eq(records(), i);
	}
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(SSL_read(client, got, sizeof(got)), 10);
		cr_assert_eq(memcmp(got, "5\r\nevent\r\n", 10), 0);
	}
}

static char pattern[MIB];

static void
draw_pattern(void)
{
	for (size_t i = 0; i < MIB; i++)
		pattern[i] = (char)(i * 31 ^ i >> 9);
}

Test(tls, a_slow_reader_gets_every_byte)
{
	/* pieces that end nowhere near the end of a record, by copy and by reference */
	const struct iovec iov[] = {{pattern, 7}, {pattern + 7, 300000}, {pattern + 300007, 3},
		{pattern + 300010, MIB - 300010}};
	size_t n = 0, queued = 0;

	draw_pattern();
	shake_hands();
	cr_assert_eq(sock_writev(&s, iov, 4, 2), 0);
	cr_assert_gt(sock_queued(&s), 0);
	cr_assert_eq(sock_write(&s, "end", 3), 0);
	while (n < MIB + 3) {
		int r = SSL_read(client, got + n, 5000);

		if (r <= 0)
			turn();
		else
			n += (size_t)r;
		cr_assert(queued == 0 || sock_queued(&s) <= queued);
		queued = sock_queued(&s);
		cr_assert_eq(drained, queued == 0);
	}
	cr_assert_eq(memcmp(got, pattern, MIB), 0);
	cr_assert_eq(memcmp(got + MIB, "end", 3), 0);
	cr_assert_eq(w.gauges[G_SEND_QUEUE], 0);
}

/* The client continues its pattern, as far as the socket takes it, without waiting for the other side. */
static size_t
client_writes(size_t n)
{
	const size_t had = nsaid;
	int r;

	SSL_set_mode(client, SSL_MODE_ENABLE_PARTIAL_WRITE);
	while (nsaid < had + n &&
		(r = SSL_write(client, pattern + nsaid, (int)(had + n - nsaid))) > 0)
		nsaid += (size_t)r;
	ERR_clear_error();
	return nsaid - had;
}

static void
client_floods(void)
{
	if (floods && last > 0)
		(void)client_writes(MIB - nsaid);
}

Test(tls, a_turn_reads_as_much_as_of_a_plain_connection)
{
	const int room = 3 * WORKER_BUF; /* every kernel allows this */

	draw_pattern();
	shake_hands();
	/* OpenSSL reads 16,709 bytes: three records, and too little of the fourth one to know its size */
	cr_assert_eq(SSL_set_max_send_fragment(client, 5547), 1);
	piece = WORKER_BUF;
	floods = true;
	cr_assert_eq(setsockopt(peer, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room)), 0);
	(void)client_writes(MIB);
	for (size_t had = 0; ngot < MIB; had = ngot) {
		one_turn();
		cr_assert_gt(ngot, had, "after %zu bytes", had);
		cr_assert_leq(ngot - had, WORKER_BUF);
	}
	cr_assert_eq(memcmp(got, pattern, MIB), 0);
}

Test(tls, a_look_finds_what_was_read_ahead)
{
	draw_pattern();
	shake_hands();
	piece = 1000;
	cr_assert_eq(client_writes(3000), 3000);
	one_turn();
	for (size_t n = 1; n <= 3; n++) {
		cr_assert_eq(ngot, n * 1000);
		cr_assert_eq(sock_look(&s), n < 3);
	}
}

Test(tls, bytes_that_were_read_ahead_arrive_without_further_ones)
{
	size_t sent;

	draw_pattern();
	shake_hands();
	piece = 1000;
	sent = client_writes(60000);
	for (int i = 0; i < 10; i++)
		turn();
	cr_assert_eq(ngot, sent);
	cr_assert_eq(memcmp(got, pattern, sent), 0);
}

Test(tls, reading_that_stops_and_starts_loses_nothing)
{
	size_t sent;

	draw_pattern();
	shake_hands();
	piece = 1000;
	stops = true;
	sent = client_writes(30000);
	for (size_t had = 0; ngot < sent; had = ngot) {
		turn();
		cr_assert_leq(ngot - had, piece);
		cr_assert_gt(ngot, had);
		turn();
		cr_assert_leq(ngot - had, piece, "it is stopped");
		sock_read_start(&s);
	}
	cr_assert_eq(memcmp(got, pattern, sent), 0);
}

Test(tls, a_new_key_is_answered_and_counts_as_no_bytes)
{
	shake_hands();
	cr_assert_eq(SSL_key_update(client, SSL_KEY_UPDATE_REQUESTED), 1);
	cr_assert_eq(client_writes(5), 5);
	turn();
	cr_assert_eq(ngot, 5);
	cr_assert_eq(sock_write(&s, "x", 1), 0);
	cr_assert_eq(SSL_read(client, got, 9), 1);
}

/* A new key and 5 bytes arrive, while the client reads nothing. */
static void
new_key_while_full(size_t unread)
{
	draw_pattern();
	shake_hands();
	for (size_t at = 0; at < unread; at += 1000)
		cr_assert_eq(sock_write(&s, pattern + at, 1000), 0);
	cr_assert_eq(SSL_key_update(client, SSL_KEY_UPDATE_REQUESTED), 1);
	cr_assert_eq(client_writes(5), 5);
	turn();
}

static void
client_reads(size_t n)
{
	static char buf[MIB];
	size_t have = 0;

	for (int idle = 0; have < n && idle < 100; idle++) {
		const int r = SSL_read(client, buf + have, (int)(n - have));

		have += r > 0 ? (size_t)r : 0;
		idle = r > 0 ? 0 : idle;
		turn();
	}
	cr_assert_eq(have, n);
	cr_assert_eq(memcmp(buf, pattern, n), 0);
}

Test(tls, bytes_behind_a_new_key_arrive_while_the_client_reads_nothing)
{
	new_key_while_full(MIB / 2000 * 1000);
	cr_assert_gt(sock_queued(&s), 0);
	cr_assert_eq(ngot, 5);
	client_reads(MIB / 2000 * 1000);
	cr_assert_eq(ngot, 5);
}

/* Returns how many bytes fill the kernel's buffer, so that OpenSSL keeps no part of a record. */
static size_t
just_full(void)
{
	size_t n = 0;

	shake_hands();
	for (; sock_queued(&s) == 0; n += 1000)
		cr_assert_eq(sock_write(&s, pattern, 1000), 0);
	return n - 1000;
}

/*
 * OpenSSL 3.0 writes its answer to a new key before the next record that it writes, and not within the read that finds
 * the new key.  So no read waits for room, whether a record is under way (the test above) or not.
 */
Test(tls, a_read_answers_no_new_key)
{
	const size_t n = just_full();

	for (unsigned more = 0; more < 2; more++) {
		new_key_while_full(n);
		cr_assert_eq(ngot, 5);
		cr_assert_eq(s.tls->wants, TLS_WANTS_NOTHING);
		if (more == 1)
			cr_assert_eq(sock_write(&s, pattern + n, 1000), 0);
		cr_assert_eq(sock_queued(&s), more * 1000);
		client_reads(n + more * 1000);
	}
}

static unsigned keys_read;

static void
on_message(int written, int version, int type, const void *p, size_t n, SSL *ssl, void *arg)
{
	(void)version;
	(void)ssl;
	(void)arg;
	if (!written && type == SSL3_RT_HANDSHAKE && n > 0 &&
		*(const unsigned char *)p == SSL3_MT_KEY_UPDATE)
		keys_read++;
}

/* OpenSSL handles new keys, 10 us each, until bytes of the peer come. */
Test(tls, a_turn_reads_few_new_keys)
{
	enum { KEYS = 4000, BYTES = KEYS * 27 + 27 };
	static char records[BYTES];
	BIO *out = BIO_new(BIO_s_mem());
	int n;

	draw_pattern();
	shake_hands();
	SSL_set_msg_callback(s.tls->ssl, on_message);
	SSL_set_bio(client, BIO_new(BIO_s_mem()), out);
	for (int i = 0; i < KEYS; i++) {
		cr_assert_eq(SSL_key_update(client, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
		cr_assert_eq(SSL_do_handshake(client), 1);
	}
	(void)client_writes(5);
	n = BIO_read(out, records, BYTES);
	cr_assert_eq(write(peer, records, (size_t)n), n, "the kernel takes it");
	piece = 1000;
	for (unsigned had = 0; ngot < 5; had = keys_read) {
		one_turn();
		cr_assert(keys_read > had || ngot == 5, "after %u", had);
		cr_assert_lt(keys_read - had, KEYS / 2);
	}
	cr_assert_eq(keys_read, KEYS);
}

/* --- ends ------------------------------------------------------------------------------------- */

Test(tls, the_two_ends_of_a_peer)
{
	shake_hands();
	cr_assert_eq(SSL_shutdown(client), 0);
	turn();
	cr_assert_eq(last, 0);
	cr_assert_not(s.reset);
	shake_hands();
	(void)shutdown(peer, SHUT_WR);
	turn();
	cr_assert_eq(last, -ECONNRESET);
	cr_assert(s.reset);
}

Test(tls, a_close_is_orderly_only_when_everything_was_written)
{
	shake_hands();
	cr_assert_eq(sock_write(&s, "x", 1), 0);
	sock_close(&s);
	cr_assert_eq(SSL_read(client, got, 9), 1);
	cr_assert_eq(SSL_read(client, got, 9), 0);
	cr_assert_eq(SSL_get_error(client, 0), SSL_ERROR_ZERO_RETURN);
	shake_hands();
	draw_pattern();
	cr_assert_eq(sock_write(&s, pattern, MIB), 0);
	cr_assert_gt(sock_queued(&s), 0);
	sock_close(&s);
	while (SSL_read(client, got, sizeof(got)) > 0)
		;
	cr_assert_eq(SSL_get_shutdown(client) & SSL_RECEIVED_SHUTDOWN, 0);
}

Test(tls, the_peer_is_read_after_the_end_of_writing)
{
	shake_hands();
	sock_end_writing(&s);
	cr_assert_eq(SSL_read(client, got, 9), 0);
	cr_assert_eq(client_writes(5), 5);
	turn();
	cr_assert_eq(ngot, 5);
	cr_assert_eq(sock_write(&s, "x", 1), -EPIPE);
}

/* --- what both agree on ----------------------------------------------------------------------- */

static void
resume(bool resumed)
{
	shake_hands();
	cr_assert_eq(SSL_session_reused(client), resumed);
	keep_session();
}

static void
tickets(int version)
{
	SSL_CTX_set_max_proto_version(client_ctx, version);
	resume(false);
	resume(true);
	sock_close(&s);
	tls_server_free(&server); /* another worker, of another generation */
	server_begin();
	resume(true);
	tickets_keep(w.seg, 2 + TICKETS_MS);
	resume(true);
	cr_assert_eq(count(M_TLS_RESUMED), 3);
	tickets_keep(w.seg, 3 + 2 * TICKETS_MS);
	resume(true); /* the last one came with a ticket of the new key */
	tickets_keep(w.seg, 4 + 3 * TICKETS_MS);
	tickets_keep(w.seg, 5 + 4 * TICKETS_MS);
	resume(false);
}

Test(tls, tickets_of_1_3)
{
	tickets(TLS1_3_VERSION);
}

Test(tls, tickets_of_1_2)
{
	tickets(TLS1_2_VERSION);
}

/* The name in the certificate that a client gets who asks for `name`. */
static const char *
certificate_for(const char *name)
{
	static char cn[64];
	X509 *cert;

	cr_assert(connect_both());
	SSL_set_fd(client, peer);
	if (name != NULL)
		SSL_set_tlsext_host_name(client, name);
	for (int i = 0; i < 20 && SSL_do_handshake(client) != 1; i++)
		turn();
	cert = SSL_get1_peer_certificate(client);
	cr_assert_not_null(cert);
	X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, cn, sizeof(cn));
	X509_free(cert);
	return cn;
}

Test(tls, the_name_chooses_the_certificate)
{
	cr_assert_str_eq(certificate_for("x.b.test"), "*.b.test");
	cr_assert_str_eq(certificate_for("X.B.TEST"), "*.b.test");
	cr_assert_str_eq(certificate_for("a.test"), "a.test");
	cr_assert_str_eq(certificate_for("b.test"), "a.test");
	cr_assert_str_eq(certificate_for(NULL), "a.test");
}

/* No client of TLS 1.2 makes the worker sign again: it gets an alert, and what it does then is its own affair. */
Test(tls, no_client_begins_a_second_handshake)
{
	SSL_CTX_set_max_proto_version(client_ctx, TLS1_2_VERSION);
	shake_hands();
	cr_assert_eq(SSL_renegotiate(client), 1);
	cr_assert_neq(SSL_do_handshake(client), 1);
	turn();
	cr_assert(s.fd != -1 && last == -EAGAIN);
	cr_assert_neq(SSL_do_handshake(client), 1);
	cr_assert_eq(ERR_GET_REASON(ERR_peek_last_error()), SSL_R_NO_RENEGOTIATION);
	cr_assert_eq(count(M_TLS_FULL), 1);
}

/* Its head is enough: no byte of such a record is kept. */
Test(tls, a_record_that_is_too_long_ends_the_connection)
{
	static const unsigned char longest[] = {23, 3, 3, 0x41, 0x00},
				   too_long[] = {23, 3, 3, 0x41, 0x01};

	shake_hands(); /* TLS 1.3: 2^14 + 256 bytes */
	cr_assert_eq(write(peer, longest, 5), 5);
	turn();
	cr_assert_eq(last, -EAGAIN, "it may come");
	shake_hands();
	cr_assert_eq(write(peer, too_long, 5), 5);
	turn();
	cr_assert(last == -EPROTO && s.fd == -1);
}

Test(tls, a_client_that_wants_another_protocol)
{
	shake_hands();
	SSL_CTX_set_alpn_protos(client_ctx, (const unsigned char *)"\x02h2", 3);
	cr_assert(connect_both());
	SSL_set_fd(client, peer);
	for (int i = 0; i < 5; i++, turn())
		(void)SSL_do_handshake(client);
	cr_assert_eq(
		ERR_GET_REASON(ERR_peek_last_error()), SSL_R_TLSV1_ALERT_NO_APPLICATION_PROTOCOL);
	cr_assert_eq(count(M_TLS_FAILED), 1);
}
