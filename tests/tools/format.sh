#!/usr/bin/env bash
# make format: the C files as .clang-format wants them.  `format.sh FILE...` takes these only;
# `format.sh --check [FILE...]` changes nothing, shows what would, and fails if anything would.
# `format.sh --wide [FILE...]` lists comments behind code that do not fit into its line: the machine
# would break the code to make room, so move them above it first.
set -u
cd "$(dirname "$0")/../.." || exit 1
mode=
case ${1:-} in --*) mode=$1; shift ;; esac
if [ $# -eq 0 ]; then
	mapfile -t files < <(find master worker shm proto tests -name '*.[ch]' | sort)
	set -- "${files[@]}"
fi
case $mode in
'') exec clang-format -i "$@" ;;
--check) ;;
--wide)
	for f in "$@"; do
		expand -t 8 "$f" | awk -v f="$f" '/clang-format off/ { off = 1 } /clang-format on/ { off = 0 }
			!off && length > 100 && /[^ ].*\/\*.*\*\/( *\\)?$/ { print f ":" NR ": " length }'
	done
	exit 0
	;;
*) echo "usage: format.sh [--check | --wide] [FILE...]" >&2; exit 2 ;;
esac
clang-format --dry-run -Werror "$@" 2>/dev/null && exit 0
bad=0
for f in "$@"; do
	clang-format "$f" | diff -U0 --label "$f" --label "$f, formatted" "$f" - || bad=$((bad + 1))
done
[ $bad -eq 0 ] && exit 0
echo "$bad files are not formatted: make format"
exit 1
