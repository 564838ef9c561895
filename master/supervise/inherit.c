#include "master/supervise/inherit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shm/base/decimal.h"
#include "shm/base/mem.h"

#define FIELDS 3 /* of a word; further ones are ignored */

/* A word's value: its numbers, separated by colons. */
struct value {
	uint32_t field[FIELDS];
	size_t n;
};

void
inherit_init(struct inherit *in)
{
	*in = (struct inherit){
		.from = {.talk = -1, .notices = -1},
		.state = -1,
		.control = -1,
		.control_lock = -1,
		.state_lock = -1,
	};
}

/* --- reading ------------------------------------------------------------------------------------ */

static bool
read_value(const char *at, const char *end, struct value *ret)
{
	uint64_t n;

	ret->n = 0;
	while (ret->n < FIELDS) {
		if (!decimal_read(&at, end, UINT32_MAX, &n))
			return false;
		ret->field[ret->n++] = (uint32_t)n;
		if (at == end)
			return true;
		if (*at++ != ':')
			return false;
	}
	return true;
}

/* A descriptor that is none of the standard ones. */
static bool
take_fd(uint32_t number, int *ret)
{
	if (number <= 2 || number > INHERIT_FD_MAX)
		return false;
	*ret = (int)number;
	return true;
}

static bool
take_old(const struct value *v, struct inherit_old *ret)
{
	ret->instance = v->field[0];
	return v->n == 3 && take_fd(v->field[1], &ret->talk) && take_fd(v->field[2], &ret->notices);
}

static bool
take_instance(struct inherit *in, const struct value *v)
{
	const bool first = in->instance == 0;

	in->instance = v->field[0];
	return first && in->instance > 0;
}

static bool
take_from(struct inherit *in, const struct value *v)
{
	return in->from.talk == -1 && take_old(v, &in->from);
}

static bool
take_older(struct inherit *in, const struct value *v)
{
	return in->nold < INHERIT_OLD_MAX && take_old(v, &in->old[in->nold++]);
}

static bool
take_state(struct inherit *in, const struct value *v)
{
	return in->state == -1 && take_fd(v->field[0], &in->state);
}

static bool
add_listen(struct inherit *in, const struct value *v, bool ours)
{
	if (in->nlisten == INHERIT_LISTEN_MAX)
		return false;
	in->listen[in->nlisten].ours = ours;
	return take_fd(v->field[0], &in->listen[in->nlisten++].fd);
}

static bool
take_listen(struct inherit *in, const struct value *v)
{
	return add_listen(in, v, true);
}

static bool
take_systemd(struct inherit *in, const struct value *v)
{
	return add_listen(in, v, false);
}

static bool
take_control(struct inherit *in, const struct value *v)
{
	return in->control == -1 && v->n >= 2 && take_fd(v->field[0], &in->control) &&
	       take_fd(v->field[1], &in->control_lock);
}

static bool
take_state_lock(struct inherit *in, const struct value *v)
{
	return in->state_lock == -1 && take_fd(v->field[0], &in->state_lock);
}

static const struct {
	const char *name;
	bool (*take)(struct inherit *in, const struct value *v);
} words[] = {
	{"instance", take_instance},
	{"from", take_from},
	{"old", take_older},
	{"state", take_state},
	{"listen", take_listen},
	{"systemd", take_systemd},
	{"control", take_control},
	{"state_lock", take_state_lock},
};

/* False if the word is known, and its value is wrong or it is one too many. */
static bool
take_word(struct inherit *in, const char *word, size_t len)
{
	const char *eq = memchr(word, '=', len);
	struct value v;

	for (size_t i = 0; eq != NULL && i < sizeof(words) / sizeof(words[0]); i++)
		if (strlen(words[i].name) == (size_t)(eq - word) &&
			memcmp(words[i].name, word, (size_t)(eq - word)) == 0)
			return read_value(eq + 1, word + len, &v) && words[i].take(in, &v);
	return true;
}

struct seen {
	int fd;
	size_t n;
};

static void
count_same(int fd, void *arg)
{
	struct seen *s = arg;

	s->n += s->fd == fd;
}

struct doubles {
	const struct inherit *in;
	bool any;
};

static void
look_for_double(int fd, void *arg)
{
	struct doubles *d = arg;
	struct seen s = {.fd = fd};

	inherit_each(d->in, count_same, &s);
	d->any |= s.n > 1;
}

int
inherit_parse(const char *text, struct inherit *ret, const char **ret_why)
{
	struct doubles d = {.in = ret};

	inherit_init(ret);
	*ret_why = "a word has a wrong value, or is given too often";
	for (size_t n; *text != '\0'; text += n) {
		text += strspn(text, " ");
		n = strcspn(text, " ");
		if (!take_word(ret, text, n))
			return -1;
	}
	*ret_why = "instance and from are needed";
	if (ret->instance == 0 || ret->from.talk == -1)
		return -1;
	*ret_why = "a descriptor is named twice";
	inherit_each(ret, look_for_double, &d);
	return d.any ? -1 : 0;
}

/* --- writing ------------------------------------------------------------------------------------ */

static void
put(struct membuf *out, char *text)
{
	membuf_add(out, text, strlen(text));
	free(text);
}

static void
put_old(struct membuf *out, const char *word, const struct inherit_old *old)
{
	put(out, mem_printf(" %s=%u:%d:%d", word, old->instance, old->talk, old->notices));
}

char *
inherit_text(const struct inherit *in)
{
	struct membuf out = {0};
	char *text;

	put(&out, mem_printf("instance=%u", in->instance));
	put_old(&out, "from", &in->from);
	for (size_t i = 0; i < in->nold; i++)
		put_old(&out, "old", &in->old[i]);
	if (in->state != -1)
		put(&out, mem_printf(" state=%d", in->state));
	for (size_t i = 0; i < in->nlisten; i++)
		put(&out, mem_printf(" %s=%d", in->listen[i].ours ? "listen" : "systemd",
				  in->listen[i].fd));
	if (in->control != -1)
		put(&out, mem_printf(" control=%d:%d", in->control, in->control_lock));
	if (in->state_lock != -1)
		put(&out, mem_printf(" state_lock=%d", in->state_lock));
	text = mem_strndup(out.p, out.n);
	membuf_free(&out);
	return text;
}

void
inherit_each(const struct inherit *in, void (*fn)(int fd, void *arg), void *arg)
{
	const int single[] = {in->from.talk, in->from.notices, in->state, in->control,
		in->control_lock, in->state_lock};

	for (size_t i = 0; i < sizeof(single) / sizeof(single[0]); i++)
		if (single[i] != -1)
			fn(single[i], arg);
	for (size_t i = 0; i < in->nold; i++) {
		fn(in->old[i].talk, arg);
		fn(in->old[i].notices, arg);
	}
	for (size_t i = 0; i < in->nlisten; i++)
		fn(in->listen[i].fd, arg);
}
