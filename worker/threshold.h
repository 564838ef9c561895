#pragma once
#include <stdbool.h>
#include <stdint.h>
#define THRESHOLD_BUCKETS 32
struct threshold_cell {
	float weight, mean;
};
struct threshold {
	uint64_t clock;
	uint32_t at; /* buckets below are direct */
	struct threshold_cell cell[2][THRESHOLD_BUCKETS];
};
void threshold_init(struct threshold *);
bool threshold_direct(struct threshold *, uint32_t estimate, uint64_t *rnd);
void threshold_learn(struct threshold *, uint32_t estimate, bool direct, uint64_t ttft_us);
uint32_t threshold_now(const struct threshold *);
