/* The commands that look at this host and change nothing: status, logs. */
#pragma once
#include "master/pdfleet/runner.h"

/* Both return an exit code; `host` as host_find() takes it. */
/* The fleet file against what runs: 3 if this host is not as the file says, or an engine does not serve. */
int status_show(const struct topo_plan *p, const struct runner *r, const char *host);
/* The log of prefill-1, of FLEET-prefill-1, or of pdrouter: its last lines, and what follows. */
int status_logs(const struct topo_plan *p, const struct runner *r, const char *name);
