/*
 * The paths an engine answers alone, without a handoff: embeddings, rerank, responses, messages,
 * audio and their like; and the paths by which it is controlled, which no client should reach.
 */
#pragma once

struct conn;

void oneleg_answer(struct conn *c);      /* whose path is in oneleg.c's table */
void oneleg_model(struct conn *c);       /* /v1/models/{id} */
void oneleg_control(struct conn *c);     /* counted, 200 */
void oneleg_clear_cache(struct conn *c); /* the same; the prefix cache is empty then */
