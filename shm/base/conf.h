/*
 * The configuration as every process sees it: built whole by master/config/conf_load.c, never changed afterwards,
 * but for the member `live` of a worker's own copy.
 *
 * Ownership: one `struct conf` owns everything it points to (conf_free); children inherit it over fork
 * and only read it.  Pools and endpoints are here as configured; what workers choose from is the
 * shared table (shm/table.h), which the master builds from these and from what it has learned.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "shm/base/connector_list.h"
#include "shm/base/log.h"

struct net;
struct tls_client;

enum role { ROLE_PREFILL, ROLE_DECODE, ROLE_N };
#define CONNECTOR_ID(id, ...) CONNECTOR_##id,
enum connector_kind { CONNECTOR_LIST(CONNECTOR_ID) CONNECTOR_N };
#undef CONNECTOR_ID
enum policy_kind {
	POLICY_ROUND_ROBIN,
	POLICY_LEAST_LOADED,
	POLICY_POWER_OF_TWO,
	POLICY_RANDOM,
	POLICY_SESSION,
	POLICY_PREFIX,
	POLICY_CACHE_AWARE,
	POLICY_N
};
/* the load that least_loaded, power_of_two and prefix compare */
enum load_kind { LOAD_REQUESTS, LOAD_TOKENS, LOAD_N };
/* whether both legs should (prefer) or must (require) go to endpoints of one group */
enum pairing_kind { PAIRING_PREFER, PAIRING_REQUIRE, PAIRING_N };
enum engine_kind { ENGINE_VLLM, ENGINE_SGLANG, ENGINE_N };
/*
 * What the decode leg carries.  orchestrated: a member of the prefill answer, or the whole answer
 * (protocols.md 3.2); mooncake: an id that the router chose (vLLM 0.17 and later), or a member of
 * the answer (8).
 */
enum handoff_kind {
	HANDOFF_KV_TRANSFER_PARAMS,
	HANDOFF_DISAGG_PREFILL_RESP,
	HANDOFF_TRANSFER_ID,
	HANDOFF_N
};
/* nixl: decode fetches the cache, or prefill sends it (2.8) */
enum transfer_mode { TRANSFER_PULL, TRANSFER_PUSH, TRANSFER_N };
/* sglang: where the bootstrap address comes from: endpoint table, or the prefill answer's first event (5) */
enum bootstrap_kind { BOOTSTRAP_LEARNED, BOOTSTRAP_STREAM, BOOTSTRAP_N };
/* the host that names the prefill engine to the decode engine: from the prefill answer, or from
 * its URL (2.2) */
enum remote_host_kind { REMOTE_HOST_KEEP, REMOTE_HOST_PREFILL, REMOTE_HOST_N };
/*
 * Which engines serve the paths that one engine serves alone.  auto: decode engines serve the paths that
 * generate text (/v1/responses, /v1/messages, /inference/v1/generate), prefill engines the others.
 */
enum single_role_kind { SINGLE_ROLE_PREFILL, SINGLE_ROLE_DECODE, SINGLE_ROLE_AUTO, SINGLE_ROLE_N };
/* when no prefill engine is left to try: a decode engine serves alone, or the client gets the
 * error */
enum fallback_kind { FALLBACK_DIRECT, FALLBACK_NONE, FALLBACK_N };
enum scheme_kind { SCHEME_HTTP, SCHEME_HTTPS, SCHEME_N };

/* The words for these values in configuration, log and metrics; never NULL for a valid value.
 * conf_names.c; connector_info.c */
const char *role_name(enum role r);
const char *connector_name(enum connector_kind c);
const char *policy_name(enum policy_kind p);
const char *load_name(enum load_kind l);
const char *pairing_name(enum pairing_kind p);
const char *engine_name(enum engine_kind e);
const char *handoff_name(enum handoff_kind h);
const char *remote_host_name(enum remote_host_kind r);
const char *transfer_mode_name(enum transfer_mode m);
const char *bootstrap_name(enum bootstrap_kind b);
const char *fallback_name(enum fallback_kind f);
const char *single_role_name(enum single_role_kind s);
const char *scheme_name(enum scheme_kind s);

#define CONF_PORTS_MAX 64 /* tensor-parallel ranks of one engine with a port of their own */

