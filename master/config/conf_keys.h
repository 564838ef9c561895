/*
 * Every configuration key, one row each: the parser, the reload and the lint test that compares
 * etc/pdrouter.yaml with it all walk these rows.  To add a key: a member of struct conf, a row here, and
 * the line in etc/pdrouter.yaml that the lint test asks for.
 *
 * K(path, type, member, min, max, default, class, doc) and L(..., member, count member, ...) for lists.
 * - min, max: of numbers; milliseconds of durations (DURATION_OR_0: or 0), bytes of sizes, length of
 *   texts, entries of lists
 * - default: as written in a file; NULL: the key is required; "(...)": computed, the text says how
 * - class: what a reload does with it (enum conf_class)
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "master/config/conf.h"
#include "shm/base/conf.h"

#define CONF_SEC UINT64_C(1000)
#define CONF_HOUR (3600 * CONF_SEC)
/* Children write a heartbeat every 500 ms, and the master reads it every 500 ms: a shorter watchdog would
 * kill healthy children. */
#define CONF_WATCHDOG_MIN (2 * CONF_SEC)
#define CONF_KIB UINT64_C(1024)
#define CONF_MIB (1024 * CONF_KIB)
#define CONF_GIB (1024 * CONF_MIB)

/* Mozilla's intermediate profile, as of version 5.7. */
#define CONF_TLS_CIPHERS                                                                           \
	"ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-GCM-SHA256:DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305"

// clang-format off
#define CONF_KEYS(K, L)											\
L("listen", LISTEN, listen, nlisten, 0, 16, "(0.0.0.0:8000; with tls.listen: [])", GENERATION,		\
	"addresses for clients: host:port, [IPv6]:port, or :port for all addresses")				\
L("admin.listen", LISTEN, admin_listen, nadmin_listen, 0, 16, "[]", GENERATION,				\
	"addresses for operators: a status page for browsers (/), /metrics, /health with engine addresses, /ready, /live, /version; such as 127.0.0.1:9101 or unix:/run/pdrouter/admin.sock; none: the clients' addresses answer these but the status page") \
K("admin.socket_mode", MODE, admin_mode, 0, 0, "0600", LIVE,						\
	"permissions of the unix sockets of admin.listen, in octal")					\
K("admin.socket_group", TEXT, admin_group, 0, 255, "", LIVE,						\
	"group of these sockets, by name; \"\": that of the process")					\
K("admin.api_keys_file", FILE, api_keys_file[DOOR_OPERATORS], 0, 4095, "", LIVE,				\
	"YAML list of {name, sha256, expires}: at admin.listen all paths but /live and /ready need one of these keys; read again on SIGHUP; \"\": they need none") \
K("metrics_on_client_port", BOOL, live.metrics_on_client_port, 0, 0, "false", LIVE,			\
	"/metrics is answered at the clients' addresses, too, although there is an admin.listen")			\
L("tls.certificates", CERTIFICATES, tls.certificates, tls.ncertificates, 0, 64, "[]", GENERATION,	\
	"certificates for clients, such as [{cert: /etc/pdrouter/cert.pem, key: /etc/pdrouter/key.pem}]; the name that a client asks for chooses, else the first") \
L("tls.listen", LISTEN, tls.listen, tls.nlisten, 0, 16, "[]", GENERATION,				\
	"addresses for clients that speak TLS, as in listen")						\
K("tls.client_ca", FILE, tls.client_ca, 0, 4095, "", GENERATION,					\
	"file with the authorities of clients' certificates, and their lists of revoked ones; \"\": clients need none") \
K("tls.min_version", TLS_VERSION, tls.min_version, 0, 0, "1.2", GENERATION,				\
	"1.2 or 1.3: the oldest version of TLS that is spoken")						\
K("tls.ciphers", TEXT, tls.ciphers, 1, 2000, CONF_TLS_CIPHERS, GENERATION,				\
	"ciphers of TLS 1.2, as OpenSSL writes them; those of TLS 1.3 are OpenSSL's own")		\
K("tls.max_handshakes", COUNT, tls.max_handshakes, 1, 1000000, "1024", GENERATION,			\
	"handshakes in progress in one worker; a further connection is closed")				\
K("tls.watch", BOOL, tls.watch, 0, 0, "false", LIVE,							\
	"true: changed files of tls, also of pools, are applied without SIGHUP")					\
L("cors.origins", ORIGINS, cors_origins, ncors_origins, 0, 64, "[]", GENERATION,				\
	"origins whose web pages may read answers, such as [\"https://chat.example.net\"], or [\"*\"]; []: the engines' own lines are passed on") \
L("cors.headers", FIELDS, cors_headers, ncors_headers, 0, 64, "*", GENERATION,			\
	"headers that such a page may send; *: any")							\
K("cors.credentials", BOOL, cors_credentials, 0, 0, "false", GENERATION,					\
	"true: such a page may send cookies and its user's certificates; needs origins by name")		\
K("workers", WORKERS, workers, 1, 64, "auto", GENERATION,						\
	"worker processes; auto: the number of CPUs in the affinity mask, at most 8")				\
K("limits.max_body", SIZE, live.max_body, CONF_KIB, 2 * CONF_GIB, "64MiB", LIVE,			\
	"size of a request body; a larger one gets 413")								\
K("limits.max_head", SIZE, live.max_head, CONF_KIB, 64 * CONF_KIB, "32KiB", LIVE,				\
	"size of a request line and its headers; a larger head gets 431")					\
K("limits.max_connections", COUNT, live.max_connections, 1, 1000000, "65536", LIVE,			\
	"client connections of one worker")								\
