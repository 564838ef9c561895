/* The two runners: processes that pdfleet starts itself, and the answers of systemctl. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "master/pdfleet/process.h"
#include "master/pdfleet/runner.h"
#include "master/pdfleet/tree.h"
#include "master/pdfleet/unit_file.h"
#include "master/topology/text.h"

#define UNIT "pdrouter-engine@f-prefill-0"

static char dir[] = "/tmp/pdfleet-XXXXXX";

static void
put(const char *path, const char *text)
{
	char *own = mem_strdup(text);
	const struct topo_file f = {.mode = 0644, .bytes = own, .n = strlen(text)};

	cr_assert_eq(tree_folders(path), 0);
	cr_assert_eq(tree_put(path, &f), 0);
	free(own);
}

/* A runner in a folder of its own, with a unit that runs the shell's `script`. */
static struct runner *
make(const char *script)
{
	struct runner *r;
	struct membuf b = {.p = NULL};
	char *path, *env;

	cr_assert_not_null(mkdtemp(dir));
	r = runner_plain(dir);
	cr_assert_not_null(r);
	path = runner_drop_in(r, UNIT);
	env = mem_printf("%sf-prefill-0.env", r->paths.fleet);
	topo_add(&b, "# ours\n[Service]\nEnvironmentFile=%s\nExecStart=\"/bin/sh\" \"-c\" ", env);
	topo_add_exec(&b, script);
	membuf_add(&b, "\n", 2);
	put(path, b.p);
	put(env, "# ours\nNOTE=\"50% \\$HOME\"\nDIGEST=\"abc\"\n");
	membuf_free(&b);
	free(path);
	free(env);
	return r;
}

static void
unmake(struct runner **r)
{
	char *command = mem_printf("rm -rf %s", dir);

	runner_free(r);
	cr_expect_eq(system(command), 0);
	free(command);
}

static struct unit_status
look(const struct runner *r)
{
	struct unit_status s;

	cr_assert_eq(r->ops->status(r, UNIT, &s), 0);
	return s;
}

/* Polls until the unit's log has the text. */
static void
expect_log(const struct runner *r, const char *text)
{
	struct membuf b = {.p = NULL};

	for (unsigned i = 0; i < 2000; i++) {
		b.n = 0;
		cr_assert_eq(r->ops->last(r, UNIT, 1, &b), 0);
		membuf_add(&b, "", 1);
		if (strcmp(b.p, text) == 0)
			break;
		(void)usleep(5000);
	}
	cr_expect_str_eq(b.p, text);
	membuf_free(&b);
}

Test(runner, life_of_a_unit)
{
	struct runner *r = make("echo first; echo \"$NOTE\"; exec sleep 60");
	struct unit_status s = look(r);
	char *digest;
	pid_t pid;

	cr_expect_eq(s.state, UNIT_STOPPED);
	cr_assert_eq(r->ops->start(r, UNIT), 0);
	s = look(r);
	pid = s.pid;
	cr_expect_eq(s.state, UNIT_RUNNING);
	cr_expect(s.since > 0 && labs((long)(time(NULL) - s.since)) < 60);
	expect_log(r, "50% $HOME\n");
	digest = process_env(pid, "DIGEST");
	cr_expect_str_eq(digest, "abc");
	cr_expect_eq(getpgid(pid), pid);
	cr_assert_eq(r->ops->start(r, UNIT), 0);
	cr_expect_eq(look(r).pid, pid, "a unit that runs stays as it is");
	cr_assert_eq(r->ops->stop(r, UNIT), 0);
	cr_expect_eq(look(r).state, UNIT_STOPPED);
	cr_expect_eq(process_start(pid), 0);
	cr_assert_eq(r->ops->stop(r, UNIT), 0);
	free(digest);
	unmake(&r);
}

Test(runner, a_process_that_ends_by_itself_has_failed)
{
	struct runner *r = make("echo why; exit 3");

	cr_assert_eq(r->ops->start(r, UNIT), 0);
	for (unsigned i = 0; i < 2000 && look(r).state == UNIT_RUNNING; i++)
		(void)usleep(5000);
	cr_expect_eq(look(r).state, UNIT_FAILED);
	expect_log(r, "why\n");
	cr_assert_eq(r->ops->forget(r, UNIT), 0);
	cr_expect_eq(look(r).state, UNIT_STOPPED);
	unmake(&r);
}

