/* The errors of proto/http: http.h passes them on, the table of refusals in http_rules.h names them. */
#pragma once

/* Why bytes were refused; always negative so that it fits a parser's return value. */
enum http_error {
	HTTP_E_SYNTAX = -1,    /* not HTTP, or a form we refuse: 400 */
	HTTP_E_VERSION = -2,   /* not HTTP/1.0 or 1.1: 505 */
	HTTP_E_TOO_MANY = -3,  /* too many header fields: 431 */
	HTTP_E_HOST = -4,      /* no Host, or two, on 1.1: 400 */
	HTTP_E_FRAMING = -5,   /* Content-Length and Transfer-Encoding at odds: 400 */
	HTTP_E_CODING = -6,    /* transfer coding other than chunked: 501 */
	HTTP_E_CHUNK = -7,     /* malformed chunk-size line or trailer: 400 */
	HTTP_E_TOO_LARGE = -8, /* a chunk size or Content-Length above 2^63-1: 413 */
};
