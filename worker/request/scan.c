#include "worker/request/scan.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdlib.h>

#include "proto/json/splice.h"
#include "shm/base/mem.h"
#include "worker/base/core.h"
#include "worker/base/route.h"
#include "worker/base/text.h"
#include "worker/request/req.h"

struct body_scan {
	struct event next;
	struct req *req;
	struct splice *doc; /* the text's when the scan has ended well */
	struct splice_scan *scan;
	void (*scanned)(struct req *req, const char *why);
};

bool
scan_is_long(const struct req *req)
{
	return req->job.text->body_len > SCAN_STEP &&
	       route_body(req->job.facts.route) == ROUTE_BODY_JSON;
}

static void
wait_for_turn(struct body_scan *s)
{
	const struct timeval at_once = {0};

	(void)event_add(&s->next, &at_once);
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct body_scan *s = arg;
	struct req *req = s->req;
	void (*scanned)(struct req * req, const char *why) = s->scanned;
	const char *why = NULL;
	size_t at;

	(void)fd;
	(void)what;
	switch (splice_scan_step(s->scan, SCAN_STEP, &why, &at)) {
	case 1:
		wait_for_turn(s);
		return;
	case 0:
		req->job.text->doc = s->doc;
		s->doc = NULL;
		break;
	default:
		break;
	}
	scan_end(req);
	scanned(req, why);
}

void
scan_begin(struct req *req, void (*scanned)(struct req *req, const char *why))
{
	const struct text *text = req->job.text;
	struct body_scan *s = MEM_NEW(struct body_scan);

	s->req = req;
	s->scanned = scanned;
	s->doc = MEM_NEW(struct splice);
	s->scan = splice_scan_new(s->doc, text->body, text->body_len);
	event_assign(&s->next, req->w->base, -1, 0, on_turn, s);
	req->scan = s;
	wait_for_turn(s);
}

void
scan_end(struct req *req)
{
	struct body_scan *s = req->scan;

	req->scan = NULL;
	if (s == NULL)
		return;
	(void)event_del(&s->next);
	splice_scan_free(&s->scan);
	free(s->doc);
	free(s);
}
