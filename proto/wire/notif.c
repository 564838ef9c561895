/* Source: the message as LMCache 0.3.3 to 0.5.6 send it. */
#include "proto/wire/notif.h"

#include <string.h>

#include "proto/wire/msgpack.h"

static const char *const known_types[] = {
	"ProxyNotif",     /* LMCache 0.3.7 and later */
	"NixlProxyNotif", /* LMCache 0.3.3 to 0.3.5 */
};

struct members {
	bool typed;
	struct msgpack_text type, id;
};

static void
take(const struct msgpack_text *key, const struct msgpack_text *value, void *arg)
{
	struct members *m = arg;

	if (msgpack_is(key, "type")) {
		m->type = *value;
		m->typed = true;
	} else if (msgpack_is(key, "req_id")) {
		m->id = *value;
	}
}

static bool
is_known_type(const struct msgpack_text *v)
{
	for (size_t i = 0; i < sizeof(known_types) / sizeof(known_types[0]); i++)
		if (msgpack_is(v, known_types[i]))
			return true;
	return false;
}

/* No id of the router has control characters, and they would spoil a log line. */
static bool
is_usable_id(const struct msgpack_text *v)
{
	if (v->p == NULL || v->n == 0 || v->n > NOTIF_MAX_ID)
		return false;
	for (size_t i = 0; i < v->n; i++)
		if ((unsigned char)v->p[i] < 0x20 || v->p[i] == 0x7f)
			return false;
	return true;
}

int
notif_read(const void *msg, size_t len, struct notif *ret)
{
	struct members m = {.typed = false};

	if (!msgpack_map(msg, len, take, &m))
		return NOTIF_E_SYNTAX;
	if (m.typed && !is_known_type(&m.type))
		return NOTIF_E_TYPE;
	if (!is_usable_id(&m.id))
		return NOTIF_E_ID;
	memcpy(ret->req_id, m.id.p, m.id.n);
	ret->req_id[m.id.n] = '\0';
	return 0;
}
