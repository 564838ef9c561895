/*
 * master/conf: the input is a configuration file, or after "ARGS\n" a command line, an argument a
 * line, or after "KEYS\n" an api_keys_file, or after "LIST\n" an endpoints_file.
 *
 * Held against it: what is accepted is within the bounds that other code relies on, equals itself,
 * the same bytes read again and what is written of it; what is refused names a line of the file and says something
 * printable.
 */
#include "master/config/conf.h"

#include "master/config/conf_keys.h"
#include "proto/http/http.h"
#include <sys/mman.h>
#include <unistd.h>

#include "tests/fuzz/check.h"

#define ARGS "ARGS\n"
#define KEYS "KEYS\n"
#define LIST "LIST\n"
#define POOL                                                                                       \
	"\npools: [{connector: nixl, name: p, prefill: [{url: 'http://a'}], decode: "              \
	"[{url: 'http://b'}]}]\n"
#define PREFIX 5 /* bytes of each of these */
#define ARGS_MAX 64

/* What is written into requests raw, and counted in eight bits. */
static void
check_terms(const struct conf_pool *p, const struct conf_endpoint *ep)
{
	CHECK(ep->receiver_init_port.n <= CONF_PORTS_MAX);
	CHECK(ep->receiver_init_port.n == ep->receiver_alloc_port.n);
	CHECK((ep->receiver_init_port.n > 0) ==
		(p->connector == CONNECTOR_LMCACHE && ep->role == ROLE_DECODE));
	CHECK(ep->receiver_host == NULL || strpbrk(ep->receiver_host, "\"\\ \t") == NULL);
	CHECK(ep->kv_addr == NULL || strpbrk(ep->kv_addr, "\r\n \"") == NULL);
	CHECK(ep->kv_addr == NULL || p->connector == CONNECTOR_P2P_NCCL);
}

static void
check_pool(const struct conf_pool *p)
{
	struct http_url url;
	const char *why;

	CHECK(p->name != NULL && strlen(p->name) > 0 && strlen(p->name) < 64);
	CHECK((unsigned)p->connector < CONNECTOR_N && (unsigned)p->policy < POLICY_N);
	CHECK((unsigned)p->engine < ENGINE_N && (unsigned)p->shake.handoff < HANDOFF_N);
	CHECK((unsigned)p->shake.remote_host < REMOTE_HOST_N);
	CHECK((unsigned)p->shake.transfer_mode < TRANSFER_N);
	CHECK((unsigned)p->shake.bootstrap < BOOTSTRAP_N);
	CHECK(p->shake.first_token < ROLE_N && p->shake.tokenize < ROLE_N &&
		p->shake.single_engine_role < SINGLE_ROLE_N);
	CHECK(p->shake.kv_lease_ms > 0 && p->shake.learn_ms > 0 && p->timeouts.kv_ready_ms > 0);
	CHECK(memchr(p->shake.cache_hit_threshold, '\0', CONF_FRACTION) != NULL);
	CHECK(p->shake.ready_messages >= READY_BY_PORTS && p->shake.ready_messages <= UINT8_MAX);
	CHECK(p->health_path[0] == '/');
	CHECK(p->timeouts.connect_ms > 0 && p->timeouts.prefill_ms > 0 &&
		p->timeouts.first_byte_ms > 0 && p->timeouts.stream_idle_ms > 0 &&
		p->timeouts.whole_answer_ms > 0);
	for (size_t i = 0; i < p->nendpoints; i++) {
		CHECK(p->endpoints[i].role < ROLE_N);
		CHECK(http_url_parse(p->endpoints[i].url, &url, &why) == 0);
		check_terms(p, &p->endpoints[i]);
	}
}

/* What --print-config writes reads as the same. */
static void
check_written(const struct conf *c)
{
	struct conf_error err;
	struct conf *again = NULL;
	char *text = NULL;
	size_t n = 0;
	FILE *out = open_memstream(&text, &n);

	CHECK(out != NULL);
	conf_write(c, out);
	CHECK(fclose(out) == 0);
	CHECK(conf_parse("fuzz.yaml", text, n, &again, &err) == 0);
	CHECK(conf_diff(c, again, NULL, NULL, &err) == 0);
	conf_free(&again);
	free(text);
}

static void
check_conf(const struct conf *c)
{
	size_t n = 0;

	CHECK(c->nlisten >= 1 && c->npools >= 1 && c->npools <= c->max_pools);
	CHECK(c->workers >= 1 && c->workers <= c->max_workers && c->max_workers <= 64);
	CHECK(c->flags_per_worker >= 64 && c->flags_per_worker % 64 == 0);
	CHECK(c->rise >= 1 && c->fall >= 1 && c->live.max_connections >= 1);
	for (size_t i = 0; i < c->nlisten; i++)
		CHECK(c->listen[i].port != 0 && c->listen[i].text != NULL);
	for (size_t i = 0; i < c->npools; i++) {
		check_pool(&c->pools[i]);
		n += c->pools[i].nendpoints;
	}
	CHECK(n <= c->max_endpoints);
	check_written(c);
}

