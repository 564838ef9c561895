#include "master/pdfleet/http_get.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "proto/http/http.h"
#include "shm/base/clock.h"

#define TIMEOUT_MS 2000
#define ANSWER_MAX (4u << 20)

/* A connected socket, or -1. */
static int
connect_to(const struct http_url *at)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	const struct timeval limit = {.tv_sec = TIMEOUT_MS / 1000};
	struct addrinfo *found = NULL;
	char port[8];
	int fd = -1;

	(void)snprintf(port, sizeof(port), "%u", at->port);
	if (getaddrinfo(at->host, port, &hints, &found) != 0)
		return -1;
	for (const struct addrinfo *a = found; a != NULL && fd == -1; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd == -1)
			continue;
		/* SO_SNDTIMEO limits connect() as well: socket(7) */
		(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
		(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
		if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
			(void)close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	return fd;
}

/* All that the peer sends until it closes the connection. */
static int
read_answer(int fd, struct membuf *in)
{
	const uint64_t end = clock_ms() + TIMEOUT_MS;
	char buf[8192];
	ssize_t n;

	do {
		n = recv(fd, buf, sizeof(buf), 0);
		if (n > 0)
			membuf_add(in, buf, (size_t)n);
	} while ((n > 0 || (n == -1 && errno == EINTR)) && in->n < ANSWER_MAX && clock_ms() < end);
	return n == 0 ? 0 : -1;
}

/* Appends the payload behind the head; 0 if it is whole. */
static int
read_body(const struct http_head *h, const char *in, size_t n, struct membuf *body)
{
	struct http_body b;
	struct span data;
	ssize_t k;

	http_body_init(&b, h->framing, h->content_length);
	while (!b.done && n > 0) {
		k = http_body_next(&b, in, n, &data);
		if (k <= 0)
			return -1;
		if (body != NULL)
			membuf_add(body, data.p, data.n);
		in += k;
		n -= (size_t)k;
	}
	return b.done || h->framing == HTTP_BODY_UNTIL_CLOSE ? 0 : -1;
}

static int
parse(const struct membuf *in, struct membuf *body)
{
	struct http_head h;
	size_t from = 0;
	ssize_t n = in->n > 0 ? http_head_end(in->p, in->n, &from) : 0;

	if (n <= 0 || http_head_parse(&h, HTTP_KIND_RESPONSE, in->p, (size_t)n, false) != 0)
		return -1;
	return read_body(&h, in->p + n, in->n - (size_t)n, body) == 0 ? h.status : -1;
}

int
http_get(const char *url, const char *path, struct membuf *body)
{
	struct membuf in = {.p = NULL};
	struct http_url at;
	const char *why;
	char *request;
	int fd, status = -1;

	if (http_url_parse(url, &at, &why) != 0 || at.tls || (fd = connect_to(&at)) == -1)
		return -1;
	request = mem_printf("GET %s%s HTTP/1.1\r\nHost: %s%s%s:%u\r\nConnection: close\r\n\r\n",
		at.prefix, path, at.ipv6 ? "[" : "", at.host, at.ipv6 ? "]" : "", at.port);
	if (send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request) &&
		read_answer(fd, &in) == 0)
		status = parse(&in, body);
	(void)close(fd);
	free(request);
	membuf_free(&in);
	return status;
}
