#include "proto/wire/registration.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "proto/wire/msgpack.h"

struct members {
	struct msgpack_text type, http, kv;
};

static void
take(const struct msgpack_text *key, const struct msgpack_text *value, void *arg)
{
	struct members *m = arg;

	if (msgpack_is(key, "type"))
		m->type = *value;
	else if (msgpack_is(key, "http_address"))
		m->http = *value;
	else if (msgpack_is(key, "zmq_address"))
		m->kv = *value;
}

/* Splits host:port into host and port; the host may have brackets. */
static bool
split(const struct msgpack_text *v, char host[REGISTRATION_ADDRESS], uint16_t *ret_port)
{
	const char *colon = v->p != NULL ? memrchr(v->p, ':', v->n) : NULL;
	const char *p = v->p;
	size_t n, digits = 0;
	uint32_t port = 0;

	if (colon == NULL || v->n >= REGISTRATION_ADDRESS)
		return false;
	for (const char *d = colon + 1; d < v->p + v->n; d++, digits++) {
		if (*d < '0' || *d > '9' || digits == 5)
			return false;
		port = port * 10 + (uint32_t)(*d - '0');
	}
	n = (size_t)(colon - p);
	if (n >= 2 && p[0] == '[' && p[n - 1] == ']') {
		p++;
		n -= 2;
	}
	if (digits == 0 || port == 0 || port > UINT16_MAX || n == 0)
		return false;
	memcpy(host, p, n);
	host[n] = '\0';
	if (strlen(host) != n) /* a NUL in it */
		return false;
	*ret_port = (uint16_t)port;
	return true;
}

static bool
read_http(const struct msgpack_text *v, struct registration *ret)
{
	char host[REGISTRATION_ADDRESS], text[INET6_ADDRSTRLEN];
	uint16_t port;

	if (!split(v, host, &port))
		return false;
	memset(ret->ip, 0, sizeof(ret->ip));
	ret->family = strchr(host, ':') != NULL ? AF_INET6 : AF_INET;
	if (inet_pton(ret->family, host, ret->ip) != 1 ||
		inet_ntop(ret->family, ret->ip, text, sizeof(text)) == NULL)
		return false;
	(void)snprintf(ret->http, sizeof(ret->http), ret->family == AF_INET6 ? "[%s]:%u" : "%s:%u",
		text, (unsigned)port);
	return true;
}

/* It becomes part of a request id, which is a header's value. */
static bool
read_kv(const struct msgpack_text *v, struct registration *ret)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
				    ".-:[]";
	char host[REGISTRATION_ADDRESS];
	uint16_t port;

	if (!split(v, host, &port) || host[strspn(host, plain)] != '\0')
		return false;
	memcpy(ret->kv, v->p, v->n);
	ret->kv[v->n] = '\0';
	return true;
}

int
registration_read(const void *msg, size_t len, struct registration *ret)
{
	struct members m = {.type = {NULL, 0}};

	if (!msgpack_map(msg, len, take, &m))
		return -1;
	if (msgpack_is(&m.type, "P"))
		ret->role = ROLE_PREFILL;
	else if (msgpack_is(&m.type, "D"))
		ret->role = ROLE_DECODE;
	else
		return -1;
	return read_http(&m.http, ret) && read_kv(&m.kv, ret) ? 0 : -1;
}
