/* The legs of an attempt. */
#pragma once
#include "shm/base/conf.h"

/* The first two are roles: enum role converts. */
enum leg_kind { LEG_PREFILL = ROLE_PREFILL, LEG_DECODE = ROLE_DECODE, LEG_LOOKUP, LEG_N };
