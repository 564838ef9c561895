/* The client's bytes. */
#include "worker/base/text.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/core.h"

#define BODY "{\"model\":\"m\",\"stream\":true,\"messages\":[]}"

Test(text, its_members_take_what_they_need)
{
	static struct worker w;
	struct text *text = text_new(&w);
	const struct splice_member *m;

	text->body = strdup(BODY);
	text->body_len = strlen(BODY);
	for (int round = 0; round < 2; round++) { /* scanned again, it has its full size first */
		cr_assert_null(text_scan(text));
		cr_assert_eq(text->doc->nowned, 3);
		cr_assert_lt(malloc_usable_size(text->doc), sizeof(struct splice) / 4);
		m = splice_find(text->doc, SK_STREAM);
		cr_assert_eq(strncmp(BODY + m->val, "true", m->end - m->val), 0);
	}
	text->body[0] = '[';
	cr_assert_not_null(text_scan(text));
	cr_assert_null(text->doc);
	free(text->body);
	free(text);
}