/* By value: a copy of an endpoint's terms has the ports too. */
struct conf_ports {
	uint32_t n;
	uint16_t port[CONF_PORTS_MAX];
};

#define READY_BY_PORTS (-1) /* as many ready messages as the decode endpoint has init ports */

#define CONF_WEIGHT_MAX 100

struct conf_endpoint {
	char *url; /* as written; valid by http_url_parse() */
	enum role role;
	char *label;             /* from an endpoints_file or flags, or NULL */
	uint32_t max_inflight;   /* 0 = no limit */
	uint32_t weight;         /* share relative to other endpoints: 1 to CONF_WEIGHT_MAX */
	char *group;             /* rack, NVLink domain; or NULL */
	char *bootstrap_host;    /* SGLang prefill; NULL: learned, else the host of the URL */
	uint32_t bootstrap_port; /* 0: learned */
	/* lmcache decode: where its LMCache listens, a port for each rank; NULL: the host of the URL */
	char *receiver_host;
	struct conf_ports receiver_init_port, receiver_alloc_port;
	/* where it publishes KV events, and sends missed ones again: tcp, an IP literal or a star for its own address, a
	 * port; NULL: as the pool says */
	char *kv_events, *kv_events_replay;
	char *kv_addr; /* p2p_nccl: "host:port" or ":port" (of the URL's host); NULL: announced */
	/* data-parallel ranks that the router uses in turn; 0: the engine chooses */
	uint32_t dp_ranks;
	int line; /* line in its file, for messages */
};

/* A name whose addresses are endpoints. */
struct conf_dns {
	char *name;
	uint32_t port;           /* 0: SRV records have the port */
	enum scheme_kind scheme; /* of the URLs of all that is found */
	struct conf_endpoint as; /* all of an endpoint but its URL */
};

#define CONF_GROUPS_MAX 63 /* groups of one pool: bits of a word (shm/table.h) */

struct conf_timeouts {           /* milliseconds */
	uint64_t connect_ms;     /* to an established connection */
	uint64_t prefill_ms;     /* from sending to the full answer of the prefill engine */
	uint64_t first_byte_ms;  /* from sending to the first byte of the decode engine's stream */
	uint64_t stream_idle_ms; /* between two bytes of the decode engine's answer */
	/* of an answer in one piece: from sending to its first byte, one limit for all attempts */
	uint64_t whole_answer_ms;
	/* from a request's last byte to the last byte of its answer; 0: no limit */
	uint64_t request_ms;
	uint64_t down_grace_ms; /* an engine is down for so long: its streams end */
	uint64_t
		tcp_user_ms; /* that an engine's host may leave bytes unacknowledged; 0: no limit */
	/* lmcache: from the prefill answer to the last notice; then decode is sent without the
	 * KV */
	uint64_t kv_ready_ms;
};

#define THRESHOLD_AUTO UINT32_MAX
#define CONF_PART_ALL 1000000u /* a part of 1: parts are in millionths */
#define CONF_FRACTION 24       /* bytes of a number between 0 and 1, as written */

/* All that a connector needs of its pool; by value wherever a pool is described. */
struct conf_handshake {
	enum handoff_kind handoff;         /* orchestrated, mooncake */
	enum remote_host_kind remote_host; /* orchestrated: prefill_host by default, nixl: keep */
	enum transfer_mode transfer_mode;  /* nixl */
	enum bootstrap_kind bootstrap;     /* sglang */
	/* lmcache: messages that say that the KV has arrived; 0: the prefill answer says so;
	 * READY_BY_PORTS */
	int32_t ready_messages;
	enum role first_token; /* lmcache: role that makes the client's first token */
	enum role tokenize;    /* lmcache: role whose engines tokenize prompts */
	enum single_role_kind single_engine_role; /* paths that one engine serves alone */
	enum role cached_tokens_from; /* role whose cached_tokens are in the usage of an answer */
	uint32_t fanout; /* 1: a branch for each sample if KV parameters describe one sample */
	uint32_t allow_route_header; /* 1: a client may choose the route by X-PD-Route */
	/* 1: two engines serve /v1/messages and /v1/responses, as they serve chat */
	uint32_t disaggregate_agent_paths;
	/* estimated prompt tokens from which a prefill engine is used; 0: always; THRESHOLD_AUTO */
	uint32_t routing_threshold;
	uint64_t kv_lease_ms; /* older KV parameters are not used */
	/* longest wait of a request for what its prefill engine must report */
	uint64_t learn_ms;
	/* shared_storage: value sent to decode, which is tried first; "": prefill first */
	char cache_hit_threshold[CONF_FRACTION];
};

