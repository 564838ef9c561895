#include "tests/engine/text.h"

#include <string.h>

#define PRIME 0x100000001b3ULL
#define GOLDEN 0x9e3779b97f4a7c15ULL
#define NWORDS 64

/* Quotes, a backslash, control characters and text beyond ASCII are among them: a stream of plain
 * words would not show a router that breaks escapes or splits a character. */
static const char *const vocab[NWORDS] = {"the", "of", "and", "to", "in", "is", "it", "that", "was",
	"for", "on", "are", "with", "as", "they", "be", "at", "one", "have", "this", "from", "or",
	"had", "by", "hot", "word", "but", "what", "some", "we", "can", "out", "other", "were",
	"all", "there", "when", "up", "use", "your", "how", "said", "an", "each", "she", "which",
	"do", "their", "time", "if", "will", "way", "about", "many", "then", "na\xc3\xafve",
	"\xe6\x97\xa5\xe6\x9c\xac", "\xf0\x9f\x99\x82", "\"so\"", "back\\slash", "tab\tbed",
	"line\nfeed", "{[]}", "a/b"};

static struct word words[NWORDS];

void
text_init(void)
{
	static struct buf b;
	size_t i, at[NWORDS][2], n[NWORDS][2];

	if (b.len)
		return;
	for (i = 0; i < NWORDS; i++) {
		at[i][0] = b.len;
		buf_fmt(&b, " %s", vocab[i]);
		n[i][0] = b.len - at[i][0];
		at[i][1] = b.len;
		BUF_LIT(&b, " ");
		buf_json_in(&b, vocab[i], strlen(vocab[i]));
		n[i][1] = b.len - at[i][1];
	}
	for (i = 0; i < NWORDS; i++)
		words[i] = (struct word){.text = b.p + at[i][0],
			.text_len = n[i][0],
			.json = b.p + at[i][1],
			.json_len = n[i][1],
			.id = TOK_WORD + (uint32_t)i};
}

uint64_t
text_mix(uint64_t hash, uint32_t id)
{
	return (hash ^ id) * PRIME;
}

void
toks_init(struct toks *t, struct buf *ids)
{
	memset(t, 0, sizeof(*t));
	t->hash = TEXT_FNV0;
	t->ids = ids;
}

void
toks_id(struct toks *t, uint32_t id)
{
	t->before = t->hash;
	t->last = id;
	t->hash = text_mix(t->hash, id);
	if (t->raw != NULL)
		buf_add(t->raw, &id, sizeof(id));
	if (t->ids != NULL) {
		if (t->n)
			BUF_LIT(t->ids, ",");
		buf_u64(t->ids, id);
	}
	t->n++;
}

void
toks_bytes(void *arg, const char *s, size_t n)
{
	const unsigned char *p = (const unsigned char *)s, *end = p + n;
	struct toks *t = arg;

	while (t->nrest && p < end) {
		t->rest |= (uint32_t)*p++ << 8 * t->nrest++;
		if (t->nrest == 3) {
			toks_id(t, t->rest);
			t->rest = t->nrest = 0;
		}
	}
	if (t->ids == NULL && t->raw == NULL) { /* nearly all bytes of all prompts come here */
		uint64_t h = t->hash;

		t->n += (uint64_t)(end - p) / 3;
		for (; end - p >= 3; p += 3) {
			t->before = h;
			h = (h ^ (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16)) * PRIME;
		}
		t->hash = h;
	}
	for (; end - p >= 3; p += 3)
		toks_id(t, p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16);
	while (p < end)
		t->rest |= (uint32_t)*p++ << 8 * t->nrest++;
}

void
toks_end(struct toks *t)
{
	if (t->nrest)
		toks_id(t, t->rest + (t->nrest == 1 ? TOK_REST1 : TOK_REST2));
	t->rest = t->nrest = 0;
}

uint64_t
text_child(uint64_t hash, uint32_t k)
{
	return hash + k * GOLDEN;
}

const struct word *
text_next(uint64_t *state)
{
	uint64_t x = *state;
	const struct word *w;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	w = &words[x >> 58];
	*state = (*state ^ w->id) * PRIME;
	return w;
}

const struct word *
text_word(uint32_t n)
{
	return &words[(n - TOK_WORD) % NWORDS];
}

bool
text_find(const char *p, size_t n, uint32_t *ret_id)
{
	for (size_t i = 0; i < NWORDS; i++)
		if (words[i].text_len == n && memcmp(words[i].text, p, n) == 0) {
			*ret_id = words[i].id;
			return true;
		}
	return false;
}

void
text_detok(struct buf *out, uint32_t id)
{
	size_t i, n = id < TOK_REST1 ? 3 : id < TOK_REST2 ? 1 : 2;

	if (id >= TOK_WORD) {
		if (id < TOK_MAX)
			buf_add(out, words[id - TOK_WORD].text, words[id - TOK_WORD].text_len);
		return;
	}
	for (i = 0; i < n; i++) {
		char c = (char)(id >> 8 * i & 255);

		buf_add(out, &c, 1);
	}
}

uint64_t
text_fnv(uint64_t h, const char *p, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		h = (h ^ (unsigned char)p[i]) * PRIME;
	return h;
}

void
text_fnv_sink(void *h, const char *p, size_t n)
{
	*(uint64_t *)h = text_fnv(*(uint64_t *)h, p, n);
}
