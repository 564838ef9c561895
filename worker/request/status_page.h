/*
 * The files of the status page: HTML, style, script, and the runbook that it links.  They are in the program.
 *
 * Process: worker.
 */
#pragma once

struct req;

/* Answers a request for one of them. */
void status_page_answer(struct req *req);
