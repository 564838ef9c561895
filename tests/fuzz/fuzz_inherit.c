/*
 * master/supervise/inherit: the input is what one instance passes to the next in PDR_UPGRADE.
 *
 * Held against it: what is accepted names an instance and the one before it, and descriptors that are no
 * standard ones, each once; written and read again it is the same; what is refused has a reason.
 */
#include "master/supervise/inherit.h"

#include "tests/fuzz/check.h"

#define FDS_MAX (6 + 2 * INHERIT_OLD_MAX + INHERIT_LISTEN_MAX)

struct fds {
	int fd[FDS_MAX];
	size_t n;
};

static void
note(int fd, void *arg)
{
	struct fds *found = arg;

	CHECK(fd > 2 && fd <= INHERIT_FD_MAX && found->n < FDS_MAX);
	for (size_t i = 0; i < found->n; i++)
		CHECK(found->fd[i] != fd);
	found->fd[found->n++] = fd;
}

static void
check_again(const struct inherit *in)
{
	char *text = inherit_text(in), *twice;
	struct inherit again;
	const char *why;

	CHECK(inherit_parse(text, &again, &why) == 0);
	CHECK(again.nold == in->nold && again.nlisten == in->nlisten);
	twice = inherit_text(&again);
	CHECK(strcmp(text, twice) == 0);
	free(text);
	free(twice);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size); /* ends where its last byte is */
	const char *why = NULL;
	struct fds found = {.n = 0};
	struct inherit in;
	int rc = inherit_parse(text, &in, &why);

	free(text);
	if (rc != 0) {
		CHECK(why != NULL && why[0] != '\0');
		return 0;
	}
	CHECK(in.instance > 0 && in.from.talk > 2 && in.from.notices > 2);
	CHECK(in.nold <= INHERIT_OLD_MAX && in.nlisten <= INHERIT_LISTEN_MAX);
	CHECK((in.control == -1) == (in.control_lock == -1));
	inherit_each(&in, note, &found);
	check_again(&in);
	return 0;
}
