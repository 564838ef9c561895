/* Engines that have announced themselves, while another instance hears them. */
#include "master/fleet/announced.h"

#include "tests/unit/master/fleet.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/announce.h"
#include "shm/base/clock.h"
#include "shm/base/log.h"

#define P1 "http://127.0.0.1:8101"
#define FORGET_MS 300

static int wake_fd;
static struct conf *conf;

static void
setup(void)
{
	static char network[] = "127.0.0.0/8", *networks[] = {network}, listen[] = "tcp://*:1";
	const struct announcement one = {
		ROLE_PREFILL, "127.0.0.1:8101", "127.0.0.1:21001", clock_ms()};
	struct conf_pool *p;
	bool full;

	log_setup(LOG_L_ERROR, LOG_F_LOGFMT);
	fleet_setup(8, 4);
	wake_fd = eventfd(0, EFD_NONBLOCK);
	fleet_hear(fleet, wake_fd);
	conf = conf_make();
	conf->announce_listen = listen;
	conf->announce_forget_ms = FORGET_MS;
	p = conf_pool(conf, "main", "m");
	p->announce_networks = networks;
	p->nannounce_networks = 1;
	apply(conf);
	cr_assert(announce_put(seg, &one, FORGET_MS, &full));
}

static void
teardown(void)
{
	fleet_teardown();
	(void)close(wake_fd);
}

TestSuite(announced, .init = setup, .fini = teardown);

static bool
is_known_after(unsigned ms)
{
	(void)usleep(ms * 1000);
	announced_changed(fleet->announced);
	return endpoint_of(P1) != NULL;
}

Test(announced, forgotten_when_silent)
{
	cr_assert(is_known_after(0));
	cr_expect_not(is_known_after(FORGET_MS + 10));
}

Test(announced, silent_because_another_instance_hears_them)
{
	fleet_hold_state(fleet, true);
	cr_assert(is_known_after(FORGET_MS + 10));
	fleet_hold_state(fleet, false);
	cr_expect(is_known_after(0), "they have yet to speak to this instance again");
	cr_expect_not(is_known_after(FORGET_MS + 10));
}
