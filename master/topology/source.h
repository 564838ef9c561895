/* The fleet file as a source of a pool's endpoints: what `fleet_file` of pdrouter.yaml names. */
#pragma once
#include "master/config/conf.h"

/* The engines of the plan that pdfleet renders.  The first finding of a plan is the error. */
conf_fleet_fn topo_source;
