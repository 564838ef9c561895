/*
 * What each leg of an attempt is sent.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct leg;
struct leg_message;

/* Fills `m` with the leg's request (leg_ops.compose).  Returns false if the request must not be
 * sent any more. */
bool compose_leg(struct leg *leg, struct leg_message *m);
