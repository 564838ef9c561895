/*
 * Answers of name servers (RFC 1035, 2308, 2782, 3596): the records of one type and their TTL, or how
 * long the absence of records may be cached.
 *
 * libresolv does the reading (ns_initparse(), ns_parserr(), dn_expand()).  The bytes come from the
 * network: every length and pointer is checked, nothing is allocated.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dns_type { DNS_A = 1, DNS_SOA = 6, DNS_AAAA = 28, DNS_SRV = 33 };
enum dns_rcode { DNS_NOERROR = 0, DNS_NXDOMAIN = 3 };

#define DNS_NAME 254 /* bytes of a name with its NUL: 253 characters at most (RFC 1035, 2.3.4) */

struct dns_record {
	uint8_t ip[16];                  /* A: 4 bytes; AAAA: 16 */
	uint16_t priority, weight, port; /* SRV */
	char target[DNS_NAME]; /* SRV: in lower case, without the dot at the end; "" is the root */
};

struct dns_reply {
	unsigned rcode;
	bool truncated;
	size_t n;              /* records of the requested type */
	uint32_t ttl;          /* seconds: the least of the whole answer, aliases included; n > 0 */
	bool has_negative_ttl; /* the authority said for how long there is nothing (RFC 2308, 5) */
	uint32_t negative_ttl;
};

/* Room for all records of a message of `len` bytes: a record takes at least 15. */
#define DNS_RECORDS_MOST(len) ((len) / 15 + 1)

/*
 * Reads a message; at most `max` records are written.  A target that is no host name (letters, digits,
 * '-', '_') is left out.  0, or -1: not an answer, or its bytes contradict each other.
 */
int dns_reply_read(const uint8_t *msg, size_t len, enum dns_type type, struct dns_record *records,
	size_t max, struct dns_reply *ret);
