#include "worker/request/status_page.h"

#include <stddef.h>

#include "worker/base/route.h"
#include "worker/request/relay.h"
#include "worker/request/req.h"

/* The bytes of a file, as they are when the program is built; the Makefile says that this object hangs on them. */
#define FILE_IN_PROGRAM(name, path)                                                                \
	__asm__(".pushsection .rodata, \"a\"\n.globl " #name "_begin, " #name                      \
		"_end\n.hidden " #name "_begin, " #name "_end\n" #name "_begin:\n.incbin \"" path  \
		"\"\n" #name "_end:\n.popsection\n");                                              \
	extern const char name##_begin[] __attribute__((visibility("hidden")));                    \
	extern const char name##_end[] __attribute__((visibility("hidden")))

FILE_IN_PROGRAM(status_html, "worker/request/status.html");
FILE_IN_PROGRAM(status_css, "worker/request/status.css");
FILE_IN_PROGRAM(status_js, "worker/request/status.js");
FILE_IN_PROGRAM(status_runbook, "etc/docs/runbook.md");

/* clang-format off */
static const struct {
	const char *begin, *end, *type;
} files[ROUTE_N] = {
	[ROUTE_HOME] = { status_html_begin, status_html_end, "text/html; charset=utf-8" },
	[ROUTE_STATUS] = { status_html_begin, status_html_end, "text/html; charset=utf-8" },
	[ROUTE_STATUS_STYLE] = { status_css_begin, status_css_end, "text/css; charset=utf-8" },
	[ROUTE_STATUS_SCRIPT] = { status_js_begin, status_js_end, "text/javascript; charset=utf-8" },
	[ROUTE_STATUS_RUNBOOK] = { status_runbook_begin, status_runbook_end, "text/plain; charset=utf-8" },
};
/* clang-format on */

void
status_page_answer(struct req *req)
{
	/* The page gets its files and its stream from here, and nothing from elsewhere; no other page may show it, or
	 * read what it gets.  The empty image is the page's icon. */
	static const char head[] =
		"Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; "
		"connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
		"frame-ancestors 'none'\r\n"
		"Cross-Origin-Resource-Policy: same-origin\r\n"
		"Cross-Origin-Opener-Policy: same-origin\r\n"
		"Referrer-Policy: no-referrer\r\n"
		"X-Content-Type-Options: nosniff\r\n"
		"Cache-Control: no-store\r\n";
	const enum route r = req->job.facts.route;

	relay_reply(req, 200, head, sizeof(head) - 1, files[r].type, files[r].begin,
		(size_t)(files[r].end - files[r].begin));
}