/* When an engine fails; by value wherever a pool is described, like the next two structs. */
struct conf_rescue {
	uint32_t retries;      /* other engines tried for one request; 0: none */
	uint32_t retry_budget; /* retries allowed, in percent of the requests of the last 10 s */
	enum fallback_kind fallback;
	/* prompt tokens that fallback may send to decode engines, per second and engine; 0: no limit */
	uint32_t fallback_budget;
	uint32_t resume;               /* 1: another decode engine continues a broken stream */
	uint32_t allow_timeout_header; /* 1: a client may set a deadline by X-Request-Timeout-Ms */
};

/* When an engine that passes its probes is ejected. */
struct conf_ejection {
	uint32_t failures; /* failures in a row that eject; 0: this check is off */
	uint32_t rate;     /* percentage of failed answers that ejects; 0: this check is off */
	/* highest percentage of a role's endpoints that may be ejected at once */
	uint32_t max_percent;
	uint32_t slow;    /* 1: an engine that is slower than its peers is ejected, too */
	uint64_t time_ms; /* time of the first ejection; doubled after each failed trial */
	uint64_t max_ms;  /* up to this, >= time_ms */
};

/* When an engine is slow: the master compares engines of one role. */
struct conf_outlier {
	uint32_t factor;      /* times the median of its peers; 0: engines are not compared */
	uint32_t min_samples; /* that an engine needs to be compared */
};

/* The queue: requests that wait for a slot. */
struct conf_queue {
	/* highest number of waiting requests of all workers, <= conf.queue_slots; 0: no queue */
	uint32_t size;
	uint32_t allow_priority; /* 1: a client may set its priority */
	uint64_t timeout_ms;     /* longest wait of a request */
};

/* TLS with the engines of a pool whose URLs begin with https://. */
struct conf_engine_tls {
	/* files: who signs engines' certificates, NULL: the system's authorities; the router's own */
	char *ca, *cert, *key;
	char *server_name; /* that engines' certificates have; NULL: the host of the URL */
	uint32_t verify;
	/* what the files hold; NULL: none, or wiped */
	char *ca_pem, *cert_pem, *key_pem;
	int ca_line, cert_line, key_line;
	/* Unix time: the first end of an authority of `ca`, and the end of `cert`; 0: no such file */
	int64_t ca_until, cert_until;
	struct tls_client
		*client; /* NULL: no key of `tls` is given, and no URL begins with https:// */
	uint64_t id;     /* the same where the keys are the same; 0: there is no client */
};

struct conf_pool {
	char *name;
	char **models; /* nmodels 0: learned from the engines' /v1/models */
	size_t nmodels;
	enum connector_kind connector;
	enum policy_kind policy; /* the default of both roles */
	enum policy_kind policies[ROLE_N];
	enum load_kind loads[ROLE_N];
	/* header and member with the session's name; or NULL */
	char *session_header, *session_member;
	/* bytes of a prompt that the prefix policy compares */
	uint64_t prefix_bytes;
	enum pairing_kind pairing;
	uint64_t slow_start_ms; /* from recovery to full weight; 0: at once */
	enum engine_kind engine;
	struct conf_handshake shake;
	struct conf_timeouts timeouts;
	struct conf_rescue rescue;
	struct conf_ejection ejection;
	struct conf_outlier outlier;
	struct conf_queue queue;
	int queue_size_line;                   /* line of `queue_size`; 0: the default holds */
	char *priority_header;                 /* of an integer, the lowest goes first; or NULL */
	char *health_path;                     /* default by engine: /health, /ready */
	char *metric_running, *metric_waiting; /* of the engine's /metrics; NULL: the known names */
	struct conf_engine_tls tls;
	char *engine_api_key_file, *api_key; /* what its engines are sent; NULL: none */
	uint32_t
		trust_found; /* 1: engines that are in no list of the configuration are sent it, too */
	/* or NULL, one of both at most; the endpoints are already in the list below */
	char *endpoints_file, *fleet_file;
	uint32_t watch; /* 1: a change of that file is applied without SIGHUP */
	char **groups;  /* the distinct groups of its endpoints; at most CONF_GROUPS_MAX */
	size_t ngroups;
	struct conf_dns *dns;
	size_t ndns;
	/* networks; engines that announce themselves from there belong to this pool */
	char **announce_networks;
	size_t nannounce_networks;
	char *kv_events, *kv_events_replay; /* of its engines, as in an endpoint; NULL: nowhere */
	char **prefill_labels, **decode_labels; /* an endpoints_file's labels -> roles */
	size_t nprefill_labels, ndecode_labels;
	char *file_text; /* of the endpoints_file, or what the fleet_file amounts to; nfile_text bytes; the master's */
	size_t nfile_text;
	struct conf_endpoint *endpoints;
	size_t nendpoints;
	int line;
};

