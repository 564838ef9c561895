/*
 * What the simulated model is: a tokeniser, a hash over token ids, and a word for each hash.
 * expect.py is the same in Python.
 *
 * Three bytes of text are one token (ids below 2^24; a rest of 1 or 2 bytes has its own range), and
 * a generated word has an id of its own, so every prompt has exactly one row of ids and back.
 * Generation is autoregressive: the next word depends on all ids before it and on nothing else.
 * Hence an engine that is given a prompt's ids plus the first generated id goes on with the second
 * word, and whoever knows the prompt knows every byte of the answer.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/engine/buf.h"

#define TOK_REST1 0x1000000u /* + one byte */
#define TOK_REST2 0x2000000u /* + two bytes */
#define TOK_WORD 0x3000000u  /* + number of a generated word */
#define TOK_MAX 0x3000040u

struct toks {
	uint64_t hash, before; /* of all ids; of all but the last */
	uint64_t n;
	struct buf *ids; /* when set: the ids in decimal, with commas, are added here */
	struct buf *raw; /* when set: the ids, four bytes each, are added here */
	uint32_t rest, last;
	unsigned nrest;
};

struct word {
	const char *text, *json; /* as text with its leading space; escaped, without quotes */
	size_t text_len, json_len;
	uint32_t id;
};

void text_init(void); /* once, before the others */
void toks_init(struct toks *t, struct buf *ids);
void toks_bytes(void *t, const char *p, size_t n); /* a json_sink */
void toks_id(struct toks *t, uint32_t id);
void toks_end(struct toks *t); /* the text ends here: accounts for a rest of 1 or 2 bytes */

uint64_t text_mix(uint64_t hash, uint32_t id);             /* the hash of one id more */
uint64_t text_child(uint64_t hash, uint32_t k);            /* where the k-th of n answers starts */
const struct word *text_next(uint64_t *state);             /* the next word; moves the state on */
bool text_find(const char *p, size_t n, uint32_t *ret_id); /* the word that is just this text */
const struct word *text_word(uint32_t n);      /* the words of the vocabulary, round and round */
void text_detok(struct buf *out, uint32_t id); /* the bytes an id stands for */
uint64_t text_fnv(
	uint64_t h, const char *p, size_t n);         /* FNV-1a, 64 bits; h = TEXT_FNV0 to start */
void text_fnv_sink(void *h, const char *p, size_t n); /* the same as a json_sink over a uint64_t */
#define TEXT_FNV0 0xcbf29ce484222325ULL
