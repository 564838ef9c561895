#include "master/pdctl/key.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define RANDOM_BYTES 32
#define PREFIX "pdr-"
#define DIGITS 43   /* of base64 for that, without padding */
#define NAME_MAX 64 /* CONF_KEY_NAME */

/* As the api_keys_file has it. */
static bool
name_usable(const char *name)
{
	const size_t n = strlen(name);

	for (const char *p = name; *p != '\0'; p++)
		if (*p <= ' ' || *p >= 0x7f || strchr("\"'`\\", *p) != NULL)
			return false;
	return n > 0 && n <= NAME_MAX;
}

/* The url-safe alphabet of RFC 4648. */
static void
base64(const unsigned char *bytes, char out[DIGITS + 1])
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	unsigned bits = 0, nbits = 0;
	size_t at = 0;

	for (size_t i = 0; i < RANDOM_BYTES; i++) {
		bits = bits << 8 | bytes[i];
		for (nbits += 8; nbits >= 6; nbits -= 6)
			out[at++] = digits[bits >> (nbits - 6) & 63];
	}
	out[at++] = digits[bits << (6 - nbits) & 63];
	out[at] = '\0';
}

static int
key_new(const char *name)
{
	unsigned char bytes[RANDOM_BYTES], digest[SHA256_DIGEST_LENGTH];
	char key[sizeof(PREFIX) + DIGITS] = PREFIX;

	if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
		(void)fprintf(stderr, "pdctl: no random bytes: %s\n", strerror(errno));
		return 1;
	}
	base64(bytes, key + sizeof(PREFIX) - 1);
	(void)SHA256((const unsigned char *)key, strlen(key), digest);
	(void)printf("%s\n- {name: \"%s\", sha256: \"", key, name);
	for (size_t i = 0; i < sizeof(digest); i++)
		(void)printf("%02x", digest[i]);
	(void)printf("\"}\n");
	explicit_bzero(bytes, sizeof(bytes));
	explicit_bzero(key, sizeof(key));
	return fflush(stdout) == 0 ? 0 : 1;
}

int
key_command(char **argv, const char **ret_wrong)
{
	*ret_wrong = NULL;
	if (argv[0] == NULL || strcmp(argv[0], "new") != 0 || argv[1] == NULL || argv[2] != NULL)
		*ret_wrong = "key: write pdctl key new NAME";
	else if (!name_usable(argv[1]))
		*ret_wrong =
			"key new: a name has 1 to 64 ASCII characters, no blank, quote or backslash";
	return *ret_wrong != NULL ? 2 : key_new(argv[1]);
}
