#include "master/pdfleet/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* A reload waits for the new workers: systemd/pdrouter.service allows it as much. */
#define ANSWER_S 180

static FILE *
connect_to(const char *path)
{
	struct sockaddr_un sun = {.sun_family = AF_UNIX};
	const struct timeval limit = {.tv_sec = ANSWER_S};
	int fd;

	if (strlen(path) >= sizeof(sun.sun_path))
		return NULL;
	memcpy(sun.sun_path, path, strlen(path));
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return NULL;
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(fd, (struct sockaddr *)&sun, sizeof(sun)) == 0)
		return fdopen(fd, "r");
	(void)close(fd);
	return NULL;
}

/* The lines up to OK or ERR. */
static enum control_answer
read_answer(FILE *in, struct membuf *answer)
{
	enum control_answer ret = CONTROL_NONE;
	char *line = NULL;
	size_t size = 0;
	ssize_t n;

	while (ret == CONTROL_NONE && (n = getline(&line, &size, in)) != -1) {
		if (strcmp(line, "OK\n") == 0)
			ret = CONTROL_OK;
		else if (strncmp(line, "ERR ", 4) == 0) {
			answer->n = 0;
			membuf_add(answer, line + 4, (size_t)n - 5); /* without its newline */
			ret = CONTROL_ERR;
		} else
			membuf_add(answer, line, (size_t)n);
	}
	free(line);
	return ret;
}

enum control_answer
control_say(const char *path, const char *command, struct membuf *answer)
{
	enum control_answer ret = CONTROL_NONE;
	char *line = mem_printf("%s\n", command);
	FILE *in = connect_to(path);

	if (in != NULL &&
		send(fileno(in), line, strlen(line), MSG_NOSIGNAL) == (ssize_t)strlen(line))
		ret = read_answer(in, answer);
	if (in != NULL)
		(void)fclose(in);
	free(line);
	membuf_add(answer, "", 1);
	answer->n--;
	return ret;
}
