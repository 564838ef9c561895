#include "worker/request/stats_names.h"

#include <event2/buffer.h>
#include <string.h>

#include "proto/wire/prom.h"
#include "shm/core/rcu.h"
#include "shm/named.h"
#include "worker/base/core.h"
#include "worker/request/exposition.h"

#define PIECE_SLOTS 256 /* slots between two looks at the length of the page */

/* clang-format off */
static const struct {
	const char *name, *type, *help;
	enum named_kind kind;
	enum named_what what;
} metrics[] = {
	{ "pdrouter_model_requests_total", "counter", "Requests that came to a pool, by the model that they name.", NAMED_MODELS, NAMED_REQUESTS },
	{ "pdrouter_model_prompt_tokens_total", "counter", "Tokens of prompts by model, as far as engines have said them.", NAMED_MODELS, NAMED_PROMPT },
	{ "pdrouter_model_cached_tokens_total", "counter", "Tokens of prompts by model that the engine had in its cache.", NAMED_MODELS, NAMED_CACHED },
	{ "pdrouter_model_completion_tokens_total", "counter", "Tokens of answers by model, as far as engines have said them.", NAMED_MODELS, NAMED_COMPLETION },
	{ "pdrouter_key_requests_total", "counter", "Requests with a key of api_keys_file, by the key's name.", NAMED_KEYS, NAMED_REQUESTS },
	{ "pdrouter_key_refused_total", "counter", "Requests with a key of api_keys_file that were answered with 403 or 429, by the key's name.", NAMED_KEYS, NAMED_REFUSED },
	{ "pdrouter_key_prompt_tokens_total", "counter", "Tokens of prompts by key, as far as engines have said them.", NAMED_KEYS, NAMED_PROMPT },
	{ "pdrouter_key_completion_tokens_total", "counter", "Tokens of answers by key, as far as engines have said them.", NAMED_KEYS, NAMED_COMPLETION },
};
/* clang-format on */

uint32_t
stats_names_metrics(void)
{
	return sizeof(metrics) / sizeof(metrics[0]);
}

static bool
is_last(const struct worker *w, enum named_kind kind, uint32_t slot)
{
	return slot + 1 == named_slots(w->seg, kind);
}

static void
series(const struct worker *w, const struct exposition *x, uint32_t metric, uint32_t slot)
{
	const enum named_kind kind = metrics[metric].kind;
	const enum named_what what = metrics[metric].what;
	struct named_figures f;
	char label[2 * NAMED_NAME];

	/* of the others only what has happened is shown */
	if (!named_read(w->seg, kind, slot, &f) ||
		(is_last(w, kind, slot) && f.count[NAMED_REQUESTS] == 0))
		return;
	(void)prom_label(label, sizeof(label), f.name, strlen(f.name));
	(void)evbuffer_add_printf(x->out, "%s{%s=\"%s\"} %llu\n", metrics[metric].name,
		kind == NAMED_KEYS ? "key" : "model", label, (unsigned long long)f.count[what]);
}

bool
stats_names(const struct worker *w, const struct exposition *x, uint32_t metric, uint32_t *at)
{
	const enum named_kind kind = metrics[metric].kind;
	const uint32_t end = named_slots(w->seg, kind);

	if (kind == NAMED_KEYS && !rcu_has_keys(w->seg))
		return true;
	if (*at == 0)
		exposition_heading(
			x, metrics[metric].name, metrics[metric].type, metrics[metric].help);
	for (uint32_t n = 0; n < PIECE_SLOTS && *at < end; n++)
		series(w, x, metric, (*at)++);
	if (*at < end)
		return false;
	*at = 0;
	return true;
}
