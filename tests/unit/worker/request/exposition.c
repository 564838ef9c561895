/* The two text formats of /metrics. */
#include "worker/request/exposition.h"

#include <criterion/criterion.h>
#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>

#include "shm/exemplar.h"

static char text[8192];

static void
take(struct evbuffer *out)
{
	const int n = evbuffer_remove(out, text, sizeof(text) - 1);

	text[n > 0 ? n : 0] = '\0';
	evbuffer_free(out);
}

static void
heading(enum exposition_form form, const char *name, const char *type)
{
	const struct exposition x = {evbuffer_new(), form};

	exposition_heading(&x, name, type, "Help.");
	exposition_end(&x);
	take(x.out);
}

Test(exposition, counters_lose_total_in_openmetrics_alone)
{
	heading(EXPOSITION_PROMETHEUS, "a_total{by=\"b\"}", "counter");
	cr_assert_str_eq(text, "# HELP a_total Help.\n# TYPE a_total counter\n");
	heading(EXPOSITION_OPENMETRICS, "a_total{by=\"b\"}", "counter");
	cr_assert_str_eq(text, "# HELP a Help.\n# TYPE a counter\n# EOF\n");
}

Test(exposition, units_are_named_where_names_end_with_one)
{
	heading(EXPOSITION_OPENMETRICS, "sent_bytes_total", "counter");
	cr_assert_str_eq(text, "# HELP sent_bytes Help.\n# TYPE sent_bytes counter\n# UNIT "
			       "sent_bytes bytes\n# EOF\n");
	heading(EXPOSITION_OPENMETRICS, "seconds", "gauge");
	cr_assert_str_eq(text, "# HELP seconds Help.\n# TYPE seconds gauge\n# EOF\n");
	heading(EXPOSITION_PROMETHEUS, "sent_bytes_total", "counter");
	cr_assert_null(strstr(text, "UNIT"));
}

static void
histogram(enum exposition_form form, const char *labels)
{
	static const uint64_t bounds[] = {500, 2500000, 60000000}, counts[] = {1, 0, 2, 4};
	static const struct exemplar exemplars[4] = {
		[2] = {.trace = "0123456789abcdef0123456789abcdef",
			.us = 31000500,
			.at_ms = 1700000000050},
	};
	const struct exposition x = {evbuffer_new(), form};
	const struct exposition_histogram h = {.name = "t_seconds",
		.labels = labels,
		.bounds = bounds,
		.n = 3,
		.counts = counts,
		.sum = 1234567,
		.exemplars = form == EXPOSITION_OPENMETRICS ? exemplars : NULL};

	exposition_histogram(&x, &h);
	take(x.out);
}

Test(exposition, a_histogram_is_cumulative)
{
	histogram(EXPOSITION_PROMETHEUS, "a=\"b\"");
	cr_assert_str_eq(text, "t_seconds_bucket{a=\"b\",le=\"0.0005\"} 1\n"
			       "t_seconds_bucket{a=\"b\",le=\"2.5\"} 1\n"
			       "t_seconds_bucket{a=\"b\",le=\"60\"} 3\n"
			       "t_seconds_bucket{a=\"b\",le=\"+Inf\"} 7\n"
			       "t_seconds_sum{a=\"b\"} 1.234567\n"
			       "t_seconds_count{a=\"b\"} 7\n");
}

Test(exposition, openmetrics_has_a_point_in_each_bound_and_exemplars)
{
	histogram(EXPOSITION_OPENMETRICS, "a=\"b\"");
	cr_assert_not_null(strstr(text, "le=\"2.5\"} 1\n"));
	cr_assert_not_null(strstr(text, "le=\"60.0\"} 3 # {trace_id=\"0123456789abcdef0123456789"
					"abcdef\"} 31.000500 1700000000.050\n"));
}

/* Lines go to the page together, as many as there is room for. */
Test(exposition, long_labels_are_whole)
{
	char labels[900];

	memset(labels, 'a', sizeof(labels) - 1);
	memcpy(labels, "x=\"", 3);
	memcpy(labels + sizeof(labels) - 2, "\"", 2);
	histogram(EXPOSITION_OPENMETRICS, labels);
	cr_assert_eq(strlen(text),
		6 * (sizeof(labels) - 1) +
			strlen("t_seconds_bucket{,le=\"0.0005\"} 1\n"
			       "t_seconds_bucket{,le=\"2.5\"} 1\nt_seconds_bucket{,le=\"60.0\"} 3\n"
			       "t_seconds_bucket{,le=\"+Inf\"} 7\nt_seconds_sum{} 1.234567\nt_seconds_count{} 7\n"
			       " # {trace_id=\"0123456789abcdef0123456789abcdef\"} 31.000500 1700000000.050"));
}
