/*
 * The endpoint table with states and loads, as people and programs read it.
 *
 * Process: master.
 */
#pragma once

struct evbuffer;
struct fleet;

/* Appends the table: for people (json = 0) or as one JSON object. */
void fleet_status(struct fleet *f, struct evbuffer *out, int json);
