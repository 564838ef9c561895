#include "worker/base/end_list.h"

#include <stddef.h>

#define END_ROW(id, w, s, t, m) [END_##id] = {w, s, t, m},
const struct end_info end_info[END_N] = {END_LIST(END_ROW)};
#undef END_ROW
