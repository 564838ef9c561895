/*
 * The endpoint table as one JSON object (`pdctl status --json`).
 *
 * Process: master.
 */
#pragma once

struct evbuffer;
struct fleet;

void status_json(struct fleet *f, struct evbuffer *out);
