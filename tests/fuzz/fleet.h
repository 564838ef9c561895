/* Configurations for the worker target: two engines of each role behind one connector, with short time limits. */
#pragma once
#include <stdint.h>

struct conf;
struct fleet;
struct rcu_writer;
struct seg;

#define FLEET_KINDS 14
#define FLEET_OPTIONS 64 /* a set of the bits below */
#define FLEET_ENGINES 4  /* prefill 0 and 1, decode 2 and 3; the port is PORT + number */
#define FLEET_PORT 9000
#define FLEET_KEY "sk-fuzz" /* that clients need with OPTION_KEYS; sk-other has no rights */

enum fleet_option {
	OPTION_RESCUE =
		1, /* resume, headers for route, deadline and priority; web pages of other origins */
	OPTION_FULL = 2,   /* one request at an engine, two that wait */
	OPTION_FANOUT = 4, /* fanout, a learned threshold, prompts that are told apart by prefix */
	OPTION_KEYS = 8,   /* clients need keys, with limits */
	OPTION_PROXY = 16, /* clients come by a proxy */
	OPTION_NARROW = 32 /* small limits of bodies and answers, and no retries */
};

/* Kept for ever; options that the kind has not are left out. */
struct fleet *fleet_get(unsigned kind, unsigned options);
const struct conf *fleet_conf(const struct fleet *f);
/* Names the kind for a message. */
const char *fleet_kind(unsigned kind);
/* The fleet's engines get their slots in this segment, are up, and its table and keys are published. */
void fleet_publish(struct fleet *f, struct seg *seg, struct rcu_writer *writer, uint64_t version);
