/* What topo_plan_make() derives from a fleet file and its template: each engine with its host, GPUs and ports. */
#pragma once
#include "master/config/conf.h"
#include "master/topology/template.h"
#include "master/topology/topology.h"

/* The ports first .. first + n - 1 of one name. */
struct topo_claim {
	const char *name;
	uint32_t first, n;
	const char *file; /* where the port is asked for */
	int line;
	const char
		*key; /* of the fleet file, which gives another port; NULL: `ports` of the group */
};

#define TOPO_CLAIMS_MAX 16

struct topo_claims {
	struct topo_claim v[TOPO_CLAIMS_MAX];
	size_t n;
};

struct topo_engine {
	enum topo_role role;
	uint32_t replica;
	const char *number;           /* what ${replica} means; NULL: the number itself */
	char *name;                   /* llama-70b-prefill-0: the instance of its unit */
	const struct topo_host *host; /* NULL: none fits */
	const struct topo_group *group;
	const struct topo_override *override; /* or NULL */
	struct topo_gpus gpus;
	struct topo_claims ports;
	/* with all ${names} replaced */
	struct topo_texts argv, file, cleanup;
	struct topo_settings env, endpoint;
};

/* Where the files of a host are: full paths, folders with a slash at their end. */
struct topo_paths {
	const char *fleet;   /* environment files, and the one more file that some engines have */
	const char *units;   /* drop-ins */
	const char *router;  /* the router's configuration */
	const char *control; /* the router's control socket; NULL: where pdrouter has it anyway */
};
extern const struct topo_paths topo_paths_system; /* below /etc */

struct topo_plan {
	const struct topology *t;
	const struct topo_paths *paths;
	const struct topo_template *template;
	const struct topo_connector *connector; /* NULL: no disaggregation */
	const struct topo_container *container; /* NULL: engines run without */
	struct topo_engine *engines;
	size_t nengines;
	struct topo_claims router_ports; /* beside those of `listen` */
	struct topo_claims
		config_ports; /* of router.config; only a plan without findings has them */
	struct topo_settings pool, router; /* of the template and the connector, names replaced */
	size_t composed; /* bytes of all texts that topo_compose() has made, with an overhead for each */
	/* what is wrong, in the order of the checks; a plan without findings can be rendered */
	struct conf_error *findings;
	size_t nfindings;
};

/* The first line of each file, with the fleet's name: a file without it is not touched. */
#define TOPO_HEAD "# Written by pdctl fleet for the fleet %s: change the fleet file instead."
/* Variables of each engine: its address, and a digest of its files.  The digest is there twice: by its environment file and by
 * its drop-in, so that an engine which has started between the writing of the two is known. */
#define TOPO_ENV_URL "PDROUTER_FLEET_URL"
#define TOPO_ENV_DIGEST "PDROUTER_FLEET_DIGEST"
#define TOPO_ENV_UNIT "PDROUTER_FLEET_UNIT"
/* What the files of an engine in the folder of the fleet have behind its name; NULL ends it. */
extern const char *const topo_engine_files[];
/* The unit of an engine, without `.service`. */
#define TOPO_UNIT "pdrouter-engine@"
/* The drop-in of a unit, from its folder. */
#define TOPO_DROP_IN TOPO_DROP_IN_DIR TOPO_DROP_IN_FILE
#define TOPO_DROP_IN_DIR ".service.d"
#define TOPO_DROP_IN_FILE "/engine.conf"
/* Of the variables above: no fleet file sets one. */
#define TOPO_ENV_PREFIX "PDROUTER_FLEET_"
