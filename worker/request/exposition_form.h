/*
 * Which text format of /metrics a scraper wants: its header Accept, with the q-values.
 *
 * Process: worker.
 */
#pragma once
#include "worker/request/exposition.h"

struct http_head;

/* OpenMetrics if the head names it, in a version that is known, and does not prefer text/plain. */
enum exposition_form exposition_form(const struct http_head *h);
const char *exposition_type(enum exposition_form form);
