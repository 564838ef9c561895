/* Inside master/topology/: readers of the values that the fleet file and the templates share. */
#pragma once
#include "master/config/conf_read.h"
#include "master/topology/topology.h"

/* A row of a table: a key read by its type (conf_value.c), or by a reader of its own. */
#define TOPO_KEY(path, type, s, m, min, max, def, doc)                                             \
	{                                                                                          \
		path, CONF_T_##type, offsetof(struct s, m), 0, min, max, def, CONF_LIVE, doc, NULL \
	}
#define TOPO_OWN(path, reader, s, m, def, doc)                                                     \
	{                                                                                          \
		path, CONF_T_OWN, offsetof(struct s, m), 0, 0, 0, def, CONF_LIVE, doc, reader      \
	}
#define TOPO_ROWS(v)                                                                               \
	{                                                                                          \
		v, sizeof(v) / sizeof((v)[0])                                                      \
	}

/* Reads one entry of a list or a mapping into the struct at base; `name` is NULL in a list. */
typedef int topo_entry_fn(struct conf_read *r, void *base, const char *name, yaml_node_t *node);
/* Calls `fn` with each entry, at its position.  `wants`: "a list such as ...". */
int topo_read_list(
	struct conf_read *r, yaml_node_t *list, const char *wants, topo_entry_fn *fn, void *base);
int topo_read_map(struct conf_read *r, yaml_node_t *map, topo_entry_fn *fn, void *base);

conf_reader topo_read_texts;    /* struct topo_texts: a list; ${names} are checked */
conf_reader topo_read_settings; /* struct topo_settings: a mapping; ${names} are checked */
conf_reader topo_read_yaml;     /* struct topo_settings: a mapping, its values as YAML text */
conf_reader topo_read_ports;    /* struct topo_ports */

/* Reads the text into r->doc and walks its root with `keys`; `lines` as conf_walk() has it. */
int topo_read_document(struct conf_read *r, const void *text, size_t n,
	const struct conf_keys *keys, void *base, int *lines);
/* conf_walk() of an entry, whose lines no caller needs. */
int topo_walk(struct conf_read *r, const struct conf_keys *keys, void *base, yaml_node_t *node);

void topo_texts_free(struct topo_texts *v);
void topo_settings_free(struct topo_settings *v);
void topo_ports_free(struct topo_ports *v);
