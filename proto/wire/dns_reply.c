#include "proto/wire/dns_reply.h"

#include <string.h>

#define CLASS_IN 1
#define IS_ANSWER 0x8000u /* flag bits of the head */
#define IS_TRUNCATED 0x0200u
#define IS_POINTER 0xc0u /* upper bits of a label's length (RFC 1035, 4.1.4) */
/* A name of 253 characters has at most 127 labels; each may be reached by a pointer. */
#define POINTERS_MAX 128

/* Where the reading stands; `bad` is set instead of reading past the end, and stays. */
struct reader {
	const uint8_t *msg;
	size_t len, at;
	bool bad;
};

static unsigned
u8(struct reader *r)
{
	if (r->bad || r->at >= r->len) {
		r->bad = true;
		return 0;
	}
	return r->msg[r->at++];
}

static unsigned
u16(struct reader *r)
{
	unsigned high = u8(r);

	return high << 8 | u8(r);
}

static uint32_t
u32(struct reader *r)
{
	uint32_t high = u16(r);

	return high << 16 | u16(r);
}

static void
skip(struct reader *r, size_t n)
{
	if (r->bad || n > r->len - r->at)
		r->bad = true;
	else
		r->at += n;
}

static bool
is_host_char(unsigned c)
{
	return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

struct name {
	char text[DNS_NAME];
	size_t n;
	bool odd; /* has a character no host name has */
};

static void
take_label(struct reader *r, size_t len, struct name *out)
{
	/* with the dot before it and the NUL behind the whole */
	if (len > r->len - r->at || out->n + (out->n > 0) + len + 1 > sizeof(out->text)) {
		r->bad = true;
		return;
	}
	if (out->n > 0)
		out->text[out->n++] = '.';
	while (len-- > 0) {
		unsigned c = u8(r);

		c = c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
		out->odd |= !is_host_char(c);
		out->text[out->n++] = (char)c;
	}
}

/* Reads a name; a pointer goes to an earlier place (or the message is bad), so it ends. */
static void
take_name(struct reader *r, struct name *out)
{
	struct reader at = *r;
	size_t lowest = r->at, behind = 0;
	unsigned c, pointers = 0;

	*out = (struct name){.n = 0};
	while (!at.bad && (c = u8(&at)) != 0) {
		if ((c & IS_POINTER) == IS_POINTER) {
			size_t to = (c & ~IS_POINTER) << 8 | u8(&at);

			if (pointers++ == 0)
				behind = at.at;
			if (to >= lowest || pointers > POINTERS_MAX)
				at.bad = true;
			at.at = lowest = to;
		} else if ((c & IS_POINTER) != 0) {
			at.bad = true;
		} else {
			take_label(&at, c, out);
		}
	}
	out->text[out->n] = '\0';
	r->bad |= at.bad;
	r->at = pointers > 0 ? behind : at.at;
}

static void
skip_name(struct reader *r)
{
	struct name unused;

	take_name(r, &unused);
}

/* What stands before the data of each record. */
struct head {
	unsigned type, class;
	uint32_t ttl;
	size_t end; /* of the data */
};

static struct head
take_head(struct reader *r)
{
	struct head h = {0};
	size_t len;

	skip_name(r);
	h.type = u16(r);
	h.class = u16(r);
	h.ttl = u32(r);
	if (h.ttl > INT32_MAX) /* the bit of the sign: as if it were 0 (RFC 2181, 8) */
		h.ttl = 0;
	len = u16(r);
	if (r->bad || len > r->len - r->at)
		r->bad = true;
	else
		h.end = r->at + len;
	return h;
}

/* False if it is no record we can use; a broken one sets r->bad. */
static bool
take_record(struct reader *r, enum dns_type type, struct dns_record *out)
{
	struct name target;
	size_t size = type == DNS_A ? 4 : 16;

	*out = (struct dns_record){.port = 0};
	if (type != DNS_SRV) {
		for (size_t i = 0; i < size; i++)
			out->ip[i] = (uint8_t)u8(r);
		return true;
	}
	out->priority = (uint16_t)u16(r);
	out->weight = (uint16_t)u16(r);
	out->port = (uint16_t)u16(r);
	take_name(r, &target);
	memcpy(out->target, target.text, target.n + 1);
	return !target.odd;
}

static void
take_answer(struct reader *r, enum dns_type type, struct dns_record *records, size_t max,
	struct dns_reply *reply)
{
	struct head h = take_head(r);
	struct dns_record one;
	bool usable;

	if (r->bad || h.class != CLASS_IN) {
		r->at = r->bad ? r->at : h.end;
		return;
	}
	if (h.ttl < reply->ttl)
		reply->ttl = h.ttl;
	if (h.type == type) {
		usable = take_record(r, type, &one);
		r->bad |= r->at != h.end;
		if (!r->bad && usable && reply->n < max)
			records[reply->n++] = one;
	}
	r->at = h.end;
}

/* The lesser of the record's own TTL and the `minimum` it states (RFC 2308, 5). */
static void
take_authority(struct reader *r, struct dns_reply *reply)
{
	struct head h = take_head(r);
	uint32_t minimum;

	if (!r->bad && h.class == CLASS_IN && h.type == DNS_SOA) {
		skip_name(r);
		skip_name(r);
		skip(r, 4 * sizeof(uint32_t)); /* serial, refresh, retry, expire */
		minimum = u32(r);
		r->bad |= r->at != h.end;
		reply->has_negative_ttl = !r->bad;
		reply->negative_ttl = minimum < h.ttl ? minimum : h.ttl;
	}
	r->at = h.end;
}

int
dns_reply_read(const uint8_t *msg, size_t len, enum dns_type type, struct dns_record *records,
	size_t max, struct dns_reply *ret)
{
	struct reader r = {.msg = msg, .len = len, .at = 2}; /* behind the id */
	struct dns_reply reply = {.ttl = UINT32_MAX};
	unsigned flags = u16(&r), nquestions = u16(&r), nanswers = u16(&r), nauthorities = u16(&r);

	skip(&r, 2); /* the additional section's count: nothing of it is used */
	if (r.bad || (flags & IS_ANSWER) == 0)
		return -1;
	reply.rcode = flags & 0xf;
	reply.truncated = (flags & IS_TRUNCATED) != 0;
	while (!r.bad && nquestions-- > 0) {
		skip_name(&r);
		skip(&r, 2 * sizeof(uint16_t));
	}
	while (!r.bad && nanswers-- > 0)
		take_answer(&r, type, records, max, &reply);
	while (!r.bad && nauthorities-- > 0)
		take_authority(&r, &reply);
	if (r.bad)
		return -1;
	*ret = reply;
	return 0;
}