K("limits.max_answer", SIZE, live.max_answer, CONF_KIB, CONF_GIB, "16MiB", LIVE,			\
	"size of a prefill answer, and of all decode answers of a request together where they are rewritten; a larger one fails") \
K("limits.max_fanout", COUNT, live.max_fanout, 1, CONF_FANOUT_MAX, "8", LIVE,					\
	"branches of one request (samples or prompts); more: a decode engine alone")				\
K("limits.max_buffered", SIZE, live.max_buffered, CONF_MIB, 1024 * CONF_GIB, "1GiB", LIVE,		\
	"bytes of request bodies and buffered answers in all workers together (or limits.max_body, where that is more); more gets 503") \
K("client.head_timeout", DURATION, live.client_head_ms, 1, CONF_HOUR, "10s", LIVE,			\
	"time from the first to the last byte of a request's head")							\
K("client.body_timeout", DURATION, live.client_body_ms, 1, CONF_HOUR, "30s", LIVE,			\
	"time between two reads of a request body; the whole body has the same time plus 1 s for each 512 bytes")							\
K("client.idle_timeout", DURATION, live.client_idle_ms, 1, 24 * CONF_HOUR, "75s", LIVE,		\
	"time that a kept-alive connection may have no request")							\
K("client.write_timeout", DURATION, live.client_write_ms, 1, 24 * CONF_HOUR, "300s", LIVE,		\
	"time that a client may take no byte of its answer")							\
K("client.tcp_user", DURATION_OR_0, live.client_tcp_user_ms, CONF_SEC, CONF_HOUR, "20s", LIVE,		\
	"time that a client's host may acknowledge nothing; the client has left then; at least 1s; 0: the kernel's own limits") \
K("client.max_inflight", COUNT, live.client_max_inflight, 0, 1000000, "0", LIVE,			\
	"requests of one client (API key, else address) at once, in all workers together; more gets 429; 0: no limit") \
K("client.rate", RATE, live.client_rate, 0, 1000000, "0", LIVE,					\
	"requests of one client per second (10), minute (30/m) or hour (100/h); more gets 429; 0: no limit") \
K("client.burst", COUNT, live.client_burst, 0, 1000000, "0", LIVE,					\
	"token-bucket size of client.rate; 0: equal to the rate")				\
K("client.max_silent_connections", COUNT, max_silent, 0, 1000000, "256", GENERATION,			\
	"connections of one address (IPv6: its /64) in one worker that have sent no complete head for a second; a further one is closed; those of client.proxy_networks do not count; 0: no limit") \
L("client.proxy_networks", NETWORKS, proxy_networks, nproxy_networks, 0, 64, "[]", GENERATION,		\
	"networks of proxies before the router: limits and the log take the client's address from their X-Forwarded-For") \
K("client.proxy_protocol", BOOL, proxy_protocol, 0, 0, "false", GENERATION,				\
	"true: connections from client.proxy_networks begin with a header of the PROXY protocol, version 1 or 2")	\
K("client.forward_address", BOOL, forward_address, 0, 0, "false", GENERATION,				\
	"true: engines are sent the client's address in X-Forwarded-For and Forwarded, and http or https in X-Forwarded-Proto; what a client says there itself is dropped, what client.proxy_networks say is extended") \
K("client.id_header", HEADER, client_id_header, 0, 127, "", GENERATION,				\
	"header that identifies a client in place of API key and address, such as X-Forwarded-For (its last address); only behind a proxy that sets it; \"\": none") \
K("upstream.idle_timeout", DURATION, live.upstream_idle_ms, 1, CONF_HOUR, "4s", LIVE,			\
	"time that an idle connection to an engine is kept; uvicorn closes its side at 5s")				\
K("upstream.max_idle", COUNT, live.upstream_max_idle, 0, 65536, "64", LIVE,				\
	"idle connections kept per worker and endpoint")						\
K("drain_timeout", DURATION, drain_ms, 0, 24 * CONF_HOUR, "2m", LIVE,					\
	"time that streams may continue after SIGTERM, and those of old generations whose room a reload needs") \
K("reload_drain_timeout", DURATION, reload_drain_ms, 0, 24 * CONF_HOUR, "0s", LIVE,			\
	"time that streams of the old workers may continue after a reload that replaces them; 0: no limit") \
K("upgrade_drain_timeout", DURATION, upgrade_drain_ms, 0, 24 * CONF_HOUR, "0s", LIVE,			\
	"time that streams of the older instance may continue after an upgrade; 0: no limit")		\
K("upgrade_trial", DURATION, upgrade_trial_ms, 0, CONF_HOUR, "10s", LIVE,				\
	"if the new instance of an upgrade ends within this time after it began to serve, the older one serves again") \
K("worker_watchdog", DURATION_OR_0, watchdog_ms, CONF_WATCHDOG_MIN, CONF_HOUR, "10s", LIVE,			\
	"a worker without a heartbeat for this time is killed and replaced; at least 2s; 0 disables the watchdog")			\
K("stats_interval", DURATION, stats_interval_ms, 50, CONF_HOUR, "1s", LIVE,				\
	"time between two reads of an engine's /metrics; a quarter of it while the load of others changes")							\
K("health_interval", DURATION, health_interval_ms, 50, CONF_HOUR, "2s", LIVE,				\
	"time between two probes of an engine's health_path")						\
K("health_timeout", DURATION, health_timeout_ms, 1, CONF_HOUR, "5s", LIVE,				\
	"a probe without an answer after this time has failed")						\
K("rise", COUNT, rise, 1, 1000, "2", LIVE,								\
	"successful probes in a row that bring an engine up")							\
