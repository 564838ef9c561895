/*
 * No hand-shake: one engine serves a path alone (protocols.md 1.1).
 */
#include "worker/handshake/connector.h"

#include "worker/base/facts.h"
#include "worker/base/text.h"
#include "worker/handshake/edit.h"

static const struct connector_info none = {.cleanup = CLEANUP_NONE};

/*
 * vLLM's /inference/v1/generate takes its sampling parameters as they are (GenerateRequest in
 * entrypoints/serve/disagg/protocol.py), and takes KV parameters from `extra_args` among them
 * (SamplingParams, v1/request.py): a client could name any host there.  An escaped name is not looked into.
 */
static const char *
single_refuses(const struct demand *d)
{
	static const char *const names[] = {"extra_args"};

	if (d->facts->route != ROUTE_GENERATE_IDS ||
		!edit_hides(d->text->doc, SK_SAMPLING_PARAMS, names, 1))
		return NULL;
	return "`sampling_params` with `extra_args`, or with an escaped name";
}

const struct connector connector_single = {
	.info = &none,
	.engines = ENGINES_SINGLE,
	.starts = {[ROLE_PREFILL] = STARTS_NEVER, [ROLE_DECODE] = STARTS_AT_ONCE},
	.edit = {[ROLE_DECODE] = edit_nothing},
	.refuses = single_refuses,
};
