/*
 * What pdctl prints: lines, or with --json one object.  If pdrouter writes the object itself, its lines are printed as they
 * come.  Else they are the list `lines` of an object, whose `error` is null or a text.  An error also goes to stderr.
 */
#pragma once
#include <stdbool.h>

enum print_form { PRINT_TEXT, PRINT_LINES, PRINT_OBJECT };

void print_begin(enum print_form form);
/* A line without its end. */
void print_line(const char *line);
/* Says "pdctl: WHAT: WHY" on stderr, and returns 1. */
int print_fail(const char *what, const char *why);
/* The same without "pdctl: " before it. */
int print_error(const char *text);
/* From now on errors do not go to stderr: the screen is another one's. */
void print_quiet(void);
/* The text of the last error; "": there was none. */
const char *print_last_error(void);
/* A line on stderr that helps with the error before it. */
void print_hint(const char *text);
/* Ends the output; returns `code`, or 1 if stdout cannot be written. */
int print_end(int code);
