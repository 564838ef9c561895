/* Inside master/topology/: text that is put together, and systemd's quoting. */
#pragma once
#include "shm/base/mem.h"

void topo_add(struct membuf *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* One argument of ExecStart= (systemd.service(5), "Command lines"): in quotes, % and $ doubled. */
void topo_add_exec(struct membuf *out, const char *arg);
/* A value of an EnvironmentFile= (systemd.exec(5)): in quotes; a shell reads the same. */
void topo_add_env(struct membuf *out, const char *value);
/* A text of a YAML file: in quotes, with the escapes that it needs. */
void topo_add_yaml(struct membuf *out, const char *s);