Test(runner, the_log_is_that_of_the_last_start)
{
	struct runner *r = make("echo start; exec sleep 60");
	struct membuf b = {.p = NULL};

	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(r->ops->start(r, UNIT), 0);
		expect_log(r, "start\n");
		cr_assert_eq(r->ops->stop(r, UNIT), 0);
	}
	cr_assert_eq(r->ops->last(r, UNIT, 10, &b), 0);
	cr_expect(b.n == 6 && memcmp(b.p, "start\n", 6) == 0, "%.*s", (int)b.n, b.p);
	membuf_free(&b);
	unmake(&r);
}

Test(runner, a_pid_of_another_process_is_not_trusted)
{
	struct runner *r = make("exec sleep 60");
	char *path = mem_printf("%s" UNIT ".pid", r->run), *text;

	text = mem_printf(
		"%d %llu\n", (int)getpid(), (unsigned long long)process_start(getpid()) + 1);
	put(path, text);
	cr_expect_eq(look(r).state, UNIT_FAILED);
	cr_expect_eq(r->ops->stop(r, UNIT), 0);
	cr_expect_eq(look(r).state, UNIT_STOPPED, "and this process lives");
	free(text);
	free(path);
	unmake(&r);
}

/* The pid that the unit has written to its log, of a process that runs; that of its last start was `former`. */
static pid_t
child_of(const struct runner *r, pid_t former)
{
	struct membuf b = {.p = NULL};
	pid_t child = former;

	for (unsigned i = 0; i < 2000 && (child == former || child == 0); i++) {
		b.n = 0;
		cr_assert_eq(r->ops->last(r, UNIT, 1, &b), 0);
		membuf_add(&b, "", 1);
		child = (pid_t)strtol(b.p, NULL, 10);
		(void)usleep(5000);
	}
	membuf_free(&b);
	cr_assert(child > 0 && process_start(child) != 0);
	return child;
}

static void
expect_end(pid_t pid)
{
	for (unsigned i = 0; i < 2000 && process_start(pid) != 0; i++)
		(void)usleep(5000);
	cr_expect_eq(process_start(pid), 0);
}

Test(runner, a_stop_ends_the_whole_unit)
{
	struct runner *r = make("trap '' TERM; sleep 60 & echo $!; wait; wait");
	pid_t child;

	r->stop_s = 0;
	cr_assert_eq(r->ops->start(r, UNIT), 0);
	child = child_of(r, 0);
	cr_assert_eq(r->ops->stop(r, UNIT), 0);
	expect_end(child);
	unmake(&r);
}

/* A child in a session of its own outlives the main process: neither a start nor a stop leaves it there. */
Test(runner, what_a_dead_process_has_left_is_ended)
{
	struct runner *r = make("setsid sleep 60 & echo $!; exec sleep 61");
	pid_t leader, first, second;

	cr_assert_eq(r->ops->start(r, UNIT), 0);
	first = child_of(r, 0);
	leader = look(r).pid;
	cr_assert_eq(kill(leader, SIGKILL), 0);
	expect_end(leader);
	cr_expect_neq(process_start(first), 0);
	cr_assert_eq(r->ops->start(r, UNIT), 0);
	cr_expect_eq(process_start(first), 0);
	second = child_of(r, first);
	cr_assert_eq(r->ops->stop(r, UNIT), 0);
	cr_expect_eq(process_start(second), 0);
	unmake(&r);
}

Test(runner, a_stop_that_was_killed_is_ended_by_the_next_one)
{
	struct runner *r = make("trap '' TERM; echo ready; while :; do sleep 1; done");
	pid_t pid, child;

	cr_assert_eq(r->ops->start(r, UNIT), 0);
	expect_log(r, "ready\n");
	pid = look(r).pid;
	child = fork();
	if (child == 0)
		_exit(r->ops->stop(r, UNIT) != 0); /* waits for r->stop_s */
	for (unsigned i = 0; i < 2000 && look(r).state == UNIT_RUNNING; i++)
		(void)usleep(5000);
	cr_expect_eq(kill(child, SIGKILL), 0);
	cr_expect_eq(waitpid(child, NULL, 0), child);
	cr_expect(look(r).state == UNIT_STOPPING && look(r).pid == pid);
	r->stop_s = 0;
	cr_assert_eq(r->ops->start(r, UNIT), 0);
	cr_expect(look(r).state == UNIT_RUNNING && look(r).pid != pid);
	cr_assert_eq(r->ops->stop(r, UNIT), 0);
	cr_expect_eq(look(r).state, UNIT_STOPPED);
	unmake(&r);
}

