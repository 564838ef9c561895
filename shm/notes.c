#include "shm/notes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/core/atomic.h"

#define TRIES 8
#define WORD sizeof(uint64_t)

static_assert(NOTE_ID % WORD == 0 && NOTE_MODEL % WORD == 0 && NOTE_REASON % WORD == 0 &&
		      NOTE_LETTERS % WORD == 0,
	"texts are copied word by word");

struct notes {
	struct seg *seg;
	uint32_t worker;
	uint32_t nfree, high;
	uint64_t ended;
	uint32_t free[]; /* [nfree] the last one is taken first */
};

const char *
note_state_word(enum note_state state)
{
#define NOTE_WORD(id, word) [NOTE_##id] = (word),
	static const char *const words[NOTE_NSTATES] = {NOTE_STATES(NOTE_WORD)};
#undef NOTE_WORD

	return words[state];
}

/* --- the worker --------------------------------------------------------------------------- */

struct notes *
notes_new(struct seg *seg, uint32_t worker)
{
	const uint32_t n = seg->hdr->running_requests;
	struct notes *notes = mem_zero(sizeof(*notes) + n * sizeof(notes->free[0]));
	struct notes_head *head = seg_notes(seg, worker);

	notes->seg = seg;
	notes->worker = worker;
	notes->ended = shm_load(&head->ended);
	shm_store(&head->high, 0);
	while (notes->nfree < n) {
		notes->free[notes->nfree] = n - 1 - notes->nfree;
		notes->nfree++;
	}
	return notes;
}

void
notes_free(struct notes **pn)
{
	free(*pn);
	*pn = NULL;
}

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "put_text() shifts the last word");

/* Words from the first to the one with the end of the text, which fits or is cut.  A copy of a fixed size is one instruction. */
static void
put_text(char *to, size_t size, const char *from)
{
	const size_t n = strnlen(from, size - 1), rest = n % WORD;
	uint64_t *words = (uint64_t *)(void *)to, word = 0;

	for (size_t i = 0; i < n / WORD; i++) {
		memcpy(&word, from + i * WORD, WORD);
		shm_store(&words[i], word);
	}
	word = 0;
	if (rest > 0 && n >= WORD) {
		memcpy(&word, from + n - WORD, WORD);
		word >>= 8 * (WORD - rest);
	} else {
		memcpy(&word, from, rest);
	}
	shm_store(&words[n / WORD], word);
}

static uint64_t
pair(uint32_t high, uint32_t low)
{
	return (uint64_t)high << 32 | low;
}

static void
begin(struct note_words *w)
{
	shm_store(&w->seq, shm_load(&w->seq) | 1);
	/* odd before the first change.  Pairs with get()'s second read of seq. */
	shm_mb();
}

static void
finish(struct note_words *w)
{
	/* Even after the last change.  Pairs with get()'s first read of seq. */
	shm_store_release(&w->seq, shm_load(&w->seq) + 1);
}

/* How often the ring had been filled before the note of this number: tells the notes of one
 * place apart. */
static uint64_t
lap_of(uint64_t number, uint32_t size)
{
	return (number - 1) / size & 0xffff;
}

static void
put_now(struct note_words *w, const struct note_now *now, uint32_t status, uint64_t lap)
{
	shm_store(&w->at_us, now->at_us);
	shm_store(&w->what, (uint64_t)(now->pool & 0xffff) << 48 |
				    (uint64_t)(now->tries & 0xff) << 40 | lap << 24 |
				    (uint64_t)(status & 0xffff) << 8 | (uint64_t)now->state);
	shm_store(&w->slots, pair(now->engines.slot[ROLE_PREFILL], now->engines.slot[ROLE_DECODE]));
	shm_store(&w->tags, pair(now->engines.tag[ROLE_PREFILL], now->engines.tag[ROLE_DECODE]));
}

static struct note_words *
words_of(const struct notes *n, uint32_t note)
{
	return seg_note(n->seg, n->worker, note - 1);
}

