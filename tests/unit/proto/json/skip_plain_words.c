/* json_skip_plain() as it is built for a processor without the vectors that it knows. */
#undef __SSE2__
#include "tests/unit/proto/json/skip_plain.c"
