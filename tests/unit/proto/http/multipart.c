/* One field of a form (RFC 7578). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/multipart.h"

#define TYPE "multipart/form-data; boundary=XyZ"
#define PART(head, value) "--XyZ\r\nContent-Disposition: form-data; " head "\r\n\r\n" value "\r\n"

/* The value in brackets, "-" or "unclear"; the texts stand in exact allocations, so that ASan sees every byte too many. */
static const char *
field(const char *type, const char *body, size_t n)
{
	static char got[200];
	char *t = malloc(strlen(type) + 1), *b = malloc(n + 1);
	struct span v;
	enum multipart_found found;

	memcpy(t, type, strlen(type));
	memcpy(b, body, n);
	t = realloc(t, strlen(type) + (strlen(type) == 0));
	b = realloc(b, n + (n == 0));
	found = multipart_field((struct span){t, strlen(type)}, (struct span){b, n}, "model", &v);
	if (found == MULTIPART_FOUND)
		(void)snprintf(got, sizeof(got), "[%.*s]", (int)v.n, v.p);
	else
		(void)snprintf(got, sizeof(got), found == MULTIPART_NONE ? "-" : "unclear");
	free(t);
	free(b);
	return got;
}

static const struct {
	const char *type, *body, *want;
} rows[] = {
	{TYPE, PART("name=\"model\"", "whisper-1") "--XyZ--\r\n", "[whisper-1]"},
	{TYPE, PART("name=model", "whisper-1") "--XyZ--", "[whisper-1]"},
	{TYPE, PART("name=\"file\"; filename=\"a.wav\"", "\r\n--Xy\r\n\0RIFF") "--XyZ--", "-"},
	{TYPE,
		PART("name=\"file\"; filename=\"a.wav\"", "model")
			PART("name=\"model\"", "m") "--XyZ--",
		"[m]"},
	{TYPE, PART("name=\"model\"; filename=\"x\"", "no") PART("name=\"model\"", "m") "--XyZ--",
		"[m]"},
	{TYPE, PART("name=\"model\"", "") "--XyZ--", "[]"},
	{TYPE, "--XyZ\r\nContent-Type: text/plain\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n--XyZ--",
		"[m]"},
	{TYPE, PART("name=\"models\"", "m") "--XyZ--", "-"},
	{TYPE, PART("name=\"mode\"", "m") "--XyZ--", "-"},
	{TYPE, PART("name=\"model\"", "m"), "-"}, /* cut off */
	{TYPE, "--XyZ\r\nContent-Disposition: form-data; name=\"model\"\r\n", "-"},
	{TYPE, "--XyZ--\r\n", "-"},
	{TYPE, "", "-"},
	{TYPE, "preamble\r\n" PART("name=\"model\"", "m") "--XyZ--", "-"},
	{"Multipart/Form-Data; charset=UTF-8; Boundary=\"a b\"",
		"--a b\r\nContent-Disposition: x; name=model\r\n\r\nm\r\n--a b--", "[m]"},
	{"multipart/form-data", PART("name=\"model\"", "m") "--XyZ--", "-"},
	{"multipart/form-data; boundary=",
		"--\r\nContent-Disposition: x; name=model\r\n\r\nm\r\n----", "-"},
	{"application/json", PART("name=\"model\"", "m") "--XyZ--", "-"},
	{"", "", "-"},
	/* engines take the last of doubles, and spellings that RFC 2231 or a charset allows */
	{TYPE, PART("name=\"model\"", "a") PART("name=\"model\"", "b") "--XyZ--", "unclear"},
	{TYPE, PART("name=\"model\"", "a") PART("name=\"model\"; filename*=x", "b") "--XyZ--",
		"[a]"},
	{TYPE, PART("name=a\r\nContent-Disposition: form-data; name=\"model\"", "a") "--XyZ--",
		"unclear"},
	{TYPE, PART("name=\"a\"; name=\"model\"", "a") "--XyZ--", "unclear"},
	{TYPE, PART("name*=utf-8''model", "a") "--XyZ--", "unclear"},
	{TYPE, PART("name*0=mo; name*1=del", "a") "--XyZ--", "unclear"},
	{TYPE, PART("x=\"\\\"; y=\"; name=model", "a") "--XyZ--", "unclear"},
	{TYPE, PART("x=a\"; y=\"; name=model", "a") "--XyZ--", "unclear"},
	{TYPE, PART("name=<model>", "a") "--XyZ--", "unclear"},
	{TYPE, PART("name =model", "a") "--XyZ--", "unclear"},
	{TYPE, PART("name=model\xa0", "a") "--XyZ--", "unclear"},
	{TYPE, PART("name=\"model\"", "a") "--XyZ \r\n--XyZ--", "unclear"},
	{TYPE "; boundary=b", PART("name=\"model\"", "a") "--XyZ--", "-"},
	{TYPE "; charset=utf-7", PART("name=\"model\"", "a") "--XyZ--", "-"},
};

Test(multipart, rows)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		cr_expect_str_eq(field(rows[i].type, rows[i].body, strlen(rows[i].body)),
			rows[i].want, "row %zu", i);
}

/* Cut anywhere, it is never found: what is missing might change it. */
Test(multipart, every_prefix)
{
	static const char body[] =
		PART("name=\"file\"; filename=\"f\"", "x") PART("name=\"model\"", "m") "--XyZ--";

	for (size_t n = 0; n < sizeof(body) - 1; n++)
		cr_expect_str_eq(field(TYPE, body, n), "-", "%zu bytes", n);
	cr_expect_str_eq(field(TYPE, body, sizeof(body) - 1), "[m]");
}

Test(multipart, a_boundary_has_an_end)
{
	char type[200];

	(void)snprintf(type, sizeof(type), "multipart/form-data; boundary=%071d", 0);
	cr_expect_str_eq(field(type, "--", 2), "-");
}