struct conf_rate {
	uint32_t n;     /* 0: no limit */
	uint32_t per_s; /* 1, 60 or 3600 seconds */
};

#define CONF_KEY_NAME 64 /* bytes of the name of a client's key */
#define CONF_SHA256 32   /* bytes of the SHA-256 of a key */

/* What a client's key allows; by value wherever a key is described. */
struct conf_key_terms {
	struct conf_rate rate;      /* n 0: client.rate holds */
	uint32_t max_inflight;      /* 0: client.max_inflight holds */
	uint32_t tokens_per_minute; /* 0: no limit */
	int32_t priority_max;       /* the most urgent priority: no lower integer */
	uint64_t expires_s;         /* Unix time; 0: never */
};

/* Who comes through a listening socket: it decides which paths are answered there (worker/base/route.h). */
enum door { DOOR_CLIENTS, DOOR_OPERATORS, DOOR_N };

/* A row of the api_keys_file, or of the admin.api_keys_file. */
struct conf_api_key {
	enum door door; /* who needs one of these keys */
	char *name;
	char sha256[2 * CONF_SHA256 + 1]; /* of the key, in lower-case hex digits */
	char **models; /* by name, or with `*` at the end: all that begin so; none: all */
	size_t nmodels;
	char **pools; /* by name; none: all */
	size_t npools;
	struct conf_key_terms terms;
	int line;
};

/* What is spoken through a listening socket. */
enum transport { TRANSPORT_TCP, TRANSPORT_TLS };

struct conf_listen {
	char *text; /* as written */
	/* name, IPv4 or IPv6 literal without brackets, or the path of a unix socket; "" = any */
	char host[256];
	uint16_t port;
};

/* A certificate with its chain, and its private key. */
struct conf_certificate {
	char *cert, *key;         /* files */
	char *cert_pem, *key_pem; /* what they hold; NULL: not read, or wiped */
	int cert_line, key_line;
	int64_t until; /* Unix time of its end */
};

enum tls_min { TLS_MIN_1_2, TLS_MIN_1_3, TLS_MIN_N };

/* TLS for clients. */
struct conf_tls {
	struct conf_listen *listen; /* clients' addresses where TLS is spoken */
	size_t nlisten;
	struct conf_certificate *certificates; /* the first is for clients that name none of them */
	size_t ncertificates;
	char *client_ca,
		*client_ca_pem; /* who signs clients' certificates; NULL: clients need none */
	enum tls_min min_version;
	char *ciphers;           /* of TLS 1.2, as OpenSSL writes them */
	uint32_t max_handshakes; /* in progress in one worker */
	uint32_t watch;          /* 1: changed files count without SIGHUP, those of pools too */
};

#define CONF_FANOUT_MAX 128

/*
 * Settings that running workers follow: by value, without pointers.  The master writes those in force into
 * shared memory (shm/settings.h), and each worker copies them from there into its own struct conf.
 */
