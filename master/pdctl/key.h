/* `pdctl key new NAME`: a new key for a client, and its row for the api_keys_file, or the admin.api_keys_file.  Asks no router. */
#pragma once

/* `argv`: the words behind `key`, up to NULL.  Returns the exit code; 2: a wrong command line, after
 * `*ret_wrong` was set. */
int key_command(char **argv, const char **ret_wrong);
