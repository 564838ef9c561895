#include "master/notifier/pass.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "shm/base/mem.h"
#include "shm/core/heritage.h"
#include "shm/flags.h"

#define PACKET_BYTES 65536 /* more than a batch of ids has */

struct pass {
	const struct heritage *h;
	size_t batch;
	struct out {
		char *text; /* a line per id */
		size_t n, ids;
	} out[]; /* [h->nnotices_to] */
};

struct pass *
pass_new(const struct heritage *h, size_t batch)
{
	struct pass *p = mem_zero(sizeof(*p) + h->nnotices_to * sizeof(p->out[0]));

	p->h = h;
	p->batch = batch;
	for (size_t i = 0; i < h->nnotices_to; i++)
		p->out[i].text = mem_array(batch, FLAG_ID_LEN);
	return p;
}

void
pass_free(struct pass **pp)
{
	struct pass *p = *pp;

	if (p == NULL)
		return;
	for (size_t i = 0; i < p->h->nnotices_to; i++)
		free(p->out[i].text);
	free(p);
	*pp = NULL;
}

bool
pass_add(struct pass *p, uint32_t instance, const char *id)
{
	const size_t len = strlen(id);

	for (size_t i = 0; i < p->h->nnotices_to; i++) {
		struct out *o = &p->out[i];

		if (p->h->notices_to[i].instance != instance || o->ids == p->batch)
			continue;
		memcpy(o->text + o->n, id, len);
		o->n += len;
		o->text[o->n++] = '\n';
		o->ids++;
		return true;
	}
	return false;
}

size_t
pass_send(struct pass *p)
{
	size_t lost = 0;

	for (size_t i = 0; i < p->h->nnotices_to; i++) {
		struct out *o = &p->out[i];

		if (o->n > 0 && send(p->h->notices_to[i].fd, o->text, o->n,
					MSG_NOSIGNAL | MSG_DONTWAIT) == -1)
			lost += o->ids;
		o->n = o->ids = 0;
	}
	return lost;
}

enum pass_got
pass_receive(int fd, void (*fn)(void *arg, const char *id), void *arg)
{
	char packet[PACKET_BYTES + 1];
	ssize_t n = recv(fd, packet, PACKET_BYTES, MSG_DONTWAIT);
	char *at = packet, *end;

	if (n == 0)
		return PASS_END;
	if (n == -1)
		return PASS_NOTHING;
	packet[n] = '\0';
	for (; (end = strchr(at, '\n')) != NULL; at = end + 1) {
		*end = '\0';
		fn(arg, at);
	}
	return PASS_PACKET;
}