Test(runner, what_cannot_be_executed_has_failed)
{
	struct runner *r = make("");
	char *path = runner_drop_in(r, UNIT);

	put(path, "[Service]\nExecStart=\"/no/such/program\"\n");
	cr_expect_eq(r->ops->start(r, UNIT), -1);
	cr_expect_eq(look(r).state, UNIT_FAILED);
	put(path, "[Service]\nExecStart=/bin/true\n");
	cr_expect_eq(r->ops->start(r, UNIT), -1, "a definition that is not ours");
	cr_expect_eq(unlink(path), 0);
	cr_expect_eq(r->ops->forget(r, UNIT), 0);
	cr_expect_eq(look(r).state, UNIT_ABSENT);
	free(path);
	unmake(&r);
}

Test(runner, what_was_rendered_is_read_again)
{
	static const char *const texts[] = {
		"/bin/x", "", "a b", "50% $HOME ${x} \"'\\`", "{\"a\":[1]}", "%%$$"};
	const size_t n = sizeof(texts) / sizeof(texts[0]);
	struct membuf exec = {.p = NULL}, env = {.p = NULL};
	struct words vars = {.v = NULL};
	struct unit_file u;

	topo_add(&exec, "[Unit]\n[Service]\nEnvironmentFile=/e v\nEnvironment=\"A=b\"\nExecStart=");
	for (size_t i = 0; i < n; i++) {
		topo_add(&exec, "%s", i > 0 ? " " : "");
		topo_add_exec(&exec, texts[i]);
		topo_add(&env, "V%zu=", i);
		topo_add_env(&env, texts[i]);
		topo_add(&env, "\n");
	}
	membuf_add(&exec, "\n", 2);
	membuf_add(&env, "", 1);
	cr_assert_eq(unit_file_read(exec.p, &u), 0);
	cr_assert_eq(unit_file_read_env(env.p, &vars), 0);
	cr_expect_str_eq(u.env_path, "/e v");
	cr_assert(u.env.n == 1 && strcmp(u.env.v[0], "A=b") == 0);
	cr_assert(u.argv.n == n && vars.n == n && u.argv.v[n] == NULL);
	for (size_t i = 0; i < n; i++) {
		cr_expect_str_eq(u.argv.v[i], texts[i]);
		cr_expect_str_eq(vars.v[i] + 3, texts[i]);
	}
	membuf_free(&exec);
	membuf_free(&env);
	words_free(&vars);
	unit_file_free(&u);
}

Test(runner, texts_that_are_not_ours)
{
	static const char *const bad[] = {"", "[Service]\n", "ExecStart=/bin/x\n",
		"ExecStart=\"/bin/x\n", "ExecStart=\"/bin/x\" y\n", "ExecStart=\"/bin/x\\",
		"ExecStart=\n", "ExecStart=\"/bin/x\"\nEnvironment=A=b\n"};
	struct words w = {.v = NULL};
	struct unit_file u;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_expect_eq(unit_file_read(bad[i], &u), -1, "%s", bad[i]);
		unit_file_free(&u);
	}
	cr_expect_eq(unit_file_read_env("A=b\n", &w), -1);
	words_free(&w);
	cr_expect_eq(unit_file_read_env("A\n", &w), -1);
	words_free(&w);
}

Test(runner, what_systemd_says)
{
	static const struct {
		const char *load, *active, *sub;
		enum unit_state state;
	} rows[] = {
		{"loaded", "active", "running", UNIT_RUNNING},
		{"loaded", "deactivating", "stop-sigterm", UNIT_STOPPING},
		{"loaded", "activating", "start", UNIT_STARTING},
		{"loaded", "activating", "auto-restart", UNIT_FAILED},
		{"loaded", "failed", "failed", UNIT_FAILED},
		{"loaded", "inactive", "dead", UNIT_STOPPED},
		{"bad-setting", "inactive", "dead", UNIT_ABSENT},
		{"not-found", "inactive", "dead", UNIT_ABSENT},
		{"not-found", "active", "running",
			UNIT_RUNNING}, /* its files are gone, it is not */
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *text = mem_printf("MainPID=%zu\nLoadState=%s\nActiveState=%s\nSubState=%s\n"
					"StateChangeTimestamp=@17\n",
			i, rows[i].load, rows[i].active, rows[i].sub);
		struct unit_status s;

		runner_systemd_parse(text, &s);
		cr_expect_eq(s.state, rows[i].state, "row %zu: %s", i, unit_state_name(s.state));
		cr_expect(s.pid == (pid_t)i && s.since == 17);
		free(text);
	}
}
