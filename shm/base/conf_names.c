#include <assert.h>
#include <string.h>

#include "shm/base/conf.h"

#define NAMES(fn, type, n, ...)                                                                    \
	const char *fn(type v)                                                                     \
	{                                                                                          \
		static const char *const names[n] = {__VA_ARGS__};                                 \
                                                                                                   \
		assert((unsigned)v < (n));                                                         \
		return names[v];                                                                   \
	}

// clang-format off
NAMES(role_name, enum role, ROLE_N,
	[ROLE_PREFILL] = "prefill", [ROLE_DECODE] = "decode")
NAMES(policy_name, enum policy_kind, POLICY_N,
	[POLICY_ROUND_ROBIN] = "round_robin", [POLICY_LEAST_LOADED] = "least_loaded",
	[POLICY_POWER_OF_TWO] = "power_of_two", [POLICY_RANDOM] = "random",
	[POLICY_SESSION] = "session", [POLICY_PREFIX] = "prefix",
	[POLICY_CACHE_AWARE] = "cache_aware")
NAMES(load_name, enum load_kind, LOAD_N,
	[LOAD_REQUESTS] = "requests", [LOAD_TOKENS] = "tokens")
NAMES(pairing_name, enum pairing_kind, PAIRING_N,
	[PAIRING_PREFER] = "prefer", [PAIRING_REQUIRE] = "require")
NAMES(engine_name, enum engine_kind, ENGINE_N,
	[ENGINE_VLLM] = "vllm", [ENGINE_SGLANG] = "sglang")
NAMES(handoff_name, enum handoff_kind, HANDOFF_N,
	[HANDOFF_KV_TRANSFER_PARAMS] = "kv_transfer_params",
	[HANDOFF_DISAGG_PREFILL_RESP] = "disagg_prefill_resp",
	[HANDOFF_TRANSFER_ID] = "transfer_id")
NAMES(remote_host_name, enum remote_host_kind, REMOTE_HOST_N,
	[REMOTE_HOST_KEEP] = "keep", [REMOTE_HOST_PREFILL] = "prefill_host")
NAMES(transfer_mode_name, enum transfer_mode, TRANSFER_N,
	[TRANSFER_PULL] = "pull", [TRANSFER_PUSH] = "push")
NAMES(bootstrap_name, enum bootstrap_kind, BOOTSTRAP_N,
	[BOOTSTRAP_LEARNED] = "learned", [BOOTSTRAP_STREAM] = "stream")
NAMES(single_role_name, enum single_role_kind, SINGLE_ROLE_N,
	[SINGLE_ROLE_PREFILL] = "prefill", [SINGLE_ROLE_DECODE] = "decode",
	[SINGLE_ROLE_AUTO] = "auto")
NAMES(fallback_name, enum fallback_kind, FALLBACK_N,
	[FALLBACK_DIRECT] = "direct", [FALLBACK_NONE] = "none")
NAMES(scheme_name, enum scheme_kind, SCHEME_N,
	[SCHEME_HTTP] = "http", [SCHEME_HTTPS] = "https")
// clang-format on

const struct conf_pool *
conf_pool_named(const struct conf *c, const char *name)
{
	for (size_t i = 0; i < c->npools; i++)
		if (strcmp(c->pools[i].name, name) == 0)
			return &c->pools[i];
	return NULL;
}
