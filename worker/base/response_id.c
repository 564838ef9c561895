#include "worker/base/response_id.h"

#include <string.h>

#include "shm/base/hex.h"
#include "shm/base/rnd.h"
#include "shm/table.h"

#define PREFIX "resp_"
#define PREFIX_LEN (sizeof(PREFIX) - 1)

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
	uint64_t hash, random[2];

	if (strncmp(id, PREFIX, PREFIX_LEN) != 0 || strlen(id) != RESPONSE_ID_LEN ||
		!hex_read(id + PREFIX_LEN, 16, &hash) ||
		!hex_read(id + PREFIX_LEN + 16, 16, &random[0]) ||
		!hex_read(id + PREFIX_LEN + 32, 16, &random[1]))
		return 0;
	return hash;
}
