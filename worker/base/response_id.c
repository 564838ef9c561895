#include "worker/base/response_id.h"

#include <string.h>

#include "shm/base/rnd.h"
#include "shm/table.h"

#define PREFIX "resp_"
#define PREFIX_LEN (sizeof(PREFIX) - 1)
#define HEX "0123456789abcdef"

void
response_id_make(const char *url, char out[RESPONSE_ID_LEN + 1])
{
	memcpy(out, PREFIX, PREFIX_LEN);
	rnd_hex16(out + PREFIX_LEN, table_url_hash(url));
	/* a client that guessed an id could read another's response */
	rnd_hex16(out + PREFIX_LEN + 16, rnd_u64());
	rnd_hex16(out + PREFIX_LEN + 32, rnd_u64());
	out[RESPONSE_ID_LEN] = '\0';
}

uint64_t
response_id_engine(const char *id)
{
	uint64_t hash = 0;

	if (strncmp(id, PREFIX, PREFIX_LEN) != 0 || strlen(id) != RESPONSE_ID_LEN ||
		strspn(id + PREFIX_LEN, HEX) != RESPONSE_ID_LEN - PREFIX_LEN)
		return 0;
	for (size_t i = 0; i < 16; i++)
		hash = hash << 4 | (uint64_t)(strchr(HEX, id[PREFIX_LEN + i]) - HEX);
	return hash;
}
