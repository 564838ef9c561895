/*
 * The connectors, one row each: X(ID, name, facts), facts being initializers of struct connector_info
 * (shm/base/connector_info.h).  What a connector does stands in worker/handshake/<name>.c.
 *
 * To add a connector: a row here, a file in worker/handshake/, an example in etc/examples/, a test file.
 * A setting that no connector has yet also needs a row in CONF_CONNECTOR_KEYS (master/config/conf_keys.h).
 */
#pragma once

// clang-format off
#define CONNECTOR_LIST(X)										\
X(NIXL, nixl,												\
	.cleanup = CLEANUP_KV, .kv_leased = true, .decode_alone = true, .decode_cached = true,		\
	.agent_paths = true,										\
	.keys = {"transfer_mode", "remote_host", "kv_lease", "fanout"})					\
X(ORCHESTRATED, orchestrated,										\
	.cleanup = CLEANUP_KV, .kv_leased = true, .decode_alone = true, .agent_paths = true,		\
	.handoffs = 1u << HANDOFF_KV_TRANSFER_PARAMS | 1u << HANDOFF_DISAGG_PREFILL_RESP,		\
	.remote_host = REMOTE_HOST_PREFILL,								\
	.keys = {"handoff", "remote_host", "kv_lease", "fanout"})					\
X(LMCACHE, lmcache,											\
	.cleanup = CLEANUP_KV, .kv_bound = true, .decode_alone = true,					\
	.needs = CONNECTOR_NEEDS_RECEIVER,								\
	.keys = {"ready_messages", "kv_ready_timeout", "first_token", "tokenize"})			\
X(SGLANG, sglang,											\
	/* decode engines answer 400 to a prompt that was not prefilled (protocols.md 5.1) */		\
	.cleanup = CLEANUP_ABORT, .kv_bound = true, .decode_alone = false,				\
	.engine = ENGINE_SGLANG, .one_engine = true, .generate_path = true,				\
	.keys = {"bootstrap", "learn_timeout"})								\
X(SHARED_STORAGE, shared_storage,									\
	.cleanup = CLEANUP_NONE, .decode_alone = true, .agent_paths = true,				\
	.keys = {"cache_hit_threshold"})								\
X(P2P_NCCL, p2p_nccl,											\
	/* decode engines wait for the KV of every prompt (vLLM's p2p_nccl_connector.py) */		\
	.cleanup = CLEANUP_KV, .kv_bound = true, .decode_alone = false,					\
	.needs = CONNECTOR_NEEDS_KV_ADDR)								\
X(MOONCAKE, mooncake,											\
	.cleanup = CLEANUP_KV, .kv_leased = true, .decode_alone = true, .agent_paths = true,		\
	.handoff = HANDOFF_TRANSFER_ID,									\
	.handoffs = 1u << HANDOFF_TRANSFER_ID | 1u << HANDOFF_KV_TRANSFER_PARAMS,			\
	.bootstrap_port = 8998, /* VLLM_MOONCAKE_BOOTSTRAP_PORT (protocols.md 8) */			\
	.keys = {"handoff", "remote_host", "kv_lease", "fanout", "learn_timeout"})
// clang-format on
