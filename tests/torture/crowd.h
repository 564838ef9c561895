/*
 * The children of one round: started, disturbed at random, ended.  As processes they are stopped and
 * killed by signals; as threads they are told to end their life and are joined.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "tests/torture/torture.h"

#define STOPS 1u /* may be stopped for a while */
#define RULES 4u /* in the place of the master: its memory is not read-only */
#define DIES 2u  /* may be killed; who does not die leaves by itself at the end of a round */

struct crew {
	void (*body)(struct life *);
	uint32_t first, count;        /* children first .. first + count - 1 */
	unsigned fate;                /* STOPS | DIES */
	unsigned often;               /* how often one of them is disturbed, against the others' */
	void (*bury)(uint32_t child); /* what a master does after waitpid; NULL: nothing */
	void (*wake)(uint32_t child); /* gets a thread out of its sleep; NULL: it does not sleep */
};

void crowd_init(bool threads, uint64_t seed);
uint64_t crowd_random(void);
void crowd_start(const struct crew *crew);
/* Stops or kills one of those whom it may befall; a killed one gets a successor. */
void crowd_disturb(uint64_t now_us);
/* Lets those go on whose stop is over. */
void crowd_resume(uint64_t now_us);
/* Those who die are killed and buried, the others leave. */
void crowd_end(const struct crew *crew);
void crowd_report(void);
