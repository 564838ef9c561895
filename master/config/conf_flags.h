/*
 * The flags of other routers, one row each: option parser, --help, the test of the table in
 * etc/README.md and conf_flags.c walk these rows.
 *
 * S = production-stack's router (src/vllm_router/parsers/parser.py at a6ab626 and its PRs 777, 841,
 * 890, 913), G = sglang-router 0.3.2 (router_args.py), V = vllm-router 0.1.17
 * (vllm-project/router).  Names, forms and defaults are theirs.
 *
 * USED(id, name, argument, what it becomes): argument NULL for a switch
 * IDLE(id, name, argument, why it has no effect): accepted, with a line of the log
 * GONE(id, name, argument, what to use instead): an error with that text
 */
#pragma once

// clang-format off
#define CONF_FLAGS(USED, IDLE, GONE)									\
/* S: engines */											\
USED(SERVICE_DISCOVERY, "service-discovery", "static", "static: the command line lists the engines")	\
USED(STATIC_BACKENDS, "static-backends", "URL,URL,...", "url of each entry of prefill and decode")	\
USED(STATIC_MODELS, "static-models", "MODEL,MODEL,...", "one for each backend; a pool for each distinct one, models: [MODEL]") \
USED(STATIC_MODEL_LABELS, "static-model-labels", "LABEL,LABEL,...", "one for each backend: decides whether the engine is listed in prefill or decode") \
USED(PREFILL_MODEL_LABELS, "prefill-model-labels", "LABEL,...", "labels that mean prefill")		\
USED(DECODE_MODEL_LABELS, "decode-model-labels", "LABEL,...", "labels that mean decode")		\
/* S: how */												\
USED(ROUTING_LOGIC, "routing-logic", "LOGIC", "disaggregated_prefill: connector: shared_storage; disaggregated_prefill_orchestrated: connector: orchestrated; roundrobin, session: that policy, prefixaware, kvaware, load_balanced_kvaware: policy: cache_aware, with every engine in prefill and decode and a routing_threshold that no prompt reaches") \
USED(LOAD_BALANCING_STRATEGY, "load-balancing-strategy", "round_robin|least_loaded", "policy; round_robin if not given") \
USED(DISAGG_CONNECTOR_TYPE, "disagg-connector-type", "nixl|lmcache", "disaggregated_prefill: connector: nixl, or lmcache (with ready_messages: 0 unless --nixl-proxy-host is given)") \
USED(ROUTING_THRESHOLD, "routing-threshold", "TOKENS", "routing_threshold")				\
USED(SESSION_KEY, "session-key", "HEADER", "session_header, of --routing-logic session")		\
USED(DECODER_REGISTRY, "decoder-registry", "JSON", "lmcache: receiver_host, receiver_init_port and receiver_alloc_port of each decode engine, by its URL") \
USED(DECODER_HOST, "decoder-host", "HOST", "lmcache: receiver_host of decode engines the registry does not name") \
USED(DECODER_INIT_PORT, "decoder-init-port", "PORT,...", "lmcache: receiver_init_port of those")	\
USED(DECODER_ALLOC_PORT, "decoder-alloc-port", "PORT,...", "lmcache: receiver_alloc_port of those")	\
USED(NIXL_PEER_HOST, "nixl-peer-host", "HOST", "as --decoder-host, if there is one decode engine; with several, each LMCache is at the host of its engine's URL") \
USED(NIXL_PEER_INIT_PORT, "nixl-peer-init-port", "PORT,...", "as --decoder-init-port; 7300 if neither is given") \
USED(NIXL_PEER_ALLOC_PORT, "nixl-peer-alloc-port", "PORT,...", "as --decoder-alloc-port; 7400 if neither is given") \
USED(NIXL_PROXY_HOST, "nixl-proxy-host", "HOST", "disaggregated_prefill: connector: lmcache, and lmcache: {listen: tcp://HOST:PORT}") \
USED(NIXL_PROXY_PORT, "nixl-proxy-port", "PORT", "port of lmcache.listen; 7500 if not given")				\
/* S: the rest */											\
USED(ENGINE_STATS_INTERVAL, "engine-stats-interval", "SECONDS", "stats_interval")			\
USED(STATIC_BACKEND_HEALTH_CHECK_INTERVAL, "static-backend-health-check-interval", "SECONDS", "health_interval") \
USED(STATIC_BACKEND_HEALTH_CHECK_TIMEOUT, "static-backend-health-check-timeout-seconds", "SECONDS", "health_timeout") \
USED(BACKEND_HEALTH_CHECK_TIMEOUT, "backend-health-check-timeout-seconds", "SECONDS", "health_timeout")	\
USED(LOG_LEVEL, "log-level", "LEVEL", "log_level; critical: error, warning: warn, trace: debug")	\
USED(LOG_FORMAT, "log-format", "text|json", "log_format; text: logfmt")					\
IDLE(STATIC_BACKEND_HEALTH_CHECKS, "static-backend-health-checks", NULL, "engines are always probed, by health_path") \
IDLE(STATIC_MODEL_TYPES, "static-model-types", "TYPE,...", "probes use health_path for all models") \
IDLE(NIXL_FINISHED_REQ_TTL, "nixl-finished-req-ttl", "SECONDS", "notices without a waiting request are dropped at once") \
IDLE(NIXL_CLEANUP_INTERVAL, "nixl-cleanup-interval", "SECONDS", "notices without a waiting request are dropped at once") \
USED(FAILOVER_ATTEMPTS, "max-instance-failover-reroute-attempts", "N", "retries")		\
USED(ENABLE_RETRIES, "enable-retries", NULL, "retries: 4, or as --max-retries says")		\
USED(MAX_RETRIES, "max-retries", "N", "with --enable-retries: retries, one less, since that option counts the first try too") \
IDLE(INITIAL_BACKOFF_MS, "initial-backoff-ms", "MS", "a retry uses another engine at once, without a delay") \
IDLE(MAX_BACKOFF_MS, "max-backoff-ms", "MS", "a retry uses another engine at once, without a delay") \
IDLE(BACKOFF_MULTIPLIER, "backoff-multiplier", "X", "a retry uses another engine at once, without a delay") \
IDLE(JITTER_FACTOR, "jitter-factor", "X", "a retry uses another engine at once, without a delay") \
IDLE(REQUEST_STATS_WINDOW, "request-stats-window", "SECONDS", "/metrics has counters and histograms, no window") \
IDLE(LOG_STATS, "log-stats", NULL, "figures are in /metrics and pdctl status")				\
IDLE(LOG_STATS_INTERVAL, "log-stats-interval", "SECONDS", "figures are in /metrics and pdctl status")	\
IDLE(REQUEST_REWRITER, "request-rewriter", "noop", "requests are rewritten only where the KV hand-shake needs it") \
IDLE(FILE_STORAGE_CLASS, "file-storage-class", "CLASS", "there is no batch API here")			\
IDLE(FILE_STORAGE_PATH, "file-storage-path", "PATH", "there is no batch API here")			\
IDLE(BATCH_PROCESSOR, "batch-processor", "NAME", "there is no batch API here")				\
IDLE(SENTRY_DSN, "sentry-dsn", "DSN", "errors are in the log")						\
IDLE(SENTRY_TRACES_SAMPLE_RATE, "sentry-traces-sample-rate", "X", "errors are in the log")		\
IDLE(SENTRY_PROFILE_SAMPLE_RATE, "sentry-profile-session-sample-rate", "X", "errors are in the log")	\
IDLE(OTEL_ENDPOINT, "otel-endpoint", "ADDRESS", "use tracing.otlp and tracing.sample in a configuration file") \
IDLE(OTEL_SERVICE_NAME, "otel-service-name", "NAME", "use tracing.otlp and tracing.sample in a configuration file")		\
IDLE(OTEL_SECURE, "otel-secure", NULL, "use tracing.otlp and tracing.sample in a configuration file")				\
IDLE(LMCACHE_CONTROLLER_PORT, "lmcache-controller-port", "PORT", "the policy cache_aware knows by itself what engines have in their caches")		\
IDLE(LMCACHE_CONTROLLER_REPLY_PORT, "lmcache-controller-reply-port", "PORT", "the policy cache_aware knows by itself what engines have in their caches")	\
IDLE(LMCACHE_CONTROLLER_HEARTBEAT_PORT, "lmcache-controller-heartbeat-port", "PORT", "the policy cache_aware knows by itself what engines have in their caches") \
IDLE(LMCACHE_HEALTH_CHECK_INTERVAL, "lmcache-health-check-interval", "SECONDS", "the policy cache_aware knows by itself what engines have in their caches") \
IDLE(LMCACHE_WORKER_TIMEOUT, "lmcache-worker-timeout", "SECONDS", "the policy cache_aware knows by itself what engines have in their caches")		\
IDLE(KV_AWARE_THRESHOLD, "kv-aware-threshold", "TOKENS", "the policy cache_aware knows by itself what engines have in their caches")			\
IDLE(PREFIX_MIN_MATCH_LENGTH, "prefix-min-match-length", "N", "the policy cache_aware weighs cache against load, without a threshold") \
IDLE(K8S_DISCOVERY_TYPE, "k8s-service-discovery-type", "TYPE", "it belongs to --service-discovery k8s")	\
IDLE(K8S_PORT, "k8s-port", "PORT", "it belongs to --service-discovery k8s")				\
IDLE(K8S_NAMESPACE, "k8s-namespace", "NAME", "it belongs to --service-discovery k8s")			\
IDLE(K8S_LABEL_SELECTOR, "k8s-label-selector", "SELECTOR", "it belongs to --service-discovery k8s")	\
IDLE(K8S_WATCHER_TIMEOUT, "k8s-watcher-timeout-seconds", "SECONDS", "it belongs to --service-discovery k8s") \
GONE(STATIC_ALIASES, "static-aliases", "ALIAS:MODEL,...", "give the engines all their names: --served-model-name MODEL ALIAS") \
GONE(DYNAMIC_CONFIG_YAML, "dynamic-config-yaml", "FILE", "use -c FILE, its keys and a reload (SIGHUP), or endpoints_file with watch: true") \
GONE(DYNAMIC_CONFIG_JSON, "dynamic-config-json", "FILE", "use -c FILE, its keys and a reload (SIGHUP), or endpoints_file with watch: true") \
GONE(CALLBACKS, "callbacks", "PATH", "no Python runs here: use a proxy in front of the router")		\
GONE(ENABLE_BATCH_API, "enable-batch-api", NULL, "use a batch service that sends its requests through the router") \
GONE(FEATURE_GATES, "feature-gates", "GATE=true,...", "use a proxy in front of the router for semantic caches and PII detection") \
GONE(ROOT_PATH, "root-path", "PATH", "let the proxy in front of the router remove the path")		\
/* V: vllm-router, which has a program and some flags of the same names */				\
GONE(VLLM_PD_DISAGGREGATION, "vllm-pd-disaggregation", NULL, "write a pool with the connector of the engines, as etc/docs/from_sglang_router.md shows") \
/* G: engines and how */										\
USED(PD_DISAGGREGATION, "pd-disaggregation", NULL, "connector: sglang")					\
USED(PREFILL, "prefill", "URL [PORT|none]", "an entry of prefill, with its bootstrap_port; again for each") \
USED(DECODE, "decode", "URL", "an entry of decode; again for each")					\
USED(WORKER_URLS, "worker-urls", "URL...", "without --pd-disaggregation: every engine in prefill and decode, and a routing_threshold that no prompt reaches") \
USED(POLICY, "policy", "POLICY", "policy; cache_aware if not given; prefix_hash: prefix")				\
USED(PREFILL_POLICY, "prefill-policy", "POLICY", "prefill_policy")					\
USED(DECODE_POLICY, "decode-policy", "POLICY", "decode_policy")						\
/* G: the rest */											\
USED(HEALTH_CHECK_INTERVAL_SECS, "health-check-interval-secs", "SECONDS", "health_interval")		\
USED(HEALTH_CHECK_TIMEOUT_SECS, "health-check-timeout-secs", "SECONDS", "health_timeout")		\
USED(HEALTH_CHECK_ENDPOINT, "health-check-endpoint", "PATH", "health_path")				\
USED(HEALTH_FAILURE_THRESHOLD, "health-failure-threshold", "N", "fall")					\
USED(HEALTH_SUCCESS_THRESHOLD, "health-success-threshold", "N", "rise")					\
USED(MAX_PAYLOAD_SIZE, "max-payload-size", "BYTES", "limits.max_body")					\
USED(SHUTDOWN_GRACE_PERIOD_SECS, "shutdown-grace-period-secs", "SECONDS", "drain_timeout")		\
IDLE(MINI_LB, "mini-lb", NULL, "there is one router here")						\
IDLE(CACHE_THRESHOLD, "cache-threshold", "X", "the policy cache_aware weighs cache against load, without a threshold") \
IDLE(BALANCE_ABS_THRESHOLD, "balance-abs-threshold", "N", "the policy cache_aware weighs cache against load, without a threshold") \
IDLE(BALANCE_REL_THRESHOLD, "balance-rel-threshold", "X", "the policy cache_aware weighs cache against load, without a threshold") \
IDLE(EVICTION_INTERVAL_SECS, "eviction-interval-secs", "SECONDS", "the prefix index has a fixed size: shared_memory.prefix_index") \
IDLE(MAX_TREE_SIZE, "max-tree-size", "N", "the prefix index has a fixed size: shared_memory.prefix_index")			\
IDLE(WORKER_STARTUP_TIMEOUT_SECS, "worker-startup-timeout-secs", "SECONDS", "the start of an engine has no time limit") \
IDLE(WORKER_STARTUP_CHECK_INTERVAL, "worker-startup-check-interval", "SECONDS", "a starting engine is probed four times a second, then every health_interval") \
USED(REQUEST_TIMEOUT_SECS, "request-timeout-secs", "SECONDS", "timeouts: {request: ...}; no bound if not given") \
IDLE(REQUEST_ID_HEADERS, "request-id-headers", "HEADER...", "the request id is always in X-Request-Id")			\
USED(PROMETHEUS_PORT, "prometheus-port", "PORT", "admin: {listen: [...]}, which also has the status page") \
USED(PROMETHEUS_HOST, "prometheus-host", "HOST", "the host of that address; port 29000 if not given")	\
IDLE(LOG_DIR, "log-dir", "PATH", "the log goes to stderr")						\
USED(MAX_CONCURRENT_REQUESTS, "max-concurrent-requests", "N", "max_inflight of each entry of decode: N shared out among them, rounded up; -1 or 0: no limit") \
USED(QUEUE_SIZE, "queue-size", "N", "queue_size, and shared_memory: {queue: N} where that is more than its default") \
USED(QUEUE_TIMEOUT_SECS, "queue-timeout-secs", "SECONDS", "queue_timeout; then the client gets 503, not 408") \
USED(RETRY_MAX_RETRIES, "retry-max-retries", "N", "retries, one less, since that option counts the first try too") \
IDLE(RETRY_INITIAL_BACKOFF_MS, "retry-initial-backoff-ms", "MS", "a retry uses another engine at once, without a delay") \
IDLE(RETRY_MAX_BACKOFF_MS, "retry-max-backoff-ms", "MS", "a retry uses another engine at once, without a delay") \
IDLE(RETRY_BACKOFF_MULTIPLIER, "retry-backoff-multiplier", "X", "a retry uses another engine at once, without a delay") \
IDLE(RETRY_JITTER_FACTOR, "retry-jitter-factor", "X", "a retry uses another engine at once, without a delay") \
USED(DISABLE_RETRIES, "disable-retries", NULL, "retries: 0")					\
USED(CB_FAILURE_THRESHOLD, "cb-failure-threshold", "N", "eject_failures")			\
IDLE(CB_SUCCESS_THRESHOLD, "cb-success-threshold", "N", "one successful trial request brings an engine back; a failed one doubles eject_time") \
USED(CB_TIMEOUT_DURATION_SECS, "cb-timeout-duration-secs", "SECONDS", "eject_time")		\
IDLE(CB_WINDOW_DURATION_SECS, "cb-window-duration-secs", "SECONDS", "eject_failures counts failures in a row without a time window; eject_rate uses the last 10 s") \
USED(DISABLE_CIRCUIT_BREAKER, "disable-circuit-breaker", NULL, "eject_failures: 0 and eject_rate: 0") \
IDLE(DISABLE_HEALTH_CHECK, "disable-health-check", NULL, "engines are always probed, by health_path")	\
IDLE(MODEL_PATH, "model-path", "PATH", "the engines have the tokenizer")				\
IDLE(TOKENIZER_PATH, "tokenizer-path", "PATH", "the engines have the tokenizer")			\
IDLE(REASONING_PARSER, "reasoning-parser", "NAME", "the engines parse reasoning")					\
IDLE(TOOL_CALL_PARSER, "tool-call-parser", "NAME", "the engines parse tool calls")					\
IDLE(BUCKET_ADJUST_INTERVAL_SECS, "bucket-adjust-interval-secs", "SECONDS", "it belongs to the policy bucket") \
IDLE(MAX_IDLE_SECS, "max-idle-secs", "SECONDS", "it belongs to the policy manual")			\
IDLE(ASSIGNMENT_MODE, "assignment-mode", "MODE", "it belongs to the policy manual")			\
IDLE(SERVICE_DISCOVERY_PORT, "service-discovery-port", "PORT", "it belongs to --service-discovery")	\
IDLE(SERVICE_DISCOVERY_NAMESPACE, "service-discovery-namespace", "NAME", "it belongs to --service-discovery") \
IDLE(PROMETHEUS_DURATION_BUCKETS, "prometheus-duration-buckets", "SECONDS...", "the buckets of /metrics are fixed") \
IDLE(RATE_LIMIT_TOKENS_PER_SECOND, "rate-limit-tokens-per-second", "N", "no key limits all clients together: client.rate limits each client, max_inflight each engine") \
IDLE(CHAT_TEMPLATE, "chat-template", "PATH", "the engines have the chat template")			\
IDLE(TOKENIZER_CACHE_ENABLE_L0, "tokenizer-cache-enable-l0", NULL, "the engines have the tokenizer")	\
IDLE(TOKENIZER_CACHE_L0_MAX_ENTRIES, "tokenizer-cache-l0-max-entries", "N", "the engines have the tokenizer") \
IDLE(TOKENIZER_CACHE_ENABLE_L1, "tokenizer-cache-enable-l1", NULL, "the engines have the tokenizer")	\
IDLE(TOKENIZER_CACHE_L1_MAX_MEMORY, "tokenizer-cache-l1-max-memory", "BYTES", "the engines have the tokenizer") \
IDLE(HISTORY_BACKEND, "history-backend", "NAME", "the router stores no conversations") \
IDLE(ORACLE_WALLET_PATH, "oracle-wallet-path", "PATH", "the router stores no conversations") \
IDLE(ORACLE_TNS_ALIAS, "oracle-tns-alias", "NAME", "the router stores no conversations") \
IDLE(ORACLE_CONNECT_DESCRIPTOR, "oracle-connect-descriptor", "TEXT", "the router stores no conversations") \
IDLE(ORACLE_USERNAME, "oracle-username", "NAME", "the router stores no conversations") \
IDLE(ORACLE_PASSWORD, "oracle-password", "TEXT", "the router stores no conversations") \
IDLE(ORACLE_POOL_MIN, "oracle-pool-min", "N", "the router stores no conversations") \
IDLE(ORACLE_POOL_MAX, "oracle-pool-max", "N", "the router stores no conversations") \
IDLE(ORACLE_POOL_TIMEOUT_SECS, "oracle-pool-timeout-secs", "SECONDS", "the router stores no conversations") \
IDLE(POSTGRES_DB_URL, "postgres-db-url", "URL", "the router stores no conversations") \
IDLE(POSTGRES_POOL_MAX, "postgres-pool-max", "N", "the router stores no conversations") \
IDLE(REDIS_URL, "redis-url", "URL", "the router stores no conversations")	\
IDLE(REDIS_POOL_MAX, "redis-pool-max", "N", "the router stores no conversations") \
IDLE(REDIS_RETENTION_DAYS, "redis-retention-days", "N", "the router stores no conversations") \
IDLE(ENABLE_TRACE, "enable-trace", NULL, "use tracing.otlp and tracing.sample in a configuration file")				\
IDLE(OTLP_TRACES_ENDPOINT, "otlp-traces-endpoint", "ADDRESS", "use tracing.otlp and tracing.sample in a configuration file")	\
IDLE(CONTROL_PLANE_API_KEYS, "control-plane-api-keys", "KEY...", "access to the control socket is set by its file mode") \
IDLE(CONTROL_PLANE_AUDIT_ENABLED, "control-plane-audit-enabled", NULL, "access to the control socket is set by its file mode") \
IDLE(JWT_ISSUER, "jwt-issuer", "URL", "access to the control socket is set by its file mode")	\
IDLE(JWT_AUDIENCE, "jwt-audience", "NAME", "access to the control socket is set by its file mode")	\
IDLE(JWT_JWKS_URI, "jwt-jwks-uri", "URL", "access to the control socket is set by its file mode")	\
IDLE(JWT_ROLE_MAPPING, "jwt-role-mapping", "ROLE=ROLE...", "access to the control socket is set by its file mode") \
GONE(DP_AWARE, "dp-aware", NULL, "use dp_ranks of the engines in a configuration file")			\
GONE(API_KEY, "api-key", "KEY", "use engine_api_key_file in a configuration file; clients' keys pass on as they are") \
GONE(SELECTOR, "selector", "LABEL=VALUE...", "use dns in a configuration file, with the name of a headless service") \
GONE(PREFILL_SELECTOR, "prefill-selector", "LABEL=VALUE...", "use dns in a configuration file, with the name of a headless service") \
GONE(DECODE_SELECTOR, "decode-selector", "LABEL=VALUE...", "use dns in a configuration file, with the name of a headless service") \
GONE(ENABLE_IGW, "enable-igw", NULL, "use several pools in a configuration file, one for each model")	\
GONE(TLS_CERT_PATH, "tls-cert-path", "FILE", "use tls.listen and tls.certificates in a configuration file")		\
GONE(TLS_KEY_PATH, "tls-key-path", "FILE", "use tls.listen and tls.certificates in a configuration file")		\
GONE(BACKEND, "backend", "NAME", "only vLLM and SGLang engines are supported: leave the flag out")			\
GONE(CORS_ALLOWED_ORIGINS, "cors-allowed-origins", "ORIGIN...", "use cors.origins in a configuration file") \
GONE(MCP_CONFIG_PATH, "mcp-config-path", "FILE", "the router calls no tools: use --tool-server of the engines, or tools in the client") \
GONE(CLIENT_CERT_PATH, "client-cert-path", "FILE", "use tls of the pool in a configuration file, with https:// URLs") \
GONE(CLIENT_KEY_PATH, "client-key-path", "FILE", "use tls of the pool in a configuration file, with https:// URLs") \
GONE(CA_CERT_PATHS, "ca-cert-paths", "FILE...", "use tls of the pool in a configuration file, with https:// URLs")
// clang-format on

#define CONF_FLAG_ID(id, ...) FLAG_##id,
enum conf_flag { CONF_FLAGS(CONF_FLAG_ID, CONF_FLAG_ID, CONF_FLAG_ID) FLAG_N };
