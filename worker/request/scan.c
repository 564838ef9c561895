#include "worker/request/scan.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdlib.h>
#include <sys/queue.h>

#include "proto/json/splice.h"
#include "shm/base/mem.h"
#include "worker/base/core.h"
#include "worker/base/route.h"
#include "worker/base/text.h"
#include "worker/request/req.h"

struct body_scan {
	TAILQ_ENTRY(body_scan) link; /* w->scans: the first has the next turn */
	struct req *req;
	struct splice doc;
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
wait_for_turn(struct worker *w)
{
	const struct timeval at_once = {0};

	if (!TAILQ_EMPTY(&w->scans))
		(void)event_add(&w->ev_scan, &at_once);
}

/* The others have their turns first. */
static void
go_on(struct worker *w, struct body_scan *s)
{
	TAILQ_REMOVE(&w->scans, s, link);
	TAILQ_INSERT_TAIL(&w->scans, s, link);
	wait_for_turn(w);
}

static void
on_turn(evutil_socket_t fd, short what, void *arg)
{
	struct worker *w = arg;
	struct body_scan *s = TAILQ_FIRST(&w->scans);
	struct req *req = s->req;
	void (*scanned)(struct req * req, const char *why) = s->scanned;
	const char *why = NULL;
	size_t at;

	(void)fd;
	(void)what;
	switch (splice_scan_step(s->scan, SCAN_STEP, &why, &at)) {
	case 1:
		go_on(w, s);
		return;
	case 0:
		text_copy_doc(req->job.text, &s->doc);
		break;
	default:
		break;
	}
	scan_end(req);
	wait_for_turn(w);
	scanned(req, why);
}

void
scan_init(struct worker *w)
{
	TAILQ_INIT(&w->scans);
	event_assign(&w->ev_scan, w->base, -1, 0, on_turn, w);
}

void
scan_begin(struct req *req, void (*scanned)(struct req *req, const char *why))
{
	const struct text *text = req->job.text;
	struct body_scan *s = MEM_NEW(struct body_scan);

	s->req = req;
	s->scanned = scanned;
	s->scan = splice_scan_new(&s->doc, text->body, text->body_len);
	req->scan = s;
	TAILQ_INSERT_TAIL(&req->w->scans, s, link);
	wait_for_turn(req->w);
}

void
scan_end(struct req *req)
{
	struct body_scan *s = req->scan;

	req->scan = NULL;
	if (s == NULL)
		return;
	TAILQ_REMOVE(&req->w->scans, s, link);
	if (TAILQ_EMPTY(&req->w->scans))
		(void)event_del(&req->w->ev_scan);
	splice_scan_free(&s->scan);
	free(s);
}