K("fall", COUNT, fall, 1, 1000, "3", LIVE,								\
	"failed probes in a row that take an engine down")							\
L("dns_servers", SERVERS, dns_servers, ndns_servers, 0, 8, "[]", LIVE,					\
	"name servers for the addresses of engines, such as [\"10.0.0.2\", \"[fd00::2]:5353\"]; []: the servers in /etc/resolv.conf") \
K("log_level", LOG_LEVEL, live.log_level, 0, 0, "info", LIVE,						\
	"error, warn, info or debug")									\
K("log_format", LOG_FORMAT, live.log_format, 0, 0, "logfmt", LIVE,					\
	"logfmt (key=value) or json; off: errors alone")									\
K("user", TEXT, user, 0, 255, "", RESTART,								\
	"user of workers, notifier and exporter where pdrouter was started as root, by name or number; \"\": that of the start") \
K("group", TEXT, group, 0, 255, "", RESTART,								\
	"their group; \"\": that of `user`")									\
K("sandbox", BOOL, sandbox, 0, 0, "true", RESTART,							\
	"workers, notifier and exporter can make only the system calls that they need; false: where a new C library needs others") \
K("log_to", LOG_TO, log_to, 0, 0, "stderr", RESTART,							\
	"stderr, or journald with each field as PDR_...")								\
K("log_sample", PART, live.log_sample, 0, 0, "1", LIVE,						\
	"part of the good requests that are logged, such as 0.01; all others always are")				\
K("tracing.sample", PART, live.trace_sample, 0, 0, "0", LIVE,						\
	"part of the requests without a traceparent of their client that get one")				\
K("tracing.otlp", TEXT, trace_otlp, 0, 255, "", GENERATION,						\
	"OTLP/HTTP collector that sampled traces are exported to, such as http://127.0.0.1:4318; \"\": none")	\
K("tracing.ring", SIZE, trace_ring_bytes, 16 * CONF_KIB, 256 * CONF_MIB, "1MiB", RESTART,		\
	"room for the finished spans of one worker until they are exported; a span without room is dropped") \
K("control_socket", TEXT, control_socket, 0, 107, "/run/pdrouter/control.sock", RESTART,		\
	"path of the socket that pdctl connects to; \"\": none")						\
K("control_socket_mode", MODE, control_mode, 0, 0, "0600", LIVE,					\
	"permissions of the control socket, in octal")							\
K("control_socket_group", TEXT, control_group, 0, 255, "", LIVE,						\
	"group of the control socket, by name; \"\": that of the process")				\
K("state_file", TEXT, state_file, 0, 4000, "(\"\"; under systemd state.json in its StateDirectory)", RESTART, \
	"path of the file that keeps drains over a restart or an upgrade; \"\": none")				\
K("lmcache.listen", NOTICES, lmcache_listen, 0, 255, "(\"\"; tcp://*:7500 where an lmcache pool waits for ready messages)", LIVE, \
	"address where LMCache's ready messages arrive, such as tcp://*:7500; \"\": none")		\
L("lmcache.networks", NETWORKS, lmcache_networks, nlmcache_networks, 0, 64, "[]", LIVE,		\
	"networks of the peers that may send to lmcache.listen, such as [10.1.0.0/16]; the connection of another peer is closed; []: this machine, and the networks of engines of lmcache pools") \
K("announce.listen", NOTICES, announce_listen, 0, 255, "", LIVE,					\
	"address where engines announce themselves (P2pNccl), such as tcp://*:30001; \"\": none")	\
K("announce.forget", DURATION, announce_forget_ms, CONF_SEC, CONF_HOUR, "10s", LIVE,			\
	"an announced engine that sends nothing for this time is removed; engines send every 3s")		\
K("siblings.listen", NOTICES, siblings_listen, 0, 255, "", RESTART,					\
	"address where other routers before the same engines read which prompts this one has sent where, such as tcp://0.0.0.0:9310; \"\": nowhere") \
L("siblings.routers", ROUTERS, siblings_routers, nsiblings_routers, 0, 16, "[]", LIVE,			\
	"siblings.listen of these routers, such as [\"tcp://10.0.0.2:9310\"]; this router's own address may be among them") \
L("siblings.networks", NETWORKS, siblings_networks, nsiblings_networks, 0, 64, "[]", LIVE,		\
	"networks of the routers that may connect to siblings.listen, such as [10.0.0.0/24]; []: the addresses in siblings.routers") \
K("siblings.secret_file", FILE, siblings_secret_file, 0, 4095, "", RESTART,				\
	"file with a secret of 16 bytes or more, the same at all routers: messages of its holders alone count") \
K("siblings.ring", SIZE, siblings_ring_bytes, 16 * CONF_KIB, 256 * CONF_MIB, "256KiB", RESTART,		\
	"room for what one worker has for other routers until it is sent; what finds no room is not sent")	\
K("shared_memory.max_workers", COUNT, max_workers, 1, 64, "16", RESTART,				\
	"highest value of `workers` without a restart")							\
K("shared_memory.max_endpoints", COUNT, max_endpoints, 2, 65536, "1024", RESTART,			\
	"endpoints of all pools together, draining ones included")				\
K("shared_memory.max_pools", COUNT, max_pools, 1, 256, "16", RESTART,					\
	"different pool names since the start, removed pools included")				\
K("shared_memory.flags_per_worker", FLAGS, flags_per_worker, 64, 65536, "4096", RESTART,		\
	"transfers that one worker can wait for at once; a multiple of 64")					\
