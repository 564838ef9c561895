/* The client's bytes. */
#include "worker/base/text.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "worker/base/core.h"

#define BODY "{\"model\":\"m\",\"stream\":true,\"messages\":[]}"

Test(text, its_members_take_what_they_need)
{
	static struct worker w;
	struct text *text = text_new(&w);
	const struct splice_member *m;
	char *next;

	text->body = strdup(BODY);
	text->body_len = strlen(BODY);
	for (int round = 0; round < 2; round++) {
		cr_assert_null(text_scan(text));
		cr_assert_eq(text->doc->nowned, 3);
		next = block_copy(&w.blocks, text->doc, splice_size(text->doc));
		cr_assert_lt(labs(next - (char *)text->doc), (long)sizeof(struct splice) / 4,
			"they stand side by side");
		block_give(&w.blocks, next, splice_size(text->doc));
		m = splice_find(text->doc, SK_STREAM);
		cr_assert_eq(strncmp(BODY + m->val, "true", m->end - m->val), 0);
		text_drop_doc(text);
	}
	text->body[0] = '[';
	cr_assert_not_null(text_scan(text));
	cr_assert_null(text->doc);
	free(text->body);
	free(text);
	blocks_free(&w.blocks);
}
