/* Notices between instances: each reaches its instance, a batch is bounded, and a reader that does not read loses them. */
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "master/notifier/pass.h"
#include "shm/core/heritage.h"

#define ID "00-0001-000000000002-0003000000000004"
#define BATCH 3

static int older[2], oldest[2]; /* [0]: the reader's */
static struct notices_to to[2];
static struct heritage h = {.notices_to = to, .nnotices_to = 2};
static size_t got;

static void
setup(void)
{
	const int type = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;

	cr_assert_eq(socketpair(AF_UNIX, type, 0, older), 0);
	cr_assert_eq(socketpair(AF_UNIX, type, 0, oldest), 0);
	to[0] = (struct notices_to){1, oldest[1]};
	to[1] = (struct notices_to){3, older[1]};
	got = 0;
}

TestSuite(notifier_pass, .init = setup);

static void
take(void *arg, const char *id)
{
	(void)arg;
	cr_expect_str_eq(id, ID);
	got++;
}

Test(notifier_pass, each_reaches_its_instance)
{
	struct pass *p = pass_new(&h, BATCH);

	cr_expect_eq(pass_add(p, 3, ID), true);
	cr_expect_eq(pass_add(p, 3, ID), true);
	cr_expect_not(pass_add(p, 2, ID), "no such instance");
	cr_expect_eq(pass_send(p), 0);
	cr_expect_eq(pass_receive(oldest[0], take, NULL), PASS_NOTHING);
	cr_expect_eq(pass_receive(older[0], take, NULL), PASS_PACKET);
	cr_expect_eq(got, 2);
	cr_expect_eq(pass_receive(older[0], take, NULL), PASS_NOTHING);
	cr_expect_eq(close(older[1]), 0);
	cr_expect_eq(pass_receive(older[0], take, NULL), PASS_END);
	pass_free(&p);
}

Test(notifier_pass, a_batch_is_bounded)
{
	struct pass *p = pass_new(&h, BATCH);

	for (int i = 0; i < BATCH; i++)
		cr_expect_eq(pass_add(p, 1, ID), true);
	cr_expect_not(pass_add(p, 1, ID));
	cr_expect_eq(pass_send(p), 0);
	cr_expect_eq(pass_add(p, 1, ID), true);
	pass_free(&p);
}

Test(notifier_pass, a_reader_that_does_not_read_blocks_nobody)
{
	struct pass *p = pass_new(&h, BATCH);
	size_t lost = 0;

	for (int i = 0; i < 10000 && lost == 0; i++) {
		(void)pass_add(p, 1, ID);
		lost = pass_send(p);
	}
	cr_expect_eq(lost, 1);
	cr_expect_eq(close(oldest[0]), 0);
	(void)pass_add(p, 1, ID);
	cr_expect_eq(pass_send(p), 1, "an instance that has ended");
	pass_free(&p);
}
