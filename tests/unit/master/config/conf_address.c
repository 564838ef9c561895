/* Addresses of a configuration: which of them other hosts reach. */
#include <criterion/criterion.h>
#include <stdbool.h>

#include "master/config/conf_address.h"
#include "shm/base/conf.h"

Test(conf_address, loopback_is_what_other_hosts_do_not_reach)
{
	static const struct {
		const char *text;
		bool loopback;
	} rows[] = {
		{"127.0.0.1:1", true},
		{"127.9.9.9:1", true},
		{"[::1]:1", true},
		{"[0:0::1]:1", true},
		{"localhost:1", true},
		{":1", false},
		{"0.0.0.0:1", false},
		{"[::]:1", false},
		{"10.0.0.127:1", false},
		{"gpu-1:1", false},
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct conf_listen l = {.text = NULL};

		cr_assert(conf_address_parse(rows[i].text, &l) == NULL);
		cr_expect(conf_address_is_loopback(&l) == rows[i].loopback, "%s", rows[i].text);
	}
}
