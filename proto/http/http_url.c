/* URLs of endpoints, as written in a configuration. */
#include "proto/http/http.h"
#include "proto/http/http_bytes.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <strings.h>

static int
bad_url(const char **ret_why, const char *why)
{
	*ret_why = why;
	return -EINVAL;
}

/* NULL if s is a name or an IPv4 address that can be looked up, else the reason why not. */
static const char *
check_name(const char *s, size_t n)
{
	bool numeric = true;
	struct in_addr addr;

	if (n == 0)
		return "the host is missing";
	for (size_t i = 0; i < n; i++) {
		if (!is_digit(s[i]) && s[i] != '.')
			numeric = false;
		if (!is_digit(s[i]) && !(lower(s[i]) >= 'a' && lower(s[i]) <= 'z') &&
			strchr("-._", s[i]) == NULL)
			return "the host name has a character that host names do not have";
		if (s[i] == '.' && (i == 0 || s[i - 1] == '.'))
			return "the host name has an empty label";
	}
	if (numeric && inet_pton(AF_INET, s, &addr) != 1)
		return "the host is not a valid IPv4 address";
	return NULL;
}

/* Parses the host at *p into ret->host and advances *p; NULL or the reason of the error. */
static const char *
take_host(const char **p, struct http_url *ret)
{
	const char *start = *p + (**p == '['), *stop;
	struct in6_addr addr;

	ret->ipv6 = **p == '[';
	stop = start + strcspn(start, ret->ipv6 ? "]" : ":/");
	if (ret->ipv6 && *stop != ']')
		return "the IPv6 address has no closing bracket";
	if ((size_t)(stop - start) >= sizeof(ret->host))
		return "the host name is too long";
	memcpy(ret->host, start, (size_t)(stop - start));
	ret->host[stop - start] = '\0';
	*p = stop + ret->ipv6;
	if (!ret->ipv6)
		return check_name(ret->host, (size_t)(stop - start));
	return inet_pton(AF_INET6, ret->host, &addr) == 1 ? NULL
							  : "the host is not a valid IPv6 address";
}

static const char *
take_port(const char **p, struct http_url *ret)
{
	const char *s = *p;
	unsigned port = 0;

	ret->port = ret->tls ? 443 : 80;
	if (*s != ':')
		return *s == '\0' || *s == '/'
			       ? NULL
			       : "there is something between the host and the port or path";
	for (s++; is_digit(*s) && port <= UINT16_MAX; s++)
		port = port * 10 + (unsigned)(*s - '0');
	if (port == 0 || port > UINT16_MAX || (*s != '\0' && *s != '/'))
		return "the port is not a number from 1 to 65535";
	ret->port = (uint16_t)port;
	*p = s;
	return NULL;
}

static const char *
take_prefix(const char *s, struct http_url *ret)
{
	size_t n = strlen(s);

	for (const char *c = s; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~' || *c == '?' || *c == '#')
			return "the path has a blank, a query, a fragment or a byte that must be "
			       "percent-encoded";
	while (n > 0 && s[n - 1] == '/')
		n--;
	if (n >= sizeof(ret->prefix))
		return "the path is too long";
	memcpy(ret->prefix, s, n);
	ret->prefix[n] = '\0';
	return NULL;
}

static const char plain_scheme[] = "http://", tls_scheme[] = "https://";

static bool
begins_with(const char *text, const char *scheme)
{
	return strncasecmp(text, scheme, strlen(scheme)) == 0;
}

bool
http_url_is_tls(const char *text)
{
	return begins_with(text, tls_scheme);
}

int
http_url_parse(const char *text, struct http_url *ret, const char **ret_why)
{
	struct http_url url;
	const char *p = text, *why;

	url.tls = http_url_is_tls(text);
	if (!url.tls && !begins_with(text, plain_scheme))
		return bad_url(ret_why, "the URL does not start with http:// or https://");
	p += strlen(url.tls ? tls_scheme : plain_scheme);
	why = take_host(&p, &url);
	if (why == NULL)
		why = take_port(&p, &url);
	if (why == NULL)
		why = take_prefix(p, &url);
	if (why != NULL)
		return bad_url(ret_why, why);
	*ret = url;
	return 0;
}

/* The byte of a code %xx at p, or -1. */
static int
percent_code(const char *p, size_t n)
{
	int high = n >= 3 && p[0] == '%' ? hex_digit[(unsigned char)p[1]] : 0;
	int low = high > 0 ? hex_digit[(unsigned char)p[2]] : 0;

	return high > 0 && low > 0 ? (high - 1) << 4 | (low - 1) : -1;
}

bool
http_percent_decode(struct span in, char *buf, size_t size)
{
	size_t n = 0;

	for (size_t i = 0; i < in.n; i++) {
		int code = percent_code(in.p + i, in.n - i);
		char c = code >= 0 ? (char)code : in.p[i];

		if (n + 1 >= size || c == '\0') {
			buf[0] = '\0';
			return false;
		}
		if (code >= 0)
			i += 2;
		buf[n++] = c;
	}
	buf[n] = '\0';
	return true;
}
