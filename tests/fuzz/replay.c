/*
 * Runs a fuzz target over the files given as arguments, without libFuzzer: `make test` replays the
 * corpora this way with whatever compiler there is.  Exit 1 when a file cannot be read; a target
 * that finds a fault aborts.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An allocation of exactly the file's size, so that ASan sees a look beyond its end. */
static uint8_t *
read_file(const char *path, size_t *ret_size)
{
	FILE *f = fopen(path, "rb");
	uint8_t *data = NULL;
	long size;

	if (f == NULL)
		return NULL;
	if (fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
		*ret_size = (size_t)size;
		data = malloc(*ret_size > 0 ? *ret_size : 1);
		if (data != NULL && fread(data, 1, *ret_size, f) != *ret_size) {
			free(data);
			data = NULL;
		}
	}
	(void)fclose(f);
	return data;
}

int
main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		size_t size = 0;
		uint8_t *data = read_file(argv[i], &size);

		if (data == NULL) {
			perror(argv[i]);
			return 1;
		}
		(void)LLVMFuzzerTestOneInput(data, size);
		free(data);
	}
	(void)printf("%d inputs replayed\n", argc - 1);
	return 0;
}
