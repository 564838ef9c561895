#!/usr/bin/env bash
# clang-tidy over one file.  A file that was clean is not read again until it, a header of it, the
# checks or the tool has changed.  LINT_STATES bounds how many states of a function the analyzer looks at; it takes
# nearly all of the time with its own bound, 225,000.
set -u
cd "$(dirname "$0")/../.." || exit 1
file=$1
flags=(-std=gnu11 -D_GNU_SOURCE -I. '-DPDROUTER_VERSION="lint"' -include tests/lint/analyzer.h)
[ -n "${LINT_STATES:-}" ] && flags+=(-Xclang -analyzer-config -Xclang "max-nodes=$LINT_STATES")
stamp=build/lint/tidy/$file.ok
key=$({ clang-tidy --version; echo "${LINT_STATES:-}"; cat .clang-tidy "$file"; clang -E "${flags[@]}" "$file" 2>&1; } | sha256sum)
[ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && exit 0
# what stands on stderr is only the count of warnings in system headers
out=$(clang-tidy --quiet "$file" -- "${flags[@]}" 2>/dev/null)
rc=$?
[ $rc -ne 0 ] || [ -n "$out" ] && { printf '%s\n' "${out:-clang-tidy failed}"; exit 1; }
mkdir -p "${stamp%/*}"
printf '%s\n' "$key" >"$stamp"