uint32_t
note_begin(struct notes *n, const char *id, const char *model, const struct note_now *now,
	uint64_t from_us)
{
	struct note_words *w;
	uint32_t i;

	if (n->nfree == 0)
		return 0;
	i = n->free[--n->nfree];
	w = seg_note(n->seg, n->worker, i);
	begin(w);
	shm_store(&w->from_us, from_us);
	put_text(w->id, sizeof(w->id), id);
	put_text(w->model, sizeof(w->model), model);
	put_now(w, now, 0, 0);
	finish(w);
	if (i >= n->high) {
		n->high = i + 1;
		/* after the note.  Pairs with notes_in_use(). */
		shm_store_release(&seg_notes(n->seg, n->worker)->high, n->high);
	}
	return i + 1;
}

void
note_model(struct notes *n, uint32_t note, const char *model)
{
	struct note_words *w;

	if (note == 0)
		return;
	w = words_of(n, note);
	begin(w);
	put_text(w->model, sizeof(w->model), model);
	finish(w);
}

void
note_move(struct notes *n, uint32_t note, const struct note_now *now)
{
	struct note_words *w;

	if (note == 0)
		return;
	w = words_of(n, note);
	begin(w);
	put_now(w, now, 0, 0);
	finish(w);
}

/* Texts that the note of the table has are copied from there: no length is to be found. */
static void
copy_names(struct note_words *to, const struct note_words *from)
{
	static_assert(
		offsetof(struct note_words, id) == offsetof(struct note_words, model) + NOTE_MODEL,
		"both are copied at once");
	uint64_t *words = (uint64_t *)(void *)to->model;
	const uint64_t *names = (const uint64_t *)(const void *)from->model;

	for (size_t i = 0; i < (NOTE_MODEL + NOTE_ID) / WORD; i++)
		shm_store(&words[i], shm_load(&names[i]));
}

static void
put_letters(struct note_words *w, const char letters[static NOTE_LETTERS])
{
	uint64_t *to = (uint64_t *)(void *)w->states, words[NOTE_LETTERS / WORD];

	memcpy(words, letters, sizeof(words));
	for (size_t i = 0; i < NOTE_LETTERS / WORD; i++)
		shm_store(&to[i], words[i]);
}

static void
put_end(struct note_words *w, const struct note_end *end)
{
	put_text(w->reason, sizeof(w->reason), end->reason);
	put_letters(w, end->states);
	shm_store(&w->times, pair(end->queued_ms, end->first_ms));
	shm_store(&w->tokens, pair(end->prompt, end->completion));
}

static void
leave(struct notes *n, uint32_t note)
{
	struct note_words *w = words_of(n, note);

	begin(w);
	shm_store(&w->what, NOTE_FREE);
	finish(w);
	n->free[n->nfree++] = note - 1;
}

void
note_end(struct notes *n, uint32_t note, const char *id, const char *model, uint64_t from_us,
	const struct note_now *now, const struct note_end *end)
{
	const uint32_t size = n->seg->hdr->kept_requests;
	struct note_words *w;

	if (size > 0 && end != NULL) {
		w = seg_note(n->seg, n->worker,
			n->seg->hdr->running_requests + (uint32_t)(n->ended % size));
		begin(w);
		if (note != 0) {
			copy_names(w, words_of(n, note));
		} else {
			put_text(w->id, sizeof(w->id), id);
			put_text(w->model, sizeof(w->model), model);
		}
		shm_store(&w->from_us, from_us);
		put_now(w, now, end->status, lap_of(n->ended + 1, size));
		put_end(w, end);
		finish(w);
		n->ended++;
		/* after the note.  Pairs with notes_ended(). */
		shm_store_release(&seg_notes(n->seg, n->worker)->ended, n->ended);
	}
	if (note != 0)
		leave(n, note);
}

/* --- the reader --------------------------------------------------------------------------- */

