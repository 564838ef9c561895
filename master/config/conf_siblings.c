#include "master/config/conf_siblings.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "master/config/conf_api_key.h"
#include "proto/tls/mac.h"
#include "shm/base/mem.h"

#define SECRET_MIN 16 /* bytes: as many as a key of digests has */
#define SECRET_MAX 4096
#define PURPOSE_MESSAGES "pdrouter siblings: messages"
#define PURPOSE_DIGESTS "pdrouter siblings: digests"

static int
line_of(const int *lines, const char *key)
{
	return lines[conf_key_row(&conf_root_keys, key) - conf_root_keys.key];
}

static int
fail(struct conf_read *r, const int *lines, const char *key, const char *or_key, const char *what)
{
	const int line = line_of(lines, key);

	(void)conf_enter(r, "%s", key);
	return conf_fail(r, line != 0 ? line : line_of(lines, or_key), "%s", what);
}

/* Not after a reload has kept what needs a restart: then the keys may not fit each other, and do nothing. */
static int
check(struct conf_read *r, const int *lines)
{
	const struct conf *c = r->conf;

	if (c->nsiblings_routers > 0 && c->siblings_listen == NULL)
		return fail(r, lines, "siblings.listen", "siblings.routers",
			"is needed with siblings.routers: an address such as tcp://0.0.0.0:9310, which the "
			"other routers connect to");
	if (c->siblings_listen != NULL && c->siblings_secret_file == NULL)
		return fail(r, lines, "siblings.secret_file", "siblings.listen",
			"is needed with siblings.listen: a file with the same secret at all routers, such as "
			"the output of `openssl rand -hex 32`");
	return 0;
}

/* What is wrong with a secret, or NULL. */
static const char *
secret_fault(ssize_t n)
{
	if (n < 0)
		return strerrordesc_np(errno);
	if (n < SECRET_MIN)
		return "it has less than 16 bytes: any random text of 32 or more will do";
	return n > SECRET_MAX ? "it has more than 4096 bytes" : NULL;
}

static bool
derive(const char *secret, size_t n, struct conf_siblings_key *ret)
{
	unsigned char digests[MAC_BYTES];

	static_assert(sizeof(ret->message) == MAC_BYTES, "a key of messages");
	static_assert(sizeof(ret->digest) <= MAC_BYTES, "a part of the other key");
	if (!mac_derive(secret, n, PURPOSE_MESSAGES, ret->message) ||
		!mac_derive(secret, n, PURPOSE_DIGESTS, digests))
		return false;
	memcpy(ret->digest, digests, sizeof(ret->digest));
	explicit_bzero(digests, sizeof(digests));
	return true;
}

int
conf_siblings_read(struct conf_read *r, const int *lines)
{
	struct conf *c = r->conf;
	char buf[SECRET_MAX + 2]; /* the newline, and a byte too many */
	const char *fault;
	char *path;
	ssize_t n;
	int rc = 0;

	if (check(r, lines) != 0)
		return -1;
	if (c->siblings_listen == NULL)
		return 0;
	if (r->was != NULL) {
		conf_siblings_key_copy(r->was, c);
		return 0;
	}
	path = conf_beside(r->file, c->siblings_secret_file);
	n = conf_read_small(path, buf, sizeof(buf));
	if (n > 0 && buf[n - 1] == '\n')
		n--;
	c->siblings_key = MEM_NEW(struct conf_siblings_key);
	fault = secret_fault(n);
	if (fault == NULL && !derive(buf, (size_t)n, c->siblings_key))
		fault = "OpenSSL makes no HMAC-SHA256";
	explicit_bzero(buf, sizeof(buf));
	if (fault != NULL) {
		(void)conf_enter(r, "siblings.secret_file");
		rc = conf_fail(r, line_of(lines, "siblings.secret_file"),
			"%.150s cannot be used: %s", path, fault);
	}
	free(path);
	return rc;
}

bool
conf_siblings_key_equal(const struct conf *a, const struct conf *b)
{
	if (a->siblings_key == NULL || b->siblings_key == NULL)
		return a->siblings_key == b->siblings_key;
	return memcmp(a->siblings_key, b->siblings_key, sizeof(*a->siblings_key)) == 0;
}

void
conf_siblings_key_copy(const struct conf *from, struct conf *to)
{
	conf_siblings_wipe(to);
	free(to->siblings_key);
	to->siblings_key = NULL;
	if (from->siblings_key != NULL)
		to->siblings_key = mem_dup(from->siblings_key, sizeof(*from->siblings_key));
}

void
conf_siblings_wipe(const struct conf *c)
{
	if (c->siblings_key != NULL)
		explicit_bzero(c->siblings_key, sizeof(*c->siblings_key));
}
