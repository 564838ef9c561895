#include "proto/wire/dns_reply.h"

#include <arpa/nameser.h>
#include <resolv.h>
#include <string.h>

/*
 * libresolv reads the message (ns_initparse(), ns_parserr(), dn_expand()) and checks all lengths.
 * It follows pointers to any place, so that is checked here: a pointer must go to an earlier place
 * (RFC 1035, 4.1.4).
 */
struct reader {
	ns_msg msg;
	const uint8_t *base, *eom;
	const uint8_t *at; /* the next record's first byte */
};

static bool
points_back(const struct reader *r, const uint8_t *name)
{
	const uint8_t *at = name, *lowest = name;

	while (at < r->eom && *at != 0) {
		if ((*at & NS_CMPRSFLGS) != NS_CMPRSFLGS) {
			at += 1 + *at;
			continue;
		}
		if (r->eom - at < NS_INT16SZ)
			return false;
		at = r->base + (ns_get16(at) & ~((unsigned)NS_CMPRSFLGS << 8));
		if (at >= lowest)
			return false;
		lowest = at;
	}
	return true;
}

/* Bytes of the name in the message, or -1. */
static int
read_name(const struct reader *r, const uint8_t *at, char name[static NS_MAXDNAME])
{
	return points_back(r, at) ? dn_expand(r->base, r->eom, at, name, NS_MAXDNAME) : -1;
}

static int
skip_name(const struct reader *r, const uint8_t *at)
{
	char name[NS_MAXDNAME];

	return read_name(r, at, name);
}

/* The next record of this section. */
static bool
next_record(struct reader *r, ns_sect section, int i, ns_rr *rr)
{
	if (!points_back(r, r->at) || ns_parserr(&r->msg, section, i, rr) != 0)
		return false;
	r->at = ns_rr_rdata(*rr) + ns_rr_rdlen(*rr);
	return true;
}

/* With the sign bit set a TTL counts as 0 (RFC 2181, 8). */
static uint32_t
ttl_of(const ns_rr *rr)
{
	return ns_rr_ttl(*rr) > INT32_MAX ? 0 : (uint32_t)ns_rr_ttl(*rr);
}

/* Lower case.  False if it is no host name: dn_expand() writes odd characters with backslashes. */
static bool
host_name(char *name)
{
	for (; *name != '\0'; name++) {
		if (*name >= 'A' && *name <= 'Z')
			*name = (char)(*name - 'A' + 'a');
		if (strchr("abcdefghijklmnopqrstuvwxyz0123456789-_.", *name) == NULL)
			return false;
	}
	return true;
}

/* 1, 0: no record we can use, -1: broken. */
static int
read_srv(const struct reader *r, const ns_rr *rr, struct dns_record *out)
{
	const uint8_t *data = ns_rr_rdata(*rr);
	char target[NS_MAXDNAME];
	const int n = 3 * NS_INT16SZ;

	if (ns_rr_rdlen(*rr) <= n || read_name(r, data + n, target) != ns_rr_rdlen(*rr) - n)
		return -1;
	if (!host_name(target))
		return 0;
	out->priority = (uint16_t)ns_get16(data);
	out->weight = (uint16_t)ns_get16(data + NS_INT16SZ);
	out->port = (uint16_t)ns_get16(data + 2 * NS_INT16SZ);
	memcpy(out->target, target, strlen(target) + 1);
	return 1;
}

static int
read_record(const struct reader *r, const ns_rr *rr, struct dns_record *out)
{
	const size_t n = ns_rr_rdlen(*rr);

	*out = (struct dns_record){.port = 0};
	if (ns_rr_type(*rr) == ns_t_srv)
		return read_srv(r, rr, out);
	if (n != (ns_rr_type(*rr) == ns_t_a ? NS_INADDRSZ : NS_IN6ADDRSZ))
		return -1;
	memcpy(out->ip, ns_rr_rdata(*rr), n);
	return 1;
}

static bool
read_answers(struct reader *r, enum dns_type type, struct dns_record *records, size_t max,
	struct dns_reply *reply)
{
	struct dns_record one;
	ns_rr rr;

	for (int i = 0; i < ns_msg_count(r->msg, ns_s_an); i++) {
		int usable = 0;

		if (!next_record(r, ns_s_an, i, &rr))
			return false;
		if (ns_rr_class(rr) != ns_c_in)
			continue;
		if (ttl_of(&rr) < reply->ttl)
			reply->ttl = ttl_of(&rr);
		if ((unsigned)ns_rr_type(rr) == type)
			usable = read_record(r, &rr, &one);
		if (usable < 0)
			return false;
		if (usable > 0 && reply->n < max)
			records[reply->n++] = one;
	}
	return true;
}

/* The lesser of the SOA record's own TTL and the `minimum` it states (RFC 2308, 5). */
static bool
read_soa(const struct reader *r, const ns_rr *rr, struct dns_reply *reply)
{
	const uint8_t *data = ns_rr_rdata(*rr);
	const int fixed = 5 * NS_INT32SZ; /* serial, refresh, retry, expire, minimum */
	int primary, mail;
	uint32_t minimum;

	primary = skip_name(r, data);
	mail = primary < 0 ? -1 : skip_name(r, data + primary);
	if (mail < 0 || primary + mail + fixed != ns_rr_rdlen(*rr))
		return false;
	minimum = (uint32_t)ns_get32(data + primary + mail + fixed - NS_INT32SZ);
	reply->has_negative_ttl = true;
	reply->negative_ttl = minimum < ttl_of(rr) ? minimum : ttl_of(rr);
	return true;
}

static bool
read_authorities(struct reader *r, struct dns_reply *reply)
{
	ns_rr rr;

	for (int i = 0; i < ns_msg_count(r->msg, ns_s_ns); i++)
		if (!next_record(r, ns_s_ns, i, &rr) ||
			(ns_rr_class(rr) == ns_c_in && ns_rr_type(rr) == ns_t_soa &&
				!read_soa(r, &rr, reply)))
			return false;
	return true;
}

static bool
skip_dns_queries(struct reader *r)
{
	for (int i = 0; i < ns_msg_count(r->msg, ns_s_qd); i++) {
		const int n = skip_name(r, r->at);

		if (n < 0)
			return false;
		r->at += n + NS_QFIXEDSZ;
	}
	return true;
}

int
dns_reply_read(const uint8_t *msg, size_t len, enum dns_type type, struct dns_record *records,
	size_t max, struct dns_reply *ret)
{
	struct reader r = {.base = msg, .eom = msg + len, .at = msg + NS_HFIXEDSZ};
	struct dns_reply reply = {.ttl = UINT32_MAX};

	if (len > NS_MAXMSG || ns_initparse(msg, (int)len, &r.msg) != 0 ||
		ns_msg_getflag(r.msg, ns_f_qr) == 0)
		return -1;
	reply.rcode = (unsigned)ns_msg_getflag(r.msg, ns_f_rcode);
	reply.truncated = ns_msg_getflag(r.msg, ns_f_tc) != 0;
	if (!skip_dns_queries(&r) || !read_answers(&r, type, records, max, &reply) ||
		!read_authorities(&r, &reply))
		return -1;
	*ret = reply;
	return 0;
}