static void
check_error(const struct conf_error *err, const uint8_t *text, size_t size)
{
	int lines = 2; /* libyaml sees the end of a file one line after its last newline */

	for (size_t i = 0; i < size; i++)
		lines += text[i] == '\n' || text[i] == '\r' ||
			 text[i] >= 0x80; /* YAML 1.1 has U+0085, U+2028 */
	CHECK(err->line >= 0 && err->line <= lines);
	CHECK(err->what[0] != '\0');
	for (const char *p = err->what; *p != '\0'; p++)
		CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
	for (const char *p = err->key; *p != '\0'; p++)
		CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
}

static void
check_file(const uint8_t *text, size_t size)
{
	struct conf_error err = {.line = 0};
	struct conf *c = NULL, *again = NULL;
	int rc = conf_parse("fuzz.yaml", text, size, &c, &err);

	CHECK(rc == conf_parse("fuzz.yaml", text, size, &again, &err));
	if (rc != 0) {
		CHECK(c == NULL);
		check_error(&err, text, size);
		return;
	}
	check_conf(c);
	CHECK(conf_diff(c, again, NULL, NULL, &err) == 0);
	conf_free(&c);
	conf_free(&again);
}

static void
check_args(const uint8_t *text, size_t size)
{
	char program[] = "pdrouter", *copy = malloc(size + 1), *argv[ARGS_MAX + 1] = {program};
	struct conf_error err = {.line = 0};
	struct conf_args args;
	struct conf *c = NULL;
	char *save = NULL;
	int argc = 1;

	CHECK(copy != NULL);
	memcpy(copy, text, size);
	copy[size] = '\0';
	for (char *p = strtok_r(copy, "\n", &save); p != NULL && argc < ARGS_MAX;
		p = strtok_r(NULL, "\n", &save))
		argv[argc++] = p;
	if (conf_args_parse(argc, argv, &args, &err) == 0 && args.file == NULL &&
		conf_from_args(&args, &c, &err) == 0)
		check_conf(c);
	else if (c == NULL && err.what[0] != '\0')
		check_error(&err, text, size);
	conf_free(&c);
	free(copy);
}

/* What workers count on, and what a line of the log or a page of a client shows. */
static void
check_keys(const struct conf *c)
{
	for (size_t i = 0; i < c->napi_keys; i++) {
		const struct conf_api_key *k = &c->api_keys[i];

		CHECK(k->name[0] != '\0' && strlen(k->name) <= CONF_KEY_NAME);
		CHECK(strspn(k->sha256, "0123456789abcdef") == 2 * (size_t)CONF_SHA256);
		for (const char *p = k->name; *p != '\0'; p++)
			CHECK((unsigned char)*p >= 0x20 && *p != 0x7f);
		for (size_t n = 0; n < k->npools; n++)
			CHECK(conf_pool_named(c, k->pools[n]) != NULL);
		for (size_t n = 0; n < i; n++)
			CHECK(strcmp(c->api_keys[n].name, k->name) != 0 &&
				strcmp(c->api_keys[n].sha256, k->sha256) != 0);
	}
}

/* The text between `before` and `after` is the name of a file with these bytes. */
static void
check_named(const char *before, const char *after, const uint8_t *text, size_t size)
{
	const int fd = memfd_create("fuzz", 0);
	struct conf_error err = {.line = 0};
	struct conf *c = NULL;
	char *conf;
	int n;

	CHECK(fd != -1 && write(fd, text, size) == (ssize_t)size);
	n = asprintf(&conf, "%s/proc/self/fd/%d%s", before, fd, after);
	CHECK(n > 0);
	if (conf_parse("fuzz.yaml", conf, (size_t)n, &c, &err) == 0) {
		check_keys(c);
		check_conf(c);
	} else {
		check_error(&err, text, size);
	}
	conf_free(&c);
	free(conf);
	CHECK(close(fd) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const size_t n = size >= PREFIX ? PREFIX : 0;

	if (n > 0 && memcmp(data, ARGS, n) == 0)
		check_args(data + n, size - n);
	else if (n > 0 && memcmp(data, KEYS, n) == 0)
		check_named("api_keys_file: ", POOL, data + n, size - n);
	else if (n > 0 && memcmp(data, LIST, n) == 0)
		check_named("pools: [{connector: nixl, name: p, endpoints_file: ",
			", prefill_labels: [x]}]\n", data + n, size - n);
	else
		check_file(data, size);
	return 0;
}