K("shared_memory.queue", COUNT, queue_slots, 0, 65536, "1024", RESTART,					\
	"queued requests of one pool: the highest value of `queue_size` without a restart")			\
K("shared_memory.running_requests", COUNT, running_requests, 0, 65536, "512", RESTART,			\
	"requests in flight of one worker that `pdctl requests` shows; others are counted; 0: none")		\
K("shared_memory.recent_requests", COUNT, recent_requests, 0, 1000000, "10000", RESTART,		\
	"requests that have ended and that `pdctl request` finds, of all workers at the start; 0: none")	\
K("shared_memory.clients", CLIENTS, client_entries, 8, 65536, "4096", RESTART,				\
	"clients whose limits are tracked at once; a multiple of 8")					\
K("shared_memory.max_api_keys", COUNT, max_api_keys, 1, 65536, "1024", RESTART,				\
	"keys in the api_keys_file and the admin.api_keys_file together")				\
K("shared_memory.prefix_index", SIZE, prefix_index_bytes, 0, 64 * CONF_GIB, "64MiB", RESTART,		\
	"memory for which engine has which beginnings of prompts (policy cache_aware), taken as it is used; 0B: none")	\
K("api_keys_file", FILE, api_keys_file[DOOR_CLIENTS], 0, 4095, "", LIVE,						\
	"YAML list of {name, sha256, ...}: clients need one of these keys; read again on SIGHUP; \"\": clients need none") \
K("watch", BOOL, watch, 0, 0, "false", LIVE,								\
	"true: a change of the api_keys_file, or of the admin.api_keys_file, is applied without SIGHUP")	\
L("pools", POOLS, pools, npools, 1, 256, NULL, LIVE,							\
	"each pool is a set of prefill and decode engines for one or more models")

#define CONF_POOL_KEYS(K, L)										\
K("name", NAME, name, 1, 63, "(the first model, else pool1, pool2 ...)", LIVE,				\
	"name of the pool in log, metrics and /health")									\
L("models", MODELS, models, nmodels, 0, 256, "[]", LIVE,						\
	"model names that clients use; []: learned from the engines' /v1/models")				\
K("connector", CONNECTOR, connector, 0, 0, NULL, LIVE,							\
	"how the KV cache moves: nixl, orchestrated, lmcache, sglang, shared_storage, p2p_nccl or mooncake") \
K("policy", POLICY, policy, 0, 0, "least_loaded", LIVE,						\
	"least_loaded, round_robin, power_of_two, random, session, prefix or cache_aware")				\
K("prefill_policy", POLICY, policies[ROLE_PREFILL], 0, 0, "(policy, if given, else cache_aware)", LIVE,	\
	"policy for prefill engines")									\
K("decode_policy", POLICY, policies[ROLE_DECODE], 0, 0, "(policy)", LIVE,				\
	"policy for decode engines")									\
K("prefill_load", LOAD, loads[ROLE_PREFILL], 0, 0, "tokens", LIVE,					\
	"load of a prefill engine: tokens (estimated, of prompts that are not done) or requests")		\
K("decode_load", LOAD, loads[ROLE_DECODE], 0, 0, "requests", LIVE,					\
	"load of a decode engine: tokens or requests")									\
K("session_header", HEADER, session_header, 0, 127, "X-Session-Id", LIVE,				\
	"header whose value keeps a session at one engine (policy session); \"\": none")			\
K("session_member", TEXT, session_member, 0, 127, "", LIVE,						\
	"member of the body, such as user, that does the same where the header is missing; \"\": none")			\
K("prefix_bytes", SIZE, prefix_bytes, 16, 64 * CONF_KIB, "1KiB", LIVE,				\
	"bytes at the start of a prompt that the policy prefix compares")						\
K("pairing", PAIRING, pairing, 0, 0, "prefer", LIVE,							\
	"prefer or require: both engines of a request are in the same group")				\
K("slow_start", DURATION, slow_start_ms, 0, CONF_HOUR, "0s", LIVE,					\
	"time from an engine's recovery until it gets its full share; 0: full share at once")					\
K("engine", ENGINE, engine, 0, 0, "(vllm; with connector sglang: sglang)", LIVE,			\
	"vllm or sglang: decides the names of metrics and the default of health_path")					\
K("routing_threshold", COUNT_OR_AUTO, shake.routing_threshold, 0, 1000000000, "0", LIVE,		\
	"estimated prompt tokens from which a prefill engine is used; below, decode serves alone; 0: always prefill; auto: measured")	\
K("allow_route_header", BOOL, shake.allow_route_header, 0, 0, "false", LIVE,				\
	"true: a client may choose by X-PD-Route: direct or disaggregated")			\
K("single_engine_role", SINGLE_ROLE, shake.single_engine_role, 0, 0, "auto", LIVE,			\
	"role that serves embeddings, /tokenize and other paths of one engine: prefill, decode, or auto: decode for paths that generate text, prefill for the others") \
K("disaggregate_agent_paths", BOOL, shake.disaggregate_agent_paths, 0, 0, "false", LIVE,		\
	"true: a prefill and a decode engine serve /v1/messages and /v1/responses, as they serve chat: vLLM 0.19 and later; false: single_engine_role") \
K("cached_tokens_from", ROLE, shake.cached_tokens_from, 0, 0, "decode", LIVE,				\
	"prefill or decode: engine whose cached_tokens stand in the usage of an answer")		\
K("timeouts.connect", DURATION, timeouts.connect_ms, 1, CONF_HOUR, "2s", LIVE,				\
	"to an established connection with an engine")								\
