/* What an engine answers besides generating, and the /sim/ paths by which tests steer it. */
#pragma once

#include <stdbool.h>

#include "tests/engine/json.h"

struct buf;
struct conn;

void admin_absent(struct conn *c); /* 404, as FastAPI says it */
void admin_models(struct conn *c);
void admin_put_model(const struct conn *c, const char *name, struct buf *out);
bool admin_known_model(const struct conn *c, struct jv model); /* absent and null are the first */
void admin_refuse_model(struct conn *c, struct jv model);      /* 404 */
void admin_health(struct conn *c);
void admin_ready(struct conn *c);
void admin_metrics(struct conn *c);
void admin_version(struct conn *c);
void admin_server_info(struct conn *c);
void admin_load(struct conn *c);
void admin_abort_request(struct conn *c); /* SGLang's */
void admin_tokenize(struct conn *c);
void admin_detokenize(struct conn *c);
void admin_sim_fault(struct conn *c);
void admin_sim_health(struct conn *c);
void admin_sim_load(struct conn *c);
void admin_sim_pause(struct conn *c);
void admin_sim_last(struct conn *c);
void admin_sim_held(struct conn *c);
void admin_sim_reset(struct conn *c);
