/*
 * A share of answers within the last 5 to 10 seconds: two words, each of one half of the window:
 *
 *	number of the half:32 | bad:16 | good:16
 *
 * Process: any; both words are changed by CAS.  Times are clock_ms().
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define WINDOW_HALF_MS 5000u

struct window_sum {
	uint32_t bad, good;
};

void window_add(uint64_t word[2], uint64_t now_ms, bool bad);
/* One bad answer did not count, if the window still has one. */
void window_take_back(uint64_t word[2], uint64_t now_ms);
struct window_sum window_read(const uint64_t word[2], uint64_t now_ms);
void window_forget(uint64_t word[2]);