K("timeouts.prefill", DURATION, timeouts.prefill_ms, 1, 24 * CONF_HOUR, "300s", LIVE,			\
	"from sending to the end of the prefill answer")							\
K("timeouts.first_byte", DURATION, timeouts.first_byte_ms, 1, 24 * CONF_HOUR, "120s", LIVE,		\
	"from sending to the first byte of the decode engine's stream")						\
K("timeouts.stream_idle", DURATION, timeouts.stream_idle_ms, 1, 24 * CONF_HOUR, "60s", LIVE,		\
	"between two bytes of the decode engine's answer; comments that keep a stream alive are bytes")	\
K("timeouts.whole_answer", DURATION, timeouts.whole_answer_ms, 1, 24 * CONF_HOUR, "600s", LIVE,		\
	"from sending to the first byte of an answer in one piece, with all retries")			\
K("timeouts.request", DURATION, timeouts.request_ms, 0, 24 * CONF_HOUR, "0s", LIVE,			\
	"from a request's last byte to the end of its answer, waiting included; 0: no limit")				\
K("timeouts.down_grace", DURATION, timeouts.down_grace_ms, 0, CONF_HOUR, "10s", LIVE,			\
	"time for which an engine must be down before its streams end; one that comes up meanwhile keeps them")	\
K("timeouts.tcp_user", DURATION_OR_0, timeouts.tcp_user_ms, CONF_SEC, CONF_HOUR, "20s", LIVE,		\
	"time that an engine's host may acknowledge nothing; its connection has failed then; at least 1s; 0: the kernel's own limits") \
K("allow_timeout_header", BOOL, rescue.allow_timeout_header, 0, 0, "false", LIVE,			\
	"true: a client may set a deadline by X-Request-Timeout-Ms")					\
K("retries", COUNT, rescue.retries, 0, 10, "2", LIVE,							\
	"other engines tried for a request that failed before the first byte of its answer; 0: none")			\
K("retry_budget", COUNT, rescue.retry_budget, 0, 100, "20", LIVE,					\
	"retries allowed, in percent of the requests of the last 10 s; ten are always allowed")			\
K("fallback", FALLBACK, rescue.fallback, 0, 0, "(direct; with sglang and p2p_nccl: none)", LIVE,	\
	"when no prefill engine is left to try: direct: a decode engine serves the request alone; none: the client gets the error") \
K("fallback_budget", COUNT, rescue.fallback_budget, 0, 1000000000, "8192", LIVE,			\
	"prompt tokens per second and decode engine that fallback may send there; more requests wait in the queue, or get 503; 0: no limit") \
K("resume", BOOL, rescue.resume, 0, 0, "false", LIVE,							\
	"true: when a decode engine dies in the middle of a stream, another one continues the stream (counts as a retry)")				\
K("eject_failures", COUNT, ejection.failures, 0, 255, "5", LIVE,					\
	"failures in a row that eject an engine for eject_time; 0 disables this check")		\
K("eject_rate", COUNT, ejection.rate, 0, 100, "50", LIVE,						\
	"error percentage of the last 10 s that ejects an engine; 0 disables this check")	\
K("max_ejected", COUNT, ejection.max_percent, 0, 100, "50", LIVE,					\
	"highest percentage of the engines of one role that may be ejected at once")				\
K("eject_time", DURATION, ejection.time_ms, 1, CONF_HOUR, "10s", LIVE,					\
	"time until an ejected engine gets one trial request; doubled after each failed trial")		\
K("eject_max_time", DURATION, ejection.max_ms, 1, 24 * CONF_HOUR, "(300s, or eject_time where that is more)", LIVE, \
	"highest value that eject_time is doubled to")									\
K("eject_slow", BOOL, ejection.slow, 0, 0, "false", LIVE,						\
	"true: a slow engine (outlier) is ejected, too; false: it only gets fewer requests")		\
K("outlier.factor", COUNT, outlier.factor, 0, 1000, "3", LIVE,						\
	"times the median of its peers from which an engine is slow; its share falls in proportion; 0: engines are not compared") \
K("outlier.min_samples", COUNT, outlier.min_samples, 1, 31, "20", LIVE,				\
	"measured prefills, or seconds of streams, that an engine needs to be compared")		\
K("queue_size", COUNT, queue.size, 0, 65536, "100", LIVE,						\
	"requests that may wait while all engines are at max_inflight (at most shared_memory.queue), of one model among several half of that; more gets 429; 0: no queue") \
K("queue_timeout", DURATION, queue.timeout_ms, 1, CONF_HOUR, "60s", LIVE,				\
	"time that a request may wait in the queue; then it gets 503")							\
K("allow_priority", BOOL, queue.allow_priority, 0, 0, "false", LIVE,					\
	"true: a client may set its priority in the queue, by priority_header or the body's priority; the lowest integer goes first") \
K("priority_header", HEADER, priority_header, 0, 127, "X-Vllm-Priority", LIVE,			\
	"header with that priority; \"\": only the body's member")							\
K("health_path", PATH, health_path, 1, 255, "(/health; with sglang: /ready)", LIVE,			\
	"path of health probes")									\
K("tls.ca", FILE, tls.ca, 0, 4095, "", GENERATION,							\
	"file with the authorities of engines' certificates, and their lists of revoked ones; \"\": those of the system; for URLs that begin with https://") \
K("tls.cert", FILE, tls.cert, 0, 4095, "", GENERATION,							\
	"file with the certificate that the router shows these engines, and its chain; PEM form; \"\": none")	\
K("tls.key", FILE, tls.key, 0, 4095, "", GENERATION,							\
	"file with its private key, without a pass phrase; PEM form")					\
