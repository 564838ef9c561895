/* json_skip_integers() as it is built for a processor without the vectors that it knows. */
#undef __SSE2__
#include "tests/unit/proto/json/skip_integers.c"
