/*
 * The table of refusals of http.c: private to it and to its unit test.  The test has samples for
 * each row.  Each sample has a twin that differs only in the fault and is accepted.  The test also
 * checks http-parser's behaviour for each row.
 *
 * Columns: the rule; the error it gives; the behaviour of http-parser 2.9.4 as packaged by Debian
 * for such bytes when it is alone (LETS: at least one form passes; ANSWERS: passes in answers only,
 * requests are refused; REFUSES: it would refuse them too; the router checks first because
 * http-parser's errors differ and its next version may behave differently); section of RFC 9112, or
 * of 9110 where it says so; what is refused.  Where a row refuses more than the RFC demands, it
 * says why.
 */
#pragma once

// clang-format off
#define HTTP_RULES(X) \
	/* lines */ \
	X(BARE_LF,           HTTP_E_SYNTAX,    LETS,    "2.2",       "a line that ends with LF alone; the RFC lets us choose, peers choose differently") \
	X(BARE_CR,           HTTP_E_SYNTAX,    LETS,    "2.2",       "CR without LF") \
	X(CONTROL_BYTE,      HTTP_E_SYNTAX,    LETS,    "9110 5.5",  "NUL or another control byte but HTAB, DEL included") \
	X(EMPTY_HEAD,        HTTP_E_SYNTAX,    LETS,    "2.2",       "an empty line where the start line should be (http_skip_blank() is for those that are fine)") \
	X(EMPTY_NAME,        HTTP_E_SYNTAX,    REFUSES, "9110 5.1",  "a field line that starts with the colon") \
	X(NAME_BLANK,        HTTP_E_SYNTAX,    LETS,    "5.1",       "blank in a field name or before its colon") \
	X(NAME_BYTE,         HTTP_E_SYNTAX,    REFUSES, "9110 5.1",  "obs-text or a delimiter in a field name") \
	X(NO_COLON,          HTTP_E_SYNTAX,    REFUSES, "5",         "a field line without a colon") \
	X(FOLDED,            HTTP_E_SYNTAX,    LETS,    "5.2",       "a folded line, in answers too; also a blank before the first field (2.2)") \
	X(MANY_FIELDS,       HTTP_E_TOO_MANY,  LETS,    "9110 5.4",  "more than HTTP_MAX_HEADERS field lines") \
	X(MANY_OPTIONS,      HTTP_E_TOO_MANY,  LETS,    "9110 7.6.1","more than 32 names listed in Connection: each is looked for in all fields") \
	/* start lines */ \
	X(REQUEST_LINE,      HTTP_E_SYNTAX,    LETS,    "3",         "not exactly: method, one blank, target, one blank, version") \
	X(TARGET_BYTE,       HTTP_E_SYNTAX,    LETS,    "3.2",       "HTAB or obs-text in the target") \
	X(TARGET_FRAGMENT,   HTTP_E_SYNTAX,    LETS,    "3.2",       "'#' in the target: some cut it there, some do not") \
	X(TARGET_FORM,       HTTP_E_SYNTAX,    LETS,    "3.2",       "CONNECT, authority-form, schemes but http and https, '*' outside OPTIONS") \
	X(TARGET_AUTHORITY,  HTTP_E_SYNTAX,    LETS,    "9110 4.2",  "absolute-form with user information, or whose host is empty or no host") \
	X(VERSION,           HTTP_E_VERSION,   LETS,    "2.3",       "any version but 1.0 and 1.1") \
	X(STATUS_LINE,       HTTP_E_SYNTAX,    LETS,    "4",         "not exactly: version, one blank, three digits from 100, then the end or a blank and a reason") \
	/* fields that decide where a message goes and ends */ \
	X(HOST_MISSING,      HTTP_E_HOST,      LETS,    "3.2",       "no Host on 1.1") \
	X(HOST_TWICE,        HTTP_E_HOST,      LETS,    "3.2",       "two Host lines") \
	X(HOST_VALUE,        HTTP_E_HOST,      LETS,    "3.2",       "a Host that is not host[:port]") \
	X(LENGTH_TWICE,      HTTP_E_FRAMING,   REFUSES, "6.3",       "two Content-Length lines, even alike") \
	X(LENGTH_VALUE,      HTTP_E_FRAMING,   REFUSES, "6.3",       "a Content-Length that is empty, signed, a list or has blanks inside") \
	X(LENGTH_OVERFLOW,   HTTP_E_TOO_LARGE, LETS,    "6.3",       "a Content-Length above 2^63-1") \
	X(LENGTH_AND_CODING, HTTP_E_FRAMING,   REFUSES, "6.3",       "Content-Length beside Transfer-Encoding") \
	X(CODING_OTHER,      HTTP_E_CODING,    LETS,    "6.1",       "a transfer coding beside or instead of chunked (`gzip, chunked`)") \
	X(CHUNKED_TWICE,     HTTP_E_FRAMING,   ANSWERS, "6.1",       "chunked twice in one line, or an empty member in the list") \
	X(CODING_TWICE,      HTTP_E_FRAMING,   LETS,    "6.1",       "two Transfer-Encoding lines: chunked twice, or a list in disguise") \
	X(CODING_ON_1_0,     HTTP_E_FRAMING,   LETS,    "6.1",       "Transfer-Encoding on HTTP/1.0") \
	/* chunked bodies */ \
	X(CHUNK_SIZE,        HTTP_E_CHUNK,     REFUSES, "7.1",       "a chunk size that is empty, signed or has a prefix such as 0x") \
	X(CHUNK_SIZE_BLANK,  HTTP_E_CHUNK,     LETS,    "7.1.1",     "a blank after the chunk size, even before ';' where the RFC knows it as bad whitespace") \
	X(CHUNK_OVERFLOW,    HTTP_E_TOO_LARGE, LETS,    "7.1",       "a chunk size of more than 16 digits or above 2^63-1") \
	X(CHUNK_EXT_BYTE,    HTTP_E_CHUNK,     LETS,    "7.1.1",     "control bytes or obs-text in a chunk extension; LF and a lone CR are such") \
	X(CHUNK_LINE_END,    HTTP_E_CHUNK,     LETS,    "7.1",       "a chunk-size line that does not end with CRLF") \
	X(CHUNK_LINE_LONG,   HTTP_E_CHUNK,     LETS,    "7.1.1",     "a chunk-size line of more than 1,024 bytes") \
	X(CHUNK_DATA_END,    HTTP_E_CHUNK,     LETS,    "7.1",       "chunk data not followed by CRLF") \
	X(TRAILER_LINE,      HTTP_E_CHUNK,     LETS,    "7.1.2",     "a trailer line that would be refused in a head, or the last line without CRLF") \
	X(TRAILER_LONG,      HTTP_E_CHUNK,     LETS,    "7.1.2",     "more than 8,192 bytes of trailers")
// clang-format on