static void
get_text(const char *from, char *to, size_t size)
{
	const uint64_t *words = (const uint64_t *)(const void *)from;

	for (size_t at = 0; at < size; at += WORD) {
		const uint64_t word = shm_load(&words[at / WORD]);

		memcpy(to + at, &word, WORD);
	}
	to[size - 1] = '\0';
}

static void
take(const struct note_words *w, struct note *ret)
{
	const uint64_t what = shm_load(&w->what), slots = shm_load(&w->slots),
		       tags = shm_load(&w->tags), times = shm_load(&w->times),
		       tokens = shm_load(&w->tokens);

	*ret = (struct note){
		.now = {.state = (enum note_state)(what & 0xff),
			.at_us = shm_load(&w->at_us),
			.engines = {.slot = {(uint32_t)(slots >> 32), (uint32_t)slots},
				.tag = {(uint32_t)(tags >> 32), (uint32_t)tags}},
			.tries = (uint32_t)(what >> 40 & 0xff),
			.pool = (uint32_t)(what >> 48)},
		.from_us = shm_load(&w->from_us),
		.status = (uint32_t)(what >> 8 & 0xffff),
		.queued_ms = (uint32_t)(times >> 32),
		.first_ms = (uint32_t)times,
		.prompt = (uint32_t)(tokens >> 32),
		.completion = (uint32_t)tokens,
		.lap = (uint16_t)(what >> 24),
	};
	get_text(w->id, ret->id, sizeof(ret->id));
	get_text(w->model, ret->model, sizeof(ret->model));
	get_text(w->reason, ret->reason, sizeof(ret->reason));
	get_text(w->states, ret->states, sizeof(ret->states));
}

static bool
get(const struct note_words *w, struct note *ret)
{
	for (int tries = 0; tries < TRIES; tries++) {
		/* Pairs with finish()'s release. */
		const uint64_t seq = shm_load_acquire(&w->seq);

		take(w, ret);
		/* Pairs with begin()'s barrier. */
		shm_mb();
		if ((seq & 1) == 0 && shm_load(&w->seq) == seq)
			return ret->now.state < NOTE_NSTATES && ret->now.at_us >= ret->from_us;
	}
	return false;
}

uint32_t
notes_in_use(const struct seg *seg, uint32_t worker)
{
	/* Pairs with note_begin(). */
	const uint64_t high = shm_load_acquire(&seg_notes(seg, worker)->high);

	return high < seg->hdr->running_requests ? (uint32_t)high : seg->hdr->running_requests;
}

uint32_t
notes_in_flight(const struct seg *seg, uint32_t worker)
{
	const struct proc_record *p = &seg->proc_records[worker];
	const bool serves = p->pid != 0 && (p->state == PROC_READY || p->state == PROC_DRAINING);

	return serves ? notes_in_use(seg, worker) : 0;
}

bool
note_running(const struct seg *seg, uint32_t worker, uint32_t i, struct note *ret)
{
	return get(seg_note(seg, worker, i), ret) && ret->now.state != NOTE_FREE &&
	       ret->now.state != NOTE_ENDED;
}

uint64_t
notes_ended(const struct seg *seg, uint32_t worker)
{
	/* Pairs with note_end(). */
	return shm_load_acquire(&seg_notes(seg, worker)->ended);
}

uint32_t
notes_kept(const struct seg *seg, uint64_t ended)
{
	return ended < seg->hdr->kept_requests ? (uint32_t)ended : seg->hdr->kept_requests;
}

bool
note_ended(const struct seg *seg, uint32_t worker, uint64_t number, struct note *ret)
{
	const uint32_t size = seg->hdr->kept_requests;

	if (size == 0 || !get(seg_note(seg, worker,
				      seg->hdr->running_requests + (uint32_t)((number - 1) % size)),
				 ret))
		return false;
	/* the next note of this place is whole before the worker counts it: its lap is another */
	return ret->now.state == NOTE_ENDED && ret->lap == lap_of(number, size) &&
	       notes_ended(seg, worker) - number < size;
}
