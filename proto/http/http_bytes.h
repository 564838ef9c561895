/*
 * What the http*.c files share: the rules of http_rules.h as code, and classes of bytes.  Private
 * to them.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "proto/http/http_error.h"
#include "proto/http/http_rules.h"

enum rule {
#define X(name, err, parser, rfc, text) R_##name,
	HTTP_RULES(X)
#undef X
};

static const int8_t rule_error[] = {
#define X(name, err, parser, rfc, text) [R_##name] = (err),
	HTTP_RULES(X)
#undef X
};

static inline int
refuse(enum rule rule)
{
	return rule_error[rule];
}

// clang-format off
/* RFC 9110 5.6.2 */
static const bool token_byte[256] = {
	['!'] = true, ['#' ... '\''] = true, ['*'] = true, ['+'] = true, ['-'] = true, ['.'] = true,
	['0' ... '9'] = true, ['A' ... 'Z'] = true, ['^' ... 'z'] = true, ['|'] = true, ['~'] = true,
};

/* A hexadecimal digit's value + 1; 0 for other bytes. */
static const uint8_t hex_digit[256] = {
	['0'] = 1, ['1'] = 2, ['2'] = 3, ['3'] = 4, ['4'] = 5, ['5'] = 6, ['6'] = 7, ['7'] = 8, ['8'] = 9, ['9'] = 10,
	['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
	['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
};
// clang-format on

static inline bool
is_token(char c)
{
	return token_byte[(unsigned char)c];
}

static inline bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static inline bool
is_blank(char c)
{
	return c == ' ' || c == '\t';
}

static inline bool
is_control(char c)
{
	unsigned char u = (unsigned char)c;

	return (u < 0x20 && u != '\t') || u == 0x7f;
}

static inline char
lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c | 0x20) : c;
}