K("tls.server_name", ADDRESS_HOST, tls.server_name, 0, 255, "", GENERATION,				\
	"name that their certificates must have, and that they are asked for; \"\": the host of the URL")	\
K("tls.verify", BOOL, tls.verify, 0, 0, "true", GENERATION,						\
	"false: any certificate is accepted, so another host may be the engine")			\
K("engine_api_key_file", FILE, engine_api_key_file, 0, 4095, "", LIVE,						\
	"file with the key that these engines are sent, in place of the client's; \"\": none")			\
K("trust_found", BOOL, trust_found, 0, 0, "false", LIVE,						\
	"true: engines found by dns and announcements are sent that key, too")				\
K("load_metrics.running", TEXT, metric_running, 0, 127, "", LIVE,					\
	"engine metric with the number of running requests; \"\": the names of vLLM and SGLang")		\
K("load_metrics.waiting", TEXT, metric_waiting, 0, 127, "", LIVE,					\
	"engine metric with the number of waiting requests; \"\": the names of vLLM and SGLang")									\
K("endpoints_file", FILE, endpoints_file, 0, 4095, "", LIVE,						\
	"YAML list of {url, role} or {url, label} in place of prefill and decode; read again on SIGHUP") \
K("fleet_file", FILE, fleet_file, 0, 4095, "", LIVE,							\
	"fleet file of pdctl fleet; its engines in place of prefill and decode; read again on SIGHUP")	\
K("watch", BOOL, watch, 0, 0, "false", LIVE,								\
	"true: a change of the endpoints_file or fleet_file is applied without SIGHUP")			\
L("prefill_labels", LABELS, prefill_labels, nprefill_labels, 0, 64, "[]", LIVE,			\
	"labels of the endpoints_file that mean prefill")						\
L("decode_labels", LABELS, decode_labels, ndecode_labels, 0, 64, "[]", LIVE,				\
	"labels of the endpoints_file that mean decode")						\
L("dns", DNS, dns, ndns, 0, 64, "[]", LIVE,								\
	"names whose addresses are engines; looked up again when their TTL ends")				\
K("kv_events", KV_EVENTS, kv_events, 0, 63, "", LIVE,							\
	"where its engines publish KV events, such as tcp://*:5557 (*: at each engine's own address); \"\": nowhere") \
K("kv_events_replay", KV_EVENTS, kv_events_replay, 0, 63, "", LIVE,					\
	"where they send missed KV events again, such as tcp://*:5558; \"\": nowhere")			\
L("announce_networks", ANNOUNCED, announce_networks, nannounce_networks, 0, 64, "[]", LIVE,		\
	"networks whose engines may announce themselves; \"10.1.0.0/16 from 10.9.0.0/24\": others may do it for them")			\
L("prefill", PREFILL, endpoints, nendpoints, 0, 65536, "[]", LIVE,					\
	"prefill engines")										\
L("decode", DECODE, endpoints, nendpoints, 0, 65536, "[]", LIVE,					\
	"decode engines")

/* Keys of the map that a pool has for its connector, such as `lmcache: {first_token: decode}`.
 * shm/base/connector_list.h says which connector has which keys. */
#define CONF_CONNECTOR_KEYS(K)										\
K("handoff", HANDOFF, shake.handoff, 0, 0, "(kv_transfer_params; with mooncake: transfer_id)", LIVE,	\
	"member that carries the KV parameters to decode; orchestrated: kv_transfer_params or disagg_prefill_resp; mooncake: transfer_id (vLLM 0.17 and later) or kv_transfer_params (before)") \
K("remote_host", REMOTE_HOST, shake.remote_host, 0, 0, "(keep; with orchestrated: prefill_host)", LIVE,	\
	"keep: the host that the prefill engine names; prefill_host: the host of its URL instead")	\
K("transfer_mode", TRANSFER_MODE, shake.transfer_mode, 0, 0, "pull", LIVE,				\
	"pull: the decode engine fetches the KV; push: the prefill engine sends the KV, both legs start at once") \
K("kv_lease", DURATION, shake.kv_lease_ms, 1, CONF_HOUR, "25s", LIVE,					\
	"age at which KV parameters are no longer used and prefill is done again")			\
K("fanout", BOOL, shake.fanout, 0, 0, "false", LIVE,							\
	"true: n > 1 becomes n branches of one sample each; false: the decode engine serves n > 1 alone") \
K("ready_messages", COUNT_OR_AUTO, shake.ready_messages, 0, 255, "auto", LIVE,				\
	"messages per transfer that say that the KV has arrived; auto: one for each receiver_init_port; 0: none, the prefill answer starts decode") \
K("kv_ready_timeout", DURATION, timeouts.kv_ready_ms, 1, CONF_HOUR, "10s", LIVE,			\
	"from the prefill answer to the last ready message; then decode starts without the KV")	\
K("first_token", FIRST_TOKEN, shake.first_token, 0, 0, "prefill", LIVE,				\
	"engine that makes the client's first token: prefill (it is sent before the KV has arrived) or decode (for tools and reasoning)") \
K("tokenize", ROLE, shake.tokenize, 0, 0, "prefill", LIVE,						\
	"role whose engines turn prompts into tokens: prefill or decode")				\
K("bootstrap", BOOTSTRAP, shake.bootstrap, 0, 0, "learned", LIVE,					\
	"bootstrap address of the prefill engine: learned (or configured at the endpoint), or stream: read from its first event") \
K("learn_timeout", DURATION, shake.learn_ms, 1, CONF_HOUR, "2s", LIVE,					\
	"how long a request waits until its prefill engine's bootstrap address is known")		\
