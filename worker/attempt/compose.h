/*
 * What each leg of an attempt is sent.
 *
 * Process: worker.
 */
#pragma once
#include <stdbool.h>

struct leg;
struct leg_message;

/* Lays the leg's request out (leg_ops.compose).  Returns false if it must not be sent any more. */
bool compose_leg(struct leg *leg, struct leg_message *m);
