#include "master/pdctl/completion.h"

#include <stdio.h>
#include <string.h>

#include "master/pdctl/command.h"

/* --- bash --------------------------------------------------------------------------------- */

/* The words that a command can have in place of a name of the user's: lower-case ones, split at "|". */
static void
put_choices(const struct command *c)
{
	for (const char *p = c->words; *p != '\0';) {
		const size_t n = strcspn(p, " |");

		if (n > 0 && p[0] >= 'a' && p[0] <= 'z')
			(void)printf(" %.*s", (int)n, p);
		p += n + (p[n] != '\0');
	}
}

static void
put_options(const struct command *c)
{
	for (size_t i = 0; i < noptions; i++)
		if (command_takes(c, &option_rows[i]))
			(void)printf(" --%s", option_rows[i].name);
}

static void
put_bash(void)
{
	(void)printf(
		"# Made by `pdctl completion bash` (make docs): do not edit.\n"
		"_pdctl() {\n"
		"\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' skip='' w words\n"
		"\tfor w in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
		"\t\tif [ -n \"$skip\" ]; then skip=''; continue; fi\n"
		"\t\tcase $w in\n\t\t-s");
	for (size_t i = 0; i < noptions; i++)
		if (option_rows[i].value != NULL)
			(void)printf(" | --%s", option_rows[i].name);
	(void)printf(
		") skip=1 ;;\n\t\t-*) ;;\n\t\t*) command=${command:-$w} ;;\n\t\tesac\n\tdone\n"
		"\tcase $before in\n"
		"\t-s | --socket | --prompt) mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); return ;;\n"
		"\t--role) mapfile -t COMPREPLY < <(compgen -W 'prefill decode' -- \"$word\"); return ;;\n"
		"\tesac\n\t[ -n \"$skip\" ] && return\n\tcase $command in\n\t'') words='-s");
	for (size_t i = 0; i < ncommands; i++)
		(void)printf(" %s", commands[i].name);
	(void)printf("' ;;\n");
	for (size_t i = 0; i < ncommands; i++) {
		(void)printf("\t%s) words='", commands[i].name);
		put_options(&commands[i]);
		put_choices(&commands[i]);
		(void)printf("' ;;\n");
	}
	(void)printf("\tesac\n\tmapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n}\n"
		     "complete -F _pdctl pdctl\n");
}

/* --- zsh ---------------------------------------------------------------------------------- */

/* In single quotes; the specifications of _arguments take `:` and brackets for their own. */
static void
put_zsh_text(const char *text)
{
	for (; *text != '\0'; text++)
		if (*text == '\'')
			(void)printf("'\\''");
		else if (*text == ':' || *text == '[' || *text == ']')
			(void)printf("\\%c", *text);
		else
			(void)putchar(*text);
}

static void
put_zsh_option(const struct option_row *o)
{
	(void)printf(" \\\n\t\t\t'--%s[", o->name);
	put_zsh_text(o->help);
	(void)printf("]");
	if (o->value != NULL)
		(void)printf(":%s:%s", o->value,
			strcmp(o->name, "role") == 0 ? "(prefill decode)"
			: strcmp(o->name, "socket") == 0 || strcmp(o->name, "prompt") == 0
				? "_files"
				: "");
	(void)printf("'");
}

static void
put_zsh_command(const struct command *c)
{
	(void)printf("\t\t%s)\n\t\t\t_arguments", c->name);
	for (size_t i = 0; i < noptions; i++)
		if (command_takes(c, &option_rows[i]))
			put_zsh_option(&option_rows[i]);
	if (c->words[0] != '\0') {
		(void)printf(" \\\n\t\t\t'*:");
		put_zsh_text(c->words);
		(void)printf(":(");
		put_choices(c);
		(void)printf(")'");
	}
	(void)printf("\n\t\t\t;;\n");
}

static void
put_zsh(void)
{
	(void)printf("#compdef pdctl\n# Made by `pdctl completion zsh` (make docs): do not edit.\n"
		     "_pdctl() {\n\tlocal -a commands\n\tcommands=(\n");
	for (size_t i = 0; i < ncommands; i++) {
		(void)printf("\t\t'%s:", commands[i].name);
		put_zsh_text(commands[i].help);
		(void)printf("'\n");
	}
	(void)printf(
		"\t)\n\t_arguments -C '(-s --socket)'{-s,--socket}'[the control_socket]:SOCKET:_files' \\\n"
		"\t\t'1: :->command' '*:: :->rest'\n\tcase $state in\n"
		"\tcommand) _describe command commands ;;\n"
		"\trest)\n\t\tcase $words[1] in\n");
	for (size_t i = 0; i < ncommands; i++)
		put_zsh_command(&commands[i]);
	(void)printf("\t\tesac\n\t\t;;\n\tesac\n}\n_pdctl \"$@\"\n");
}

int
completion_print(const char *shell)
{
	if (strcmp(shell, "bash") == 0)
		put_bash();
	else if (strcmp(shell, "zsh") == 0)
		put_zsh();
	else
		return -1;
	return 0;
}