struct conf_live {
	uint64_t max_body, max_head; /* bytes */
	uint64_t max_buffered;       /* bytes of bodies and buffered answers of all workers */
	/* bytes of a prefill answer that are read; more fails the leg */
	uint64_t max_answer;
	uint64_t client_head_ms;      /* from a head's first byte to its last */
	uint64_t client_body_ms;      /* between two reads of a body */
	uint64_t client_idle_ms;      /* keep-alive connection without a request */
	uint64_t client_write_ms;     /* a client that takes no byte of its answer */
	uint64_t client_tcp_user_ms;  /* a client whose host acknowledges nothing; 0: no limit */
	uint64_t upstream_idle_ms;    /* idle engine connection; uvicorn closes at 5 s */
	struct conf_rate client_rate; /* requests of one client */
	uint32_t client_burst;        /* token-bucket size of client_rate; 0: equal to the rate */
	uint32_t
		/* highest number of one client's requests in flight, of all workers; 0: no limit */
		client_max_inflight;
	uint32_t max_connections;   /* client connections per worker */
	uint32_t upstream_max_idle; /* idle connections kept per worker and endpoint */
	uint32_t max_fanout;        /* branches of one request; more is refused */
	enum log_format log_format;
	enum log_level log_level;
	uint32_t log_sample;   /* the part of good requests that get their line, of CONF_PART_ALL */
	uint32_t trace_sample; /* the part of requests without a traceparent that begin a trace */
	/* 1: /metrics is answered at the clients' addresses, too, although there are operators' ones */
	uint32_t metrics_on_client_port;
};

struct conf {
	char *path; /* of the file, or NULL: from flags alone */
	char *text; /* of the file as it was read, ntext bytes; the master's */
	size_t ntext;
	struct conf_listen *listen;
	size_t nlisten;
	/* for operators; none: the addresses for clients serve operators, too */
	struct conf_listen *admin_listen;
	size_t nadmin_listen;
	uint32_t admin_mode; /* permissions of its unix sockets */
	char *admin_group;   /* and their group; NULL: that of the process */
	struct conf_tls tls;

	enum log_to log_to; /* a change needs a restart */
	/* sizes of the shared memory: a change needs a restart */
	uint32_t max_workers, max_endpoints, max_pools, flags_per_worker;
	uint32_t queue_slots;      /* of each pool: requests that can wait */
	uint32_t running_requests; /* of each worker: requests in flight that pdctl shows */
	uint32_t recent_requests;  /* of all workers: requests that have ended, and pdctl shows */
	uint64_t prefix_index_bytes;
	uint32_t client_entries; /* clients whose limits are tracked; a multiple of 8 */
	uint32_t max_api_keys;   /* rows of the api_keys_file */

	/* settings that a worker reads at its start: a change starts a new generation */
	uint32_t workers; /* `auto` already resolved */
	bool workers_auto;
	/* origins whose web pages may read answers, "*" is any; none: the router has nothing to do with it */
	char **cors_origins;
	size_t ncors_origins;
	char **cors_headers;
	size_t ncors_headers;
	uint32_t cors_credentials;
	/* of proxies before the router, as written and as read */
	char **proxy_networks;
	size_t nproxy_networks;
	struct net *proxies;
	size_t nproxies;
	uint32_t
		proxy_protocol; /* 1: their connections begin with a header of the PROXY protocol */
	/* header that identifies a client instead of its API key and address; or NULL */
	uint32_t max_silent;      /* of one address in one worker; 0: no limit */
	uint32_t forward_address; /* 1: engines are sent the client's address */
	char *client_id_header;

	struct conf_live live; /* settings that running workers follow */

