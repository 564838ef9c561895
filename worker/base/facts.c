#include "worker/base/facts.h"

#include <stdlib.h>
#include <string.h>

#include "shm/base/mem.h"
#include "shm/metrics.h"

static char no_text[] = "";
static const struct trace no_trace;
static struct req_pool no_pool = {.refs = 1, .id = METRIC_NO_POOL};

/* --- settings of pools --------------------------------------------------------------------------- */

struct req_pool *
req_pool_ref(struct req_pool *pool)
{
	pool->refs++;
	return pool;
}

void
req_pool_unref(struct req_pool **pool)
{
	if (*pool != NULL && --(*pool)->refs == 0)
		free(*pool);
	*pool = NULL;
}

void
facts_take_pool(struct facts *f, struct req_pool *pool)
{
	(void)req_pool_ref(pool);
	req_pool_unref(&f->pool);
	f->pool = pool;
}

/* --- texts --------------------------------------------------------------------------------------- */

static void
drop(char **text)
{
	if (*text != no_text)
		free(*text);
	*text = no_text;
}

void
facts_set(char **text, const char *p, size_t n)
{
	drop(text);
	if (n == 0)
		return;
	*text = mem_resize(NULL, n + 1, 1);
	memcpy(*text, p, n);
	(*text)[n] = '\0';
}

void
facts_set_trace(struct facts *f, const struct trace *t)
{
	if (f->trace != &no_trace)
		free((void *)(uintptr_t)f->trace);
	f->trace = t->id[0] != '\0' ? mem_dup(t, sizeof(*t)) : &no_trace;
}

/* --- all ----------------------------------------------------------------------------------------- */

void
facts_init(struct facts *f)
{
	f->pool = req_pool_ref(&no_pool);
	f->trace = &no_trace;
	f->id = f->model = f->response = no_text;
}

void
facts_fini(struct facts *f)
{
	req_pool_unref(&f->pool);
	facts_set_trace(f, &no_trace);
	drop(&f->id);
	drop(&f->model);
	drop(&f->response);
	free(f->tried);
	f->tried = NULL;
	free(f->trace_state);
	f->trace_state = NULL;
}

struct facts *
facts_copy(const struct facts *f)
{
	struct facts *copy = mem_dup(f, sizeof(*f));

	(void)req_pool_ref(copy->pool);
	copy->trace = &no_trace;
	facts_set_trace(copy, f->trace);
	copy->id = copy->model = copy->response = no_text;
	facts_set(&copy->id, f->id, strlen(f->id));
	facts_set(&copy->model, f->model, strlen(f->model));
	facts_set(&copy->response, f->response, strlen(f->response));
	copy->tried = f->tried != NULL ? mem_dup(f->tried, sizeof(*f->tried)) : NULL;
	copy->trace_state = NULL;
	return copy;
}

/* --- endpoints that are not chosen again --------------------------------------------------------- */

bool
tried_add(struct facts *f, uint32_t slot)
{
	struct tried *t = f->tried;

	if (t == NULL)
		t = f->tried = MEM_NEW(struct tried);
	for (uint32_t i = 0; i < t->n; i++)
		if (t->slot[i] == slot)
			return true;
	if (t->n == REQ_TRIED_MAX)
		return false;
	t->slot[t->n++] = slot;
	return true;
}

void
tried_drop(struct facts *f, uint32_t slot)
{
	struct tried *t = f->tried;

	for (uint32_t i = 0; t != NULL && i < t->n; i++)
		if (t->slot[i] == slot)
			t->slot[i--] = t->slot[--t->n];
}

uint32_t
tried_count(const struct facts *f)
{
	return f->tried != NULL ? f->tried->n : 0;
}

struct tried
tried_of(const struct facts *f)
{
	return f->tried != NULL ? *f->tried : (struct tried){.n = 0};
}

void
tried_set(struct facts *f, const struct tried *t)
{
	if (f->tried != NULL)
		*f->tried = *t;
}
