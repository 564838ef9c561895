#include "master/pdfleet/unit_file.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"

void
words_add(struct words *w, char *word)
{
	w->v = mem_resize(w->v, w->n + 2, sizeof(*w->v));
	w->v[w->n++] = word;
	w->v[w->n] = NULL;
}

void
words_free(struct words *w)
{
	for (size_t i = 0; i < w->n; i++)
		free(w->v[i]);
	free(w->v);
	*w = (struct words){.v = NULL};
}

/* The text in quotes, as topo_add_exec() and topo_add_env() write it: a backslash before any byte, the bytes of
 * `doubled` twice.  Returns what is behind the closing quote, or NULL. */
static const char *
unquote(const char *s, const char *doubled, struct membuf *out)
{
	if (*s++ != '"')
		return NULL;
	for (; *s != '"'; s++) {
		if (*s == '\\' || (*s != '\0' && strchr(doubled, *s) != NULL && s[1] == *s))
			s++;
		if (*s == '\0')
			return NULL;
		membuf_add(out, s, 1);
	}
	return s + 1;
}

/* The lines of a text that have a NAME= and a value in quotes.  A value may have more than one line. */
static const char *
next_line(const char *s)
{
	s = strchr(s, '\n');
	return s != NULL ? s + 1 : "";
}

static int
read_words(const char *s, struct words *ret)
{
	struct membuf b = {.p = NULL};

	while (s != NULL && *s == '"') {
		b.n = 0;
		s = unquote(s, "%$", &b);
		if (s == NULL)
			break;
		words_add(ret, mem_strndup(b.n > 0 ? b.p : "", b.n));
		if (*s == ' ')
			s++;
	}
	membuf_free(&b);
	return s != NULL && (*s == '\n' || *s == '\0') && ret->n > 0 ? 0 : -1;
}

/* What is behind the key, or NULL. */
static const char *
value_of(const char *line, const char *key)
{
	const size_t n = strlen(key);

	return strncmp(line, key, n) == 0 ? line + n : NULL;
}

int
unit_file_read(const char *text, struct unit_file *ret)
{
	const char *value;
	int rc = -1;

	*ret = (struct unit_file){.env_path = NULL};
	for (const char *s = text; *s != '\0'; s = next_line(s)) {
		if ((value = value_of(s, "ExecStart=")) != NULL && ret->argv.n == 0)
			rc = read_words(value, &ret->argv);
		else if ((value = value_of(s, "EnvironmentFile=")) != NULL && ret->env_path == NULL)
			ret->env_path = mem_strndup(value, strcspn(value, "\n"));
		else if ((value = value_of(s, "Environment=")) != NULL &&
			 read_words(value, &ret->env) != 0)
			return -1;
	}
	return rc;
}

void
unit_file_free(struct unit_file *u)
{
	words_free(&u->argv);
	words_free(&u->env);
	free(u->env_path);
	*u = (struct unit_file){.env_path = NULL};
}

int
unit_file_read_env(const char *text, struct words *ret)
{
	struct membuf b = {.p = NULL};
	const char *s = text;

	while (*s != '\0') {
		size_t n = strcspn(s, "=\n");

		if (*s != '#' && *s != '\n') {
			b.n = 0;
			membuf_add(&b, s, n + 1);
			s = s[n] == '=' ? unquote(s + n + 1, "", &b) : NULL;
			if (s == NULL)
				break;
			words_add(ret, mem_strndup(b.p, b.n));
		}
		s = next_line(s);
	}
	membuf_free(&b);
	return s != NULL ? 0 : -1;
}
