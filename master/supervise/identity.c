#include "master/supervise/identity.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "shm/base/conf.h"
#include "shm/core/heritage.h"

/* The highest number means "no change" to the kernel. */
static bool
number_of(const char *text, uint32_t *ret)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || n >= UINT32_MAX)
		return false;
	*ret = (uint32_t)n;
	return true;
}

static int
bad(char *error, size_t size, const char *key, const char *value, const char *what)
{
	(void)snprintf(error, size, "%s: %s: %s", key, value, what);
	return -1;
}

static int
find_user(const struct conf *conf, struct identity *id, char *error, size_t size)
{
	const struct passwd *pw = getpwnam(conf->user);

	if (pw == NULL && !number_of(conf->user, &id->uid))
		return bad(error, size, "user", conf->user, "there is no such user");
	if (pw == NULL)
		pw = getpwuid(id->uid);
	if (pw == NULL && conf->group == NULL)
		return bad(
			error, size, "user", conf->user, "a number without a name needs a group");
	if (pw == NULL)
		return 0;
	id->uid = pw->pw_uid;
	id->gid = pw->pw_gid;
	return 0;
}

static int
find_group(const struct conf *conf, struct identity *id, char *error, size_t size)
{
	const struct group *gr = getgrnam(conf->group);

	if (gr != NULL)
		id->gid = gr->gr_gid;
	else if (!number_of(conf->group, &id->gid))
		return bad(error, size, "group", conf->group, "there is no such group");
	return 0;
}

static int
look_up(const struct conf *conf, struct identity *id, char *error, size_t size)
{
	if (conf->user != NULL && find_user(conf, id, error, size) == -1)
		return -1;
	return conf->group != NULL ? find_group(conf, id, error, size) : 0;
}

int
identity_find(const struct conf *conf, struct identity *ret, char *error, size_t size)
{
	const struct identity own = {getuid(), getgid(), IDENTITY_STAYS};

	*ret = own;
	if (look_up(conf, ret, error, size) == -1)
		return -1;
	if (conf->user == NULL && conf->group == NULL)
		return 0;
	if (geteuid() == 0)
		ret->change = IDENTITY_CHANGES;
	else if (ret->uid != own.uid)
		return bad(error, size, "user", conf->user, "only root can change to another user");
	else if (conf->group != NULL && ret->gid != own.gid)
		return bad(
			error, size, "group", conf->group, "only root can change to another group");
	return 0;
}

int
identity_check(const struct conf *conf, char *error, size_t size)
{
	struct identity id;

	return look_up(conf, &id, error, size);
}
