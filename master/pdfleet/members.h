/* The engines of this host: those of the fleet file, those that it does not have any more, and what each runs. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "master/pdfleet/routers.h"
#include "master/pdfleet/runner.h"
#include "master/pdfleet/unit_file.h"
#include "master/topology/render.h"

/* What has to be done with an engine; engines with a lower one are settled before those with a higher one begin. */
enum change {
	CHANGE_REMOVE, /* the fleet file does not have it: its GPUs and ports may be another one's now */
	CHANGE_START,   /* it does not run */
	CHANGE_UNDRAIN, /* it runs as the file says, and is drained */
	CHANGE_NONE,    /* it runs as the file says */
	CHANGE_RESTART, /* it runs with other files */
	CHANGE_N
};

/* What is printed of a change. */
struct change_words {
	const char *actions[4]; /* plan: what apply will do, in order; NULL behind them */
	const char *differs;    /* status: from the fleet file; NULL: it does not */
};
extern const struct change_words change_words[CHANGE_N];

/* steps.h has the table of them. */
enum step {
	STEP_TURN,
	STEP_DRAIN,
	STEP_STOP,
	STEP_START,
	STEP_HEALTH,
	STEP_UP,
	STEP_BACK,
	STEP_BACK_HEALTH,
	STEP_DONE,
	STEP_GONE,
	STEP_LEFT,
	STEP_FAILED,
	STEP_N
};

struct member {
	const struct topo_engine *engine; /* NULL: the fleet file does not have it */
	char *unit;
	const char *name; /* inside `unit`, behind TOPO_UNIT */
	enum topo_role role;
	char *url;               /* of what runs, else of the fleet file; NULL: unknown */
	char *drained;           /* the URL that this run has drained; NULL: none */
	struct topo_files files; /* as they should be */
	struct unit_status status;
	enum change change;
	enum step step;         /* W: step_enter() */
	uint64_t late_ms;       /* when the step's time is over, by clock_ms() */
	unsigned failed;        /* probes of its health in a row, before it is taken away */
	enum routers_load left; /* what it had when the time of its drain was over */
	uint64_t
		waits_ms; /* when its step is said to be a wait, by clock_ms(); UINT64_MAX: it has been */
};

struct members {
	struct member *v; /* by change, then as in the fleet file */
	size_t n;
};

/* What decides the change of an engine. */
struct member_facts {
	bool wanted;  /* the fleet file has it */
	bool runs;    /* its process is there */
	bool current; /* with the files of the plan */
	bool drained; /* by a router of this host, and drains are not to be kept */
	bool again;   /* it is to be restarted anyway */
};
enum change member_change(const struct member_facts *f);

/* Whether an engine serves no request: one slow answer is not enough, and a router that chooses it knows better. */
bool member_is_down(unsigned failed, enum routers_view view);

struct members_options {
	bool remove; /* as if the fleet file had no engine on this host */
	bool again;  /* restart what runs as the file says, too */
	char *const *
		only; /* `again` is for these engines, by name with or without the fleet's; NULL: for all */
	int nonly;
	bool keep_drains; /* an engine that is drained stays drained */
};

/* Whether `word` names the engine: NAME, or NAME without the fleet's in front of it. */
bool member_is_named(const char *name, const char *fleet, const char *word);
/* 0, or -1 after a message; *ret is to be freed in both cases. */
int members_look(const struct topo_plan *p, const struct topo_host *h, const struct runner *r,
	const struct routers *routers, const struct members_options *o, struct members *ret);
void members_free(struct members *m);

/* Of the engine that runs, else of the fleet file; the caller frees it.  NULL: unknown. */
char *member_url(const struct runner *r, const struct member *m);
/* The paths of the fleet's files that the engine does not need any more, in the order of their removal.  An engine that is
 * gone needs none.  To be freed by words_free(). */
struct words member_spare_files(const struct runner *r, const char *fleet, const struct member *m);
/* Whether the engine's process runs with the digest of the plan, from both files that have it. */
bool member_is_current(const struct runner *r, const struct member *m);
