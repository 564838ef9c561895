#include "worker/schedule/shortage.h"

#include "shm/queue.h"

#define OLD_WORKER "its engines speak TLS, and this worker began before the pool did"

/* No endpoint of that role could serve. */
static enum req_end
none_serves(struct shortage *ret, const struct selection *s)
{
	struct selection with_tls = *s;

	with_tls.plain_only = false;
	if (s->plain_only && select_served(&with_tls))
		ret->detail = OLD_WORKER;
	return s->role == ROLE_PREFILL ? END_NO_PREFILL : END_NO_DECODE;
}

enum req_end
shortage_of_one(struct shortage *ret, const struct selection *s, uint32_t n)
{
	if (!select_served(s))
		return none_serves(ret, s);
	ret->detail = role_name(s->role);
	ret->roles |= 1u << s->role;
	ret->hopeless = select_room(s).slots < n;
	return END_NO_CAPACITY;
}

/* Where both roles are short a waiter may wait for either.  Decode engines keep their slots longer. */
static enum req_end
no_capacity(struct shortage *ret, const struct selection s[ROLE_N], uint32_t n, uint64_t slots)
{
	const bool p_short = select_room(&s[ROLE_PREFILL]).free < n;
	const bool d_short = select_room(&s[ROLE_DECODE]).free < n;

	ret->detail = role_name(p_short ? ROLE_PREFILL : ROLE_DECODE);
	ret->roles = d_short   ? 1u << ROLE_DECODE
		     : p_short ? 1u << ROLE_PREFILL
			       : QUEUE_ALL_ROLES; /* both are free, but not in one group */
	ret->hopeless = slots < n;
	return END_NO_CAPACITY;
}

enum req_end
shortage_of_both(struct shortage *ret, const struct selection s[ROLE_N], uint32_t n)
{
	const uint64_t slots = select_room_of_both(s).slots;

	if (slots > 0)
		return no_capacity(ret, s, n, slots);
	if (!select_served(&s[ROLE_PREFILL]))
		return none_serves(ret, &s[ROLE_PREFILL]);
	if (!select_served(&s[ROLE_DECODE]))
		return none_serves(ret, &s[ROLE_DECODE]);
	ret->detail = "pairing requires one in the group of a prefill engine";
	return END_NO_DECODE;
}

enum req_end
shortage_now(struct shortage *ret, const struct selection s[ROLE_N], uint32_t n)
{
	const struct select_room room = select_room_of_both(s);

	if (room.slots == 0 || room.free >= n)
		return END_OK;
	return no_capacity(ret, s, n, room.slots);
}
