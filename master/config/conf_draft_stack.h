/* The flags of production-stack's router as a draft. */
#pragma once
#include "master/config/conf_draft_put.h"

/* 0, or -1 with the draft's error filled. */
int conf_draft_stack(struct conf_draft *d);
