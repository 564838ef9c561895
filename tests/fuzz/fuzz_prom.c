/*
 * proto/prom: the input is a page, and a label value.
 *
 * Held against it: figures are finite and in their bounds; the same page twice in one says counts
 * twice and the same usage; a line written with prom_label() is read, and nothing of it is cut off.
 */
#include "proto/prom.h"

#include <math.h>

#include "tests/fuzz/check.h"

static void
check_load(const struct prom_load *l)
{
	CHECK(isfinite(l->running) && l->running >= 0);
	CHECK(isfinite(l->waiting) && l->waiting >= 0);
	CHECK(isfinite(l->kv_usage) && l->kv_usage >= 0 && l->kv_usage <= 1);
}

static bool
near(double a, double b)
{
	return fabs(a - b) <= 1e-9 * fmax(fabs(a), fabs(b));
}

static void
check_page(const char *text, size_t size)
{
	char *page = exact_copy(text, size), *twice = malloc(2 * size + 1);
	struct prom_load one, two;
	uint64_t bad_one, bad_two;
	int r = prom_read_load(page, size, &one, &bad_one);

	CHECK(twice != NULL);
	memcpy(twice, text, size);
	twice[size] = '\n';
	memcpy(twice + size + 1, text, size);
	CHECK(prom_read_load(twice, 2 * size + 1, &two, &bad_two) == r);
	CHECK(bad_two == 2 * bad_one);
	check_load(&one);
	check_load(&two);
	CHECK(near(two.running, 2 * one.running));
	CHECK(near(two.waiting, 2 * one.waiting));
	CHECK(near(two.kv_usage, one.kv_usage));
	free(page);
	free(twice);
}

static void
check_label(const char *text, size_t size)
{
	static const char head[] = "vllm:num_requests_running{a=\"",
			  tail[] = "\",tp_rank=\"1\"} 7\n";
	size_t room = 2 * size + 1, n;
	char *line = malloc(sizeof(head) + room + sizeof(tail)), *clipped = malloc(size / 2 + 1);
	struct prom_load load;
	uint64_t bad;

	CHECK(line != NULL && clipped != NULL);
	memcpy(line, head, sizeof(head) - 1);
	n = prom_label(line + sizeof(head) - 1, room, text, size);
	CHECK(n >= size && n < room && strlen(line) == sizeof(head) - 1 + n);
	memcpy(line + sizeof(head) - 1 + n, tail, sizeof(tail));
	CHECK(prom_read_load(line, strlen(line), &load, &bad) == 0);
	CHECK(load.running == 7 && bad == 0);

	n = prom_label(clipped, size / 2 + 1, text, size);
	CHECK(n <= size / 2 && clipped[n] == '\0');
	CHECK(memcmp(clipped, line + sizeof(head) - 1, n) == 0);
	free(line);
	free(clipped);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	check_page((const char *)data, size);
	check_label((const char *)data, size);
	return 0;
}