K("cache_hit_threshold", FRACTION, shake.cache_hit_threshold, 0, CONF_FRACTION - 1, "", LIVE,		\
	"share of cached prompt tokens, such as 0.8, above which the decode engine, asked first, serves alone; \"\": prefill is asked first")

/* The maps themselves: one in a pool for each connector. */
#define CONF_CONNECTOR_MAP(id, word, ...)								\
	{ .path = #word, .type = CONF_T_CONNECTOR_MAP, .off = offsetof(struct conf_pool, shake),		\
	  .def = "(none)", .class = CONF_LIVE, .doc = "keys of this connector" },

/* Keys of an endpoint in every source; `at`: the member of the source's struct. */
#define CONF_SHARE_KEYS(K, at)										\
K("max_inflight", COUNT, at max_inflight, 0, 1000000, "0", LIVE,					\
	"requests at once, from all workers together; 0: no limit")					\
K("weight", COUNT, at weight, 1, CONF_WEIGHT_MAX, "1", LIVE,							\
	"share relative to the other engines, 1 to 100")							\
K("group", NAME, at group, 0, 63, "", LIVE,								\
	"rack or NVLink domain, used by pairing")								\
K("bootstrap_host", ADDRESS_HOST, at bootstrap_host, 0, 255, "", LIVE,					\
	"prefill of SGLang and Mooncake: host where decode engines ask for the KV; \"\": the host of the URL") \
K("bootstrap_port", COUNT, at bootstrap_port, 0, 65535, "0", LIVE,					\
	"port for that; 0: SGLang's is learned from /server_info, Mooncake's is 8998")			\
K("receiver_host", ADDRESS_HOST, at receiver_host, 0, 255, "", LIVE,					\
	"lmcache decode: host where its LMCache listens; \"\": the host of the URL")				\
K("receiver_init_port", PORTS, at receiver_init_port, 0, CONF_PORTS_MAX, "[]", LIVE,			\
	"lmcache decode: a port for each tensor-parallel rank, such as [7300, 7301]")			\
K("receiver_alloc_port", PORTS, at receiver_alloc_port, 0, CONF_PORTS_MAX, "[]", LIVE,			\
	"lmcache decode: as many alloc ports")									\
K("kv_addr", KV_ADDR, at kv_addr, 0, 127, "", LIVE,							\
	"p2p_nccl: host:port of the engine's KV transfers, or :port at the host of the URL; \"\": as announced") \
K("kv_events", KV_EVENTS, at kv_events, 0, 63, "", LIVE,						\
	"where the engine publishes KV events, such as tcp://*:5557 (*: at its own address); \"\": as the pool says") \
K("kv_events_replay", KV_EVENTS, at kv_events_replay, 0, 63, "", LIVE,					\
	"where it sends missed KV events again; \"\": as the pool says")					\
K("dp_ranks", COUNT, at dp_ranks, 0, 1024, "0", LIVE,							\
	"data-parallel ranks that requests are spread over by X-data-parallel-rank; 0: the engine chooses")

/* An entry of `tls.certificates`. */
#define CONF_CERTIFICATE_KEYS(K)									\
K("cert", FILE, cert, 1, 4095, NULL, GENERATION,							\
	"file with the certificate and, after it, those between it and one that clients know; PEM form")	\
K("key", FILE, key, 1, 4095, NULL, GENERATION,								\
	"file with its private key, without a pass phrase; PEM form")

/* An entry of `prefill` and `decode`. */
#define CONF_ENDPOINT_KEYS(K, L)									\
K("url", URL, url, 1, 511, NULL, LIVE,									\
	"http://host[:port][/prefix], or https://")									\
CONF_SHARE_KEYS(K, )

/* An entry of `dns`. */
#define CONF_DNS_KEYS(K, L)										\
K("name", HOST, name, 1, 253, NULL, LIVE,								\
	"as the name servers know it; of an SRV record: _http._tcp.prefill.example.net")		\
K("port", COUNT, port, 0, 65535, "0", LIVE,								\
	"port of all addresses; 0: SRV records name hosts and ports")					\
K("scheme", SCHEME, scheme, 0, 0, "http", LIVE,								\
	"http or https: how all of its engines are spoken to")						\
K("role", ROLE, as.role, 0, 0, NULL, LIVE,								\
	"prefill or decode")										\
CONF_SHARE_KEYS(K, as.)

/* An entry of an endpoints_file. */
#define CONF_FILE_KEYS(K, L)										\
CONF_ENDPOINT_KEYS(K, L)										\
K("role", ROLE, role, 0, 0, "(by label)", LIVE,							\
	"prefill or decode")										\
K("label", LABEL, label, 1, 255, "(by role)", LIVE,							\
	"one of the pool's prefill_labels or decode_labels")

/* An entry of the api_keys_file. */
#define CONF_CLIENT_KEY_KEYS(K, L)									\
K("name", KEY_NAME, name, 1, CONF_KEY_NAME, NULL, LIVE,							\
	"name of the key in log and metrics")								\
K("sha256", SHA256, sha256, 0, 0, NULL, LIVE,								\
	"SHA-256 of the key in 64 hex digits, as `pdctl key new` writes it")				\
L("models", LABELS, models, nmodels, 0, 256, "[]", LIVE,						\
	"models that the key may use, such as [llama-8b, \"qwen*\"]; []: all")				\
L("pools", LABELS, pools, npools, 0, 256, "[]", LIVE,							\
	"pools that the key may use; []: all")								\
K("rate", RATE, terms.rate, 0, 1000000, "0", LIVE,							\
	"in place of client.rate, with a burst of the same size; 0: client.rate holds")			\
