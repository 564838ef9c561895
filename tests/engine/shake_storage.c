/*
 * KV in storage that all engines share (LMCache's shared disk, llm-d's shared storage): P writes,
 * under the hash of the prompt and of what else its blocks depend on, and D looks there.  Nothing
 * in either request says so.  --storage is the folder; an empty file of that name is the KV.
 *
 * cache_hit_threshold: an engine that finds less than this share of the prompts does not begin; it
 * answers at once with finish_reason `cache_threshold` and no text (llm-d's vLLM; 0 switches it off).
 */
#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/engine/gen.h"
#include "tests/engine/shake.h"
#include "tests/engine/sim.h"

struct write { /* a file that is not there yet */
	TAILQ_ENTRY(write) next;
	struct storage *s;
	struct event timer;
	char path[4096];
};

TAILQ_HEAD(write_head, write);

struct storage { /* sim->deals */
	struct sim *sim;
	struct write_head writes;
};

static void
path_of(const struct gen *g, unsigned prompt, char *path, size_t room)
{
	(void)snprintf(path, room, "%s/%016llx", g->sim->o.storage,
		(unsigned long long)gen_key_of(g, prompt));
}

static double
share_found(const struct gen *g)
{
	char path[4096];
	unsigned i, n = 0;

	for (i = 0; i < g->nprompts; i++) {
		path_of(g, i, path, sizeof(path));
		n += access(path, F_OK) == 0;
	}
	return (double)n / g->nprompts;
}

static void
read_role(struct gen *g)
{
	if (g->sim->o.role == ROLE_PREFILL)
		g->mode = GEN_PREFILL;
}

static bool
check(struct gen *g)
{
	double found = share_found(g);

	if (!json_null(g->handed[0]) && json_kind(g->handed[0]) != '0')
		return gen_refuse(g, CTR_kv_refused, 400, "cache_hit_threshold: must be a number");
	if (found < json_num(g->handed[0], 0)) {
		g->mode = GEN_PLAIN;
		g->cut = "\"cache_threshold\"";
	} else if (g->sim->o.role == ROLE_DECODE && found == 1) {
		g->mode = GEN_DECODE;
		count(g->sim, CTR_kv_loaded);
	}
	return true;
}

static void
write_file(struct sim *sim, const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	if (fd == -1) {
		(void)fprintf(stderr, "pdsim: %s: %s\n", path, strerror(errno));
		count(sim, CTR_kv_push_failed);
		return;
	}
	(void)close(fd);
	count(sim, CTR_kv_stored);
}

static void
end_write(struct write *w)
{
	TAILQ_REMOVE(&w->s->writes, w, next);
	(void)event_del(&w->timer);
	free(w);
}

static void
on_time(evutil_socket_t fd, short what, void *arg)
{
	struct write *w = arg;

	(void)fd;
	(void)what;
	write_file(w->s->sim, w->path);
	end_write(w);
}

static void
computed(struct gen *g)
{
	struct storage *s = g->sim->deals;
	double ms = g->sim->o.kv_delay_ms;
	struct timeval tv = {(time_t)(ms / 1000), (suseconds_t)((long long)(ms * 1000) % 1000000)};
	struct write *w;
	unsigned i;

	for (i = 0; i < g->nprompts; i++) {
		w = calloc(1, sizeof(*w));
		if (w == NULL)
			abort();
		w->s = s;
		path_of(g, i, w->path, sizeof(w->path));
		(void)evtimer_assign(&w->timer, g->sim->base, on_time, w);
		TAILQ_INSERT_TAIL(&s->writes, w, next);
		if (ms > 0)
			(void)evtimer_add(&w->timer, &tv);
		else
			on_time(-1, 0, w);
	}
	gen_reply(g);
}

static void
start(struct sim *sim)
{
	struct storage *s;
	struct stat st;

	if (sim->o.storage == NULL || stat(sim->o.storage, &st) == -1 || !S_ISDIR(st.st_mode))
		sim_bad_option("storage", sim->o.storage == NULL ? "" : sim->o.storage);
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		abort();
	s->sim = sim;
	TAILQ_INIT(&s->writes);
	sim->deals = s;
}

static void
stop(struct sim *sim)
{
	struct storage *s = sim->deals;

	while (!TAILQ_EMPTY(&s->writes))
		end_write(TAILQ_FIRST(&s->writes));
	free(s);
}

const struct shake shake_storage = {
	.name = "shared_storage",
	.members = {"cache_hit_threshold"},
	.leg_of_one = true,
	.start = start,
	.stop = stop,
	.read = read_role,
	.check = check,
	.computed = computed,
};
