/* find_control() as it is built for a processor without the vectors that it knows. */
#undef __SSE2__
#include "tests/unit/proto/http/find_control.c"