K("max_inflight", COUNT, terms.max_inflight, 0, 1000000, "0", LIVE,					\
	"in place of client.max_inflight; 0: client.max_inflight holds")				\
K("tokens_per_minute", COUNT, terms.tokens_per_minute, 0, 1000000000, "0", LIVE,			\
	"tokens of prompts and answers together that engines report; more gets 429; 0: no limit")	\
K("priority_max", PRIORITY, terms.priority_max, 0, 0, "-2147483648", LIVE,				\
	"most urgent priority in the queue: a lower integer counts as this one")			\
K("expires", DATE, terms.expires_s, 0, 0, "never", LIVE,						\
	"date such as 2027-01-31, or 2027-01-31T12:00:00Z, from which on the key is refused")
// clang-format on

/* An entry of the admin.api_keys_file. */
#define CONF_ADMIN_KEY_KEYS(K, L)                                                                  \
	K("name", KEY_NAME, name, 1, CONF_KEY_NAME, NULL, LIVE, "name of the key in the log")      \
	K("sha256", SHA256, sha256, 0, 0, NULL, LIVE,                                              \
		"SHA-256 of the key in 64 hex digits, as `pdctl key new` writes it")               \
	K("expires", DATE, terms.expires_s, 0, 0, "never", LIVE,                                   \
		"date such as 2027-01-31, or 2027-01-31T12:00:00Z, from which on the key is refused")
// clang-format on

/* The form of a value; conf_value.c has a row for each. */
enum conf_type {
	CONF_T_COUNT,
	CONF_T_COUNT_OR_AUTO,
	CONF_T_FRACTION,
	CONF_T_PART,
	CONF_T_FLAGS,
	CONF_T_CLIENTS,
	CONF_T_WORKERS,
	CONF_T_RATE,
	CONF_T_SIZE,
	CONF_T_DURATION,
	CONF_T_DURATION_OR_0,
	CONF_T_TEXT,
	CONF_T_FILE,
	CONF_T_NAME,
	CONF_T_LABEL,
	CONF_T_HEADER,
	CONF_T_MODE,
	CONF_T_PATH,
	CONF_T_NOTICES,
	CONF_T_URL,
	CONF_T_HOST,
	CONF_T_ADDRESS_HOST,
	CONF_T_KV_ADDR,
	CONF_T_KV_EVENTS,
	CONF_T_LOG_LEVEL,
	CONF_T_LOG_FORMAT,
	CONF_T_LOG_TO,
	CONF_T_CONNECTOR,
	CONF_T_POLICY,
	CONF_T_TLS_VERSION,
	CONF_T_LOAD,
	CONF_T_PAIRING,
	CONF_T_BOOL,
	CONF_T_ENGINE,
	CONF_T_HANDOFF,
	CONF_T_REMOTE_HOST,
	CONF_T_TRANSFER_MODE,
	CONF_T_BOOTSTRAP,
	CONF_T_FIRST_TOKEN,
	CONF_T_FALLBACK,
	CONF_T_SCHEME,
	CONF_T_ROLE,
	CONF_T_SINGLE_ROLE,
	CONF_T_KEY_NAME,
	CONF_T_SHA256,
	CONF_T_PRIORITY,
	CONF_T_DATE,
	/* lists */
	CONF_T_LISTEN,
	CONF_T_MODELS,
	CONF_T_LABELS,
	CONF_T_ORIGINS,
	CONF_T_FIELDS,
	CONF_T_NETWORKS,
	CONF_T_ANNOUNCED,
	CONF_T_SERVERS,
	CONF_T_ROUTERS,
	CONF_T_PORTS,
	CONF_T_CERTIFICATES,
	CONF_T_CONNECTOR_MAP,
	CONF_T_DNS,
	CONF_T_PREFILL,
	CONF_T_DECODE,
	CONF_T_POOLS,
	CONF_T_API_KEYS,
	CONF_T_OWN, /* the row names its reader */
	CONF_T_N
};

struct conf_read;
struct conf_key;
struct yaml_node_s;
/* Reads one node into a member; `k` is the row of the member (conf_read.h). */
typedef int conf_reader(
	struct conf_read *r, const struct conf_key *k, void *base, struct yaml_node_s *node);

struct conf_key {
	const char *path;
	enum conf_type type;
	size_t off, noff; /* of the member and, for lists, its count */
	uint64_t min, max;
	const char *def;
	enum conf_class class;
	const char *doc;
	conf_reader *read; /* of CONF_T_OWN; NULL: the reader of the type */
};

/* The rows that describe one kind of mapping, and the struct they fill. */
struct conf_keys {
	const struct conf_key *key;
	size_t n;
};
extern const struct conf_keys conf_root_keys;        /* struct conf */
extern const struct conf_keys conf_pool_keys;        /* struct conf_pool */
extern const struct conf_keys conf_connector_keys;   /* struct conf_pool */
extern const struct conf_keys conf_endpoint_keys;    /* struct conf_endpoint */
extern const struct conf_keys conf_file_keys;        /* struct conf_endpoint */
extern const struct conf_keys conf_dns_keys;         /* struct conf_dns */
extern const struct conf_keys conf_certificate_keys; /* struct conf_certificate */
extern const struct conf_keys conf_client_key_keys;  /* struct conf_api_key */
extern const struct conf_keys conf_admin_key_keys;   /* the same */

/* The default as a value, or NULL: the key is required, or its default is computed. */
static inline const char *
conf_key_default(const struct conf_key *k)
{
	return k->def != NULL && k->def[0] != '(' ? k->def : NULL;
}
