/* Queue keys: requests with equal keys can be served by the same engines, and a model is one model whatever its requests
 * need. */
#include "worker/schedule/way.h"

#include <criterion/criterion.h>
#include <string.h>

#include "shm/queue.h"
#include "shm/table.h"
#include "worker/handshake/connector.h"

static uint64_t
key_of(const char *model, uint64_t holder, const struct connector *c)
{
	const struct way way = {.connector = c};
	struct facts facts = {.route = ROUTE_CHAT, .holder = holder};
	uint64_t key;

	facts_init(&facts);
	facts_set(&facts.model, model, strlen(model));
	key = way_queue_key(&way, &facts);
	facts_fini(&facts);
	return key;
}

Test(way, requests_for_different_engines_are_of_one_model)
{
	const uint64_t any = key_of("a", 0, &connector_single);
	const uint64_t one = key_of("a", table_url_hash("http://one:1"), &connector_single);
	const uint64_t two = key_of("a", table_url_hash("http://two:2"), &connector_single);

	cr_assert(any != one && one != two && any != two);
	cr_assert_eq(queue_model(one), queue_model(any));
	cr_assert_eq(queue_model(two), queue_model(any));
}

Test(way, models_differ_and_ways_of_one_model_do_not)
{
	const uint64_t a = key_of("a", 0, &connector_single),
		       direct = key_of("a", 0, &connector_direct);

	cr_assert_neq(queue_model(a), queue_model(key_of("b", 0, &connector_single)));
	cr_assert_neq(a, direct);
	cr_assert_eq(queue_model(a), queue_model(direct));
	cr_assert_neq(key_of("", 0, &connector_single), 0);
}
