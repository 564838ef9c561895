/* Which text format of /metrics the header Accept asks for. */
#include "worker/request/exposition_form.h"

#include <criterion/criterion.h>
#include <string.h>

#include "proto/http/http.h"

#define O EXPOSITION_OPENMETRICS
#define P EXPOSITION_PROMETHEUS
#define OM "application/openmetrics-text"

static enum exposition_form
asked(const char *first, const char *second)
{
	struct http_head h = {.nheaders = second != NULL ? 3 : 2};

	h.headers[0] = (struct http_header){.name = {"Host", 4}, .value = {OM, sizeof(OM) - 1}};
	h.headers[1] = (struct http_header){.name = {"Accept", 6}, .value = {first, strlen(first)}};
	if (second != NULL)
		h.headers[2] = (struct http_header){
			.name = {"accept", 6}, .value = {second, strlen(second)}};
	return exposition_form(&h);
}

Test(exposition_form, as_accept_says)
{
	static const struct {
		const char *accept;
		enum exposition_form form;
	} rows[] = {
		/* Prometheus 3, 2.5x with and without protobuf, 2.2x */
		{OM ";version=1.0.0;escaping=allow-utf-8;q=0.5," OM
		    ";version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
		    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
			O},
		{"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;"
		 "encoding=delimited," OM ";version=1.0.0;q=0.8," OM
		 ";version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
			O},
		{OM "; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", O},
		{"text/plain;version=0.0.4;q=1,*/*;q=0.1", P},
		/* others */
		{"", P},
		{"*/*", P},
		{"text/html, */*;q=0.8", P},
		{"application/*", P},
		{OM, O},
		{"Application/OpenMetrics-Text ; Q=0.5", O},
		{OM ", text/plain", O},
		{OM ";q=0.4, text/plain;q=0.5", P},
		{OM ";q=0.4, text/*;q=0.5", P},
		{OM ";q=0.4, */*;q=0.5", P},
		{OM ";q=0.4, */*;q=1, text/plain;q=0.1", O},
		{"text/plain;q=0.1, text/*;q=1, " OM ";q=0.4", O},
		{OM ";q=0, */*", P},
		{OM ";q=0", P},
		{OM ";q=0.001", O},
		{OM ";q=1.000", O},
		{OM ";version=2.0.0, text/plain;q=0.1", P},
		{OM ";q=2;version=1.0.0, text/plain", O},
		{OM ";q=x, text/plain;q=0.9", O},
		{OM ";q=, text/plain", O},
		{";;,,=;q", P},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		cr_assert_eq(asked(rows[i].accept, NULL), rows[i].form, "%s", rows[i].accept);
}

Test(exposition_form, a_list_may_come_in_several_headers)
{
	cr_assert_eq(asked("text/plain;q=0.2", OM ";q=0.3"), O);
	cr_assert_eq(asked(OM ";q=0.3", "text/plain;q=0.4"), P);
}

Test(exposition_form, no_header_is_prometheus_own)
{
	const struct http_head h = {.nheaders = 0};

	cr_assert_eq(exposition_form(&h), P);
}
