/*
 * The master's part of ejection (shm/eject.h): what probes say of an endpoint that is out, and that never
 * more are out than may be.
 *
 * Process: master.
 */
#pragma once

struct endpoint;
struct fleet;

/* It comes up: what its requests met before was of its former life. */
void ejected_up(const struct endpoint *ep);
/* It is up and has answered a probe: enough for one that only refused connections, not for one that fails
 * requests. */
void ejected_probed(const struct endpoint *ep);
/*
 * States or table have changed, or a worker has died: brings back what may no longer be out.  Exact once
 * nobody reads an older table.
 */
void ejected_trim(struct fleet *f);
