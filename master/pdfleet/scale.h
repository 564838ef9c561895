/* `pdctl fleet scale prefill=3`: changes the fleet file. */
#pragma once

/* ROLE=NUMBER words.  `templates`: as topo_template_find() has it.  0, 1 after a message, or 2: a word is wrong. */
int scale_file(const char *path, const char *templates, char *const *words, int n);
