/*
 * proto/prom: the input is a page, and a label value.
 *
 * Held against it: figures are finite and in their bounds; a page says the same however it is cut;
 * the same page twice in one says counts twice and the same usage, whatever names are configured; a line written with prom_label() is read, and nothing of it is cut off.
 */
#include "proto/wire/prom.h"

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

static const struct prom_names names[] = {{NULL, NULL}, {"r", "vllm:num_requests_running"}};

static int
read_page(const char *text, size_t size, size_t step, const struct prom_names *as,
	struct prom_load *ret, uint64_t *ret_bad)
{
	struct prom_page *page = malloc(sizeof(*page));
	int r;

	CHECK(page != NULL);
	prom_begin(page, as);
	for (size_t at = 0; at < size; at += step)
		prom_feed(page, text + at, size - at < step ? size - at : step);
	r = prom_end(page, ret, ret_bad);
	free(page);
	return r;
}

static void
check_pieces(const char *page, size_t size, const struct prom_names *as, int r,
	const struct prom_load *whole, uint64_t bad)
{
	const size_t steps[] = {size < 256 ? 1 : size / 97, 13}; /* byte by byte is slow */
	struct prom_load cut;
	uint64_t bad_cut;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		CHECK(read_page(page, size, steps[i], as, &cut, &bad_cut) == r);
		CHECK(bad_cut == bad && cut.running == whole->running &&
			cut.waiting == whole->waiting && cut.kv_usage == whole->kv_usage);
	}
}

static void
check_page(const char *text, size_t size, const struct prom_names *as)
{
	char *page = exact_copy(text, size), *twice = malloc(2 * size + 1);
	struct prom_load one, two;
	uint64_t bad_one, bad_two;
	int r = read_page(page, size, size + 1, as, &one, &bad_one);

	CHECK(twice != NULL);
	memcpy(twice, text, size);
	twice[size] = '\n';
	memcpy(twice + size + 1, text, size);
	CHECK(read_page(twice, 2 * size + 1, 2 * size + 1, as, &two, &bad_two) == r);
	CHECK(bad_two == 2 * bad_one);
	check_load(&one);
	check_load(&two);
	CHECK(near(two.running, 2 * one.running));
	CHECK(near(two.waiting, 2 * one.waiting));
	CHECK(near(two.kv_usage, one.kv_usage));
	check_pieces(page, size, as, r, &one, bad_one);
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
	if (strlen(line) <= PROM_LINE_MAX) {
		CHECK(read_page(line, strlen(line), PROM_LINE_MAX, &names[0], &load, &bad) == 0);
		CHECK(load.running == 7 && bad == 0);
	}

	n = prom_label(clipped, size / 2 + 1, text, size);
	CHECK(n <= size / 2 && clipped[n] == '\0');
	CHECK(memcmp(clipped, line + sizeof(head) - 1, n) == 0);
	free(line);
	free(clipped);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		check_page((const char *)data, size, &names[i]);
	check_label((const char *)data, size);
	return 0;
}
