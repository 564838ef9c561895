#include "proto/tls/wipe.h"

#include <malloc.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

static bool wiping; /* OpenSSL gives its memory functions no argument */

static void *
take(size_t n, const char *file, int line)
{
	(void)file;
	(void)line;
	return malloc(n);
}

static void
give_back(void *p, const char *file, int line)
{
	(void)file;
	(void)line;
	if (wiping && p != NULL)
		explicit_bzero(p, malloc_usable_size(p));
	free(p);
}

/* While memory is wiped, realloc() must not free any. */
static void *
take_more(void *p, size_t n, const char *file, int line)
{
	size_t had;
	void *more;

	if (!wiping || p == NULL)
		return realloc(p, n);
	more = malloc(n);
	if (more == NULL)
		return NULL;
	had = malloc_usable_size(p);
	memcpy(more, p, had < n ? had : n);
	give_back(p, file, line);
	return more;
}

bool
tls_wipe_begin(void)
{
	wiping = CRYPTO_set_mem_functions(take, take_more, give_back) == 1;
	return wiping;
}

void
tls_wipe_end(void)
{
	wiping = false;
}
