/* The screen of pdtop: ncurses.  It fits into 80 columns and 24 lines, and takes what there is. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "master/pdtop/sample.h"

#define FILTER_MAX 64

/* What the user has chosen. */
struct choice {
	enum sample_sort sort;
	char filter[FILTER_MAX]; /* "": all */
	bool types;              /* keys go into the filter */
	bool requests;           /* requests in flight in place of engines */
	size_t top;              /* the first row that is shown */
	bool quit;
};

void screen_begin(void);
void screen_end(void);
/* `error` NULL: the sample is fresh. */
void screen_draw(const struct sample *s, struct choice *c, const char *error);
/* Waits for a key for a second at most.  True: a key has changed the choice. */
bool screen_key(struct choice *c);
