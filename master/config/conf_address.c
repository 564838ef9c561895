#include "master/config/conf_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "master/config/conf_number.h"
#include "shm/base/conf.h"

#define ALNUM "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

uint16_t
conf_port_of(const char *s)
{
	uint64_t v;
	size_t n = conf_digits(s, &v);

	return n > 0 && s[n] == '\0' && v <= 65535 ? (uint16_t)v : 0;
}

const char *
conf_host_check(const char *host)
{
	const char *last = strrchr(host, '.');
	struct in_addr a;

	if (strchr(host, ':') != NULL)
		return "an IPv6 address needs brackets: [::]:8000";
	if (host[strspn(host, ALNUM ".-_")] != '\0')
		return "not a host name (for all addresses write \":8000\")";
	last = last != NULL ? last + 1 : host;
	if (last[0] != '\0' && last[strspn(last, "0123456789")] == '\0' &&
		inet_pton(AF_INET, host, &a) != 1)
		return "not an IPv4 address";
	return NULL;
}

/* [literal] or [literal%zone], rewritten in its shortest form so that equal ones compare equal. */
static const char *
take_ipv6(struct conf_listen *l, const char *text, const char *close)
{
	char *zone;
	struct in6_addr a;

	(void)snprintf(l->host, sizeof(l->host), "%.*s", (int)(close - text - 1), text + 1);
	zone = strchr(l->host, '%');
	if (zone != NULL)
		*zone = '\0';
	if (inet_pton(AF_INET6, l->host, &a) != 1)
		return "not an IPv6 address";
	if (zone == NULL)
		(void)inet_ntop(AF_INET6, &a, l->host, sizeof(l->host));
	else if (zone[1] == '\0')
		return "an empty zone after %";
	else
		*zone = '%';
	return NULL;
}

const char *
conf_address_parse(const char *text, struct conf_listen *l)
{
	const char *colon = strrchr(text, ':'), *close = strchr(text, ']'), *why;

	if (colon == NULL || (close != NULL && colon < close))
		return "no port: write host:port";
	if ((size_t)(colon - text) >= sizeof(l->host))
		return "the host is too long";
	if (text[0] == '[') {
		if (close == NULL || close + 1 != colon)
			return "write [IPv6]:port";
		why = take_ipv6(l, text, close);
	} else {
		(void)snprintf(l->host, sizeof(l->host), "%.*s", (int)(colon - text), text);
		why = conf_host_check(l->host);
	}
	if (why != NULL)
		return why;
	l->port = conf_port_of(colon + 1);
	return l->port == 0 ? "the port is not a number from 1 to 65535" : NULL;
}

const char *
conf_listen_parse(const char *text, struct conf_listen *l)
{
	static const char unix_word[] = "unix:";
	const char *path = text + strlen(unix_word);

	if (strncmp(text, unix_word, strlen(unix_word)) != 0)
		return conf_address_parse(text, l);
	if (path[0] != '/')
		return "the path of a unix socket begins with a slash: unix:/run/pdrouter/admin.sock";
	if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return "the path is too long for a unix socket: 107 bytes at most";
	(void)snprintf(l->host, sizeof(l->host), "%s", path);
	return NULL;
}

bool
conf_address_is_loopback(const struct conf_listen *l)
{
	struct in_addr a;

	if (inet_pton(AF_INET, l->host, &a) == 1)
		return ntohl(a.s_addr) >> 24 == IN_LOOPBACKNET;
	return strcmp(l->host, "::1") == 0 || strcasecmp(l->host, "localhost") == 0;
}

bool
conf_listen_same(const struct conf_listen *a, const struct conf_listen *b)
{
	if (conf_listen_path(a) != NULL)
		return strcmp(a->host, b->host) == 0;
	return strcasecmp(a->host, b->host) == 0 && a->port == b->port;
}
