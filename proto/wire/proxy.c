#include "proto/wire/proxy.h"

#include <arpa/inet.h>
#include <stdbool.h>
#include <string.h>

#define V1_MAX 107 /* bytes, with CRLF */
#define V2_FIXED 16
#define V2_LOCAL 0x20
#define V2_PROXY 0x21
#define V2_TCP4 0x11
#define V2_TCP6 0x21

static const char v1_begin[] = "PROXY ";
static const char v2_begin[] = "\r\n\r\n\0\r\nQUIT\n";

/* As far as both go. */
static bool
begins(const char *p, size_t n, const char *with, size_t nwith)
{
	return memcmp(p, with, n < nwith ? n : nwith) == 0;
}

/* Cuts the next word off the line into `word`.  False: there is none, or it is too long. */
static bool
next_word(const char **line, char *word, size_t size)
{
	const size_t n = strcspn(*line, " ");

	if (n == 0 || n >= size)
		return false;
	memcpy(word, *line, n);
	word[n] = '\0';
	*line += n + ((*line)[n] == ' ');
	return true;
}

static bool
read_ip(uint8_t version, const char *text, uint8_t ip[16])
{
	return inet_pton(version == 4 ? AF_INET : AF_INET6, text, ip) == 1;
}

/* What follows "PROXY " in a whole line. */
static bool
read_v1(const char *line, struct proxy_from *ret)
{
	char kind[8], source[INET6_ADDRSTRLEN], rest[INET6_ADDRSTRLEN];
	uint8_t to[16];

	if (!next_word(&line, kind, sizeof(kind)))
		return false;
	if (strcmp(kind, "UNKNOWN") == 0)
		return true;
	ret->version = strcmp(kind, "TCP4") == 0 ? 4 : strcmp(kind, "TCP6") == 0 ? 6 : 0;
	if (ret->version == 0 || !next_word(&line, source, sizeof(source)) ||
		!next_word(&line, rest, sizeof(rest)) || !read_ip(ret->version, rest, to))
		return false;
	for (int i = 0; i < 2; i++) /* ports */
		if (!next_word(&line, rest, 6) || rest[strspn(rest, "0123456789")] != '\0')
			return false;
	return *line == '\0' && read_ip(ret->version, source, ret->ip);
}

static ssize_t
version_1(const char *p, size_t n, struct proxy_from *ret)
{
	const char *end = memchr(p, '\n', n < V1_MAX ? n : V1_MAX);
	char line[V1_MAX];
	size_t len;

	if (end == NULL)
		return n < V1_MAX ? 0 : -1;
	len = (size_t)(end + 1 - p);
	if (len < sizeof(v1_begin) + 1 || end[-1] != '\r' || memchr(p, '\0', len) != NULL)
		return -1;
	len -= sizeof(v1_begin) - 1 + 2;
	memcpy(line, p + sizeof(v1_begin) - 1, len);
	line[len] = '\0';
	return read_v1(line, ret) ? (ssize_t)(end + 1 - p) : -1;
}

static ssize_t
version_2(const uint8_t *p, size_t n, struct proxy_from *ret)
{
	size_t len, ip;

	if (n < V2_FIXED)
		return 0;
	len = (size_t)p[14] << 8 | p[15];
	if ((p[12] != V2_LOCAL && p[12] != V2_PROXY) || V2_FIXED + len > PROXY_MAX)
		return -1;
	if (n < V2_FIXED + len)
		return 0;
	ip = p[13] == V2_TCP4 ? 4 : p[13] == V2_TCP6 ? 16 : 0;
	if (p[12] == V2_LOCAL || ip == 0) /* nothing is known of other kinds */
		return (ssize_t)(V2_FIXED + len);
	if (len < 2 * ip + 4) /* both addresses, both ports */
		return -1;
	ret->version = ip == 4 ? 4 : 6;
	memcpy(ret->ip, p + V2_FIXED, ip);
	return (ssize_t)(V2_FIXED + len);
}

ssize_t
proxy_read(const char *p, size_t n, struct proxy_from *ret)
{
	*ret = (struct proxy_from){.version = 0};
	if (begins(p, n, v2_begin, sizeof(v2_begin) - 1))
		return version_2((const uint8_t *)p, n, ret);
	if (begins(p, n, v1_begin, sizeof(v1_begin) - 1))
		return version_1(p, n, ret);
	return -1;
}
