#include "tests/engine/notice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "tests/engine/buf.h"
#include "tests/engine/pack.h"
#include "tests/engine/sim.h"

#define LINGER_MS 200 /* what has been told just before the engine ends may still go out */

struct notice {
	struct sim *sim;
	void *zmq;
	unsigned nranks;
	void *ranks[]; /* their sockets */
};

struct notice *
notice_new(struct sim *sim)
{
	unsigned i, nranks = (unsigned)sim->o.tp;
	struct notice *n;
	char to[300];
	int yes = 1, linger = LINGER_MS;

	if (sim->o.proxy == NULL)
		return NULL;
	(void)snprintf(to, sizeof(to), "tcp://%s", sim->o.proxy);
	n = calloc(1, sizeof(*n) + nranks * sizeof(n->ranks[0]));
	if (n == NULL)
		abort();
	n->sim = sim;
	n->nranks = nranks;
	n->zmq = zmq_ctx_new();
	for (i = 0; i < nranks; i++) {
		n->ranks[i] = n->zmq != NULL ? zmq_socket(n->zmq, ZMQ_PUSH) : NULL;
		if (n->ranks[i] == NULL)
			abort();
		(void)zmq_setsockopt(n->ranks[i], ZMQ_IPV6, &yes, sizeof(yes));
		(void)zmq_setsockopt(n->ranks[i], ZMQ_LINGER, &linger, sizeof(linger));
		if (zmq_connect(n->ranks[i], to) == -1)
			sim_bad_option("proxy", sim->o.proxy);
	}
	return n;
}

static void
push(struct notice *n, unsigned rank, const struct buf *b)
{
	if (zmq_send(n->ranks[rank % n->nranks], b->p, b->len, ZMQ_DONTWAIT) == -1)
		count(n->sim, CTR_notices_lost); /* nobody has taken the ones before */
	else
		count(n->sim, CTR_notices);
}

void
notice_send(struct notice *n, unsigned rank, const char *req_id)
{
	static const char *const type[] = {
		[NOTICE_PROXY] = "ProxyNotif", [NOTICE_NIXL] = "NixlProxyNotif"};
	struct buf b = {0};

	pack_byte(&b, 0x82);
	if (n->sim->o.notice_form ==
		NOTICE_DICT) { /* no type, another order, a value of another kind */
		pack_str(&b, "rank");
		pack_byte(&b, (unsigned char)(rank & 0x7f));
	} else {
		pack_str(&b, "type");
		pack_str(&b, type[n->sim->o.notice_form]);
	}
	pack_str(&b, "req_id");
	pack_str(&b, req_id);
	push(n, rank, &b);
	buf_free(&b);
}

void
notice_garbage(struct notice *n, unsigned rank)
{
	struct buf b = {0};

	BUF_LIT(&b, "\xdf\xff\xff\xff\xff\xa1\x00\xc1");
	push(n, rank, &b);
	buf_free(&b);
}

void
notice_free(struct notice **pn)
{
	struct notice *n = *pn;
	unsigned i;

	*pn = NULL;
	if (n == NULL)
		return;
	for (i = 0; i < n->nranks; i++)
		(void)zmq_close(n->ranks[i]);
	(void)zmq_ctx_term(n->zmq);
	free(n);
}
