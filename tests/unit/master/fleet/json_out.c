/* Texts of clients and engines in the JSON that pdctl prints. */
#include "master/fleet/json_out.h"

#include <criterion/criterion.h>
#include <json-c/json.h>

Test(json_out, a_terminal_finds_no_control_in_a_text)
{
	struct json_object *o = json_out_text("a\x1b[1m\n\x7f \xc2\x9b[2J \xc2\xa0\xc3\xa9 \xff");

	cr_expect_str_eq(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PLAIN),
		"\"a\\u001b[1m\\n\xef\xbf\xbd \xef\xbf\xbd[2J \xc2\xa0\xc3\xa9 \xef\xbf\xbd\"");
	(void)json_object_put(o);
}