	/* settings of the master: applied at once */
	uint64_t stats_interval_ms, health_interval_ms, health_timeout_ms;
	uint32_t rise, fall;
	char **dns_servers; /* "address" or "address:port"; none: those of resolv.conf */
	size_t ndns_servers;
	uint64_t drain_ms;         /* from SIGTERM to the end of what is left */
	uint64_t reload_drain_ms;  /* the same of a generation that was replaced; 0: no limit */
	uint64_t upgrade_drain_ms; /* the same of an instance that was replaced; 0: no limit */
	uint64_t upgrade_trial_ms; /* the older instance can serve again for this time */
	uint64_t watchdog_ms;      /* 0 = off */
	char *user, *group;        /* of children, by name or number; NULL: as the master */
	uint32_t sandbox;          /* 1: the system calls of children are filtered */
	char *control_socket;      /* path, or NULL: none */
	uint32_t control_mode;     /* permissions of the socket */
	char *control_group;       /* by name; NULL: that of the process */
	char *state_file;          /* path, or NULL: none */
	/* ZMQ address of the notifier's PULL socket, or NULL: no notifier */
	char *lmcache_listen;
	char **lmcache_networks; /* of the peers that may send there; none: nearby.h decides */
	size_t nlmcache_networks;
	/* ZMQ address of its ROUTER socket, where engines announce themselves, or NULL */
	char *announce_listen;
	uint64_t announce_forget_ms; /* an engine that sends nothing for that long is dropped */
	/* other routers before the same engines (shm/siblings.h): where this one tells them what it does, or NULL; where they
	 * do; whose connections are taken, none: those of the others' addresses */
	char *siblings_listen;
	char **siblings_routers;
	size_t nsiblings_routers;
	char **siblings_networks;
	size_t nsiblings_networks;
	char *siblings_secret_file;   /* path, or NULL */
	uint64_t siblings_ring_bytes; /* room for what one worker tells, until it is sent */
	struct conf_siblings_key {
		unsigned char message[32]; /* of the MACs of messages */
		uint64_t digest[2];        /* of the digests of prompts */
	} * siblings_key;                  /* made of the secret_file; NULL: nothing is sent */
	/* all settings that a notifier reads at its start, as one text: a change starts a new
	 * notifier; NULL: no notifier is needed */
	char *notifier_key;
	/* the most ranks of an engine that publishes KV events, a publisher each; 0: no engine does */
	uint32_t kv_event_ranks;
	char *trace_otlp;          /* URL of the collector of spans, or NULL: no exporter */
	uint64_t trace_ring_bytes; /* room for the finished spans of one worker */

	/* clients, and operators, need one of the keys of such a file; NULL: they need none */
	char *api_keys_file[DOOR_N];
	uint32_t watch; /* 1: a change of these files is applied without SIGHUP */
	struct conf_text {
		char *p; /* NULL: there is no such file */
		size_t n;
	} api_keys_text[DOOR_N];       /* of the files; the master's */
	struct conf_api_key *api_keys; /* of both files, those of clients first */
	size_t napi_keys;

	struct conf_pool *pools;
	size_t npools;

	/* by row of master/config/conf_keys.h: the key's line, 0 where the default holds */
	int *key_lines;
};

/* Which of the lists of addresses, and who comes through the sockets of each. */
enum listen_list { LISTEN_PLAIN, LISTEN_TLS, LISTEN_ADMIN, LISTEN_N };

static inline enum door
listen_list_door(enum listen_list l)
{
	return l == LISTEN_ADMIN ? DOOR_OPERATORS : DOOR_CLIENTS;
}

static inline enum transport
listen_list_transport(enum listen_list l)
{
	return l == LISTEN_TLS ? TRANSPORT_TLS : TRANSPORT_TCP;
}

/* The path of a unix socket; NULL: the address is one of TCP. */
static inline const char *
conf_listen_path(const struct conf_listen *l)
{
	return l->host[0] == '/' ? l->host : NULL;
}

/* The i-th of all addresses; NULL: there are no more. */
static inline const struct conf_listen *
conf_listen_at(const struct conf *c, size_t i, enum listen_list *ret_list)
{
	const struct conf_listen *const lists[] = {c->listen, c->tls.listen, c->admin_listen};
	const size_t n[] = {c->nlisten, c->tls.nlisten, c->nadmin_listen};

	for (*ret_list = LISTEN_PLAIN; *ret_list < LISTEN_N; ++*ret_list) {
		if (i < n[*ret_list])
			return &lists[*ret_list][i];
		i -= n[*ret_list];
	}
	return NULL;
}

/* Whether /metrics is answered there. */
static inline bool
conf_has_metrics(const struct conf *c, enum door door)
{
	return door == DOOR_OPERATORS || c->nadmin_listen == 0 ||
	       c->live.metrics_on_client_port != 0;
}

/* NULL: there is none of this name. */
const struct conf_pool *conf_pool_named(const struct conf *c, const char *name);

/* The file that says which endpoints the pool has, or NULL. */
static inline const char *
conf_pool_file(const struct conf_pool *p)
{
	return p->fleet_file != NULL ? p->fleet_file : p->endpoints_file;
}
