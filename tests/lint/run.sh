#!/usr/bin/env bash
# make lint: every check below, on all CPUs; prints what is wrong and exits 1 if anything is.
#   run.sh          all of them
#   run.sh NAME...  some: deps words format cppcheck shell python pairs lists banned conf man monitoring unit tidy, or `tidy FILE.c`
#   run.sh quick    all but cppcheck, and clang-tidy of the files that differ from the last commit only
set -u
cd "$(dirname "$0")/../.." || exit 1
CHECKS=(deps words format cppcheck shell python pairs lists banned conf man monitoring unit tidy)
export PYTHONDONTWRITEBYTECODE=1

# Unit tests are left out of the two analyzers: they do not know Criterion's macros.
check() {
	case $1 in
	
	format) tests/tools/format.sh --check ;;
	cppcheck)
		# its own header of the lists, or it takes their loops for statements without effect
		cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=1 \
			-I. -D_GNU_SOURCE '-DPDROUTER_VERSION="lint"' \
			--include="/usr/include/$(gcc -print-multiarch)/sys/queue.h" \
			master worker shm proto tests/engine tests/fuzz tests/torture tests/bench tests/lint 2>&1
		;;
	shell)
		mapfile -t scripts < <(find .ci tests etc -name '*.sh'; printf '%s\n' .ci/run etc/packages/debian/{postinst,prerm,postrm})
		shellcheck "${scripts[@]}"
		;;
	deps | words | python | pairs | lists | banned | monitoring) python3 "tests/lint/$1.py" ;;
	# systemd's figure for what the service could do: 1.5 of 10 at most
	unit)
		local said
		said=$(systemd-analyze security --no-pager --offline=true --threshold=15 systemd/pdrouter.service 2>&1) || {
			grep -v '^✓' <<<"$said"
			return 1
		}
		! grep -F ignoring <<<"$said" # a word that systemd does not know
		;;
	conf) python3 tests/lint/conf_doc.py ;;
	man) python3 tests/tools/man.py --check ;;
	tidy) tests/lint/tidy.sh "$2" ;;
	*) echo "no such check: $1"; return 2 ;;
	esac
}

# One job, as a child of the xargs below: its output comes out in one piece.
if [ "${1:-}" = --one ]; then
	shift
	out=$(check "$@" 2>&1)
	rc=$?
	[ -n "$out" ] && printf -- '--- %s\n%s\n' "$*" "$out"
	[ $rc -eq 0 ] && exit 0
	printf '%s\n' "$*" >>"$LINT_FAILED"
	exit 0
fi

for tool in clang clang-format clang-tidy cppcheck shellcheck python3 gcc promtool systemd-analyze mandoc; do
	command -v "$tool" >/dev/null || { echo "lint: $tool is missing: tests/tools/deps.sh build test" >&2; exit 1; }
done
[ $# -eq 0 ] && set -- "${CHECKS[@]}"
[ "$*" = quick ] && set -- deps words format shell python pairs lists banned conf man monitoring unit changed
jobs() {
	if [ "$1" = tidy ] && [ $# -eq 2 ]; then
		echo "tidy $2"
		return
	fi
	local name folders='master worker shm proto tests/engine tests/fuzz tests/torture tests/bench tests/lint'
	# shellcheck disable=SC2086 # a list of words
	for name; do
		if [ "$name" = changed ]; then
			{ git diff --name-only --diff-filter=d HEAD -- $folders; git ls-files -o --exclude-standard -- $folders; } 2>/dev/null |
				sed -n 's/.*\.c$/tidy &/p'
			continue
		fi
		if [ "$name" != tidy ]; then
			echo "$name"
			continue
		fi
		# the longest first, so that no CPU waits for one at the end
		find $folders -name '*.c' -printf '%s tidy %p\n' |
			sort -rn | cut -d' ' -f2-
	done
}
LINT_FAILED=$(mktemp)
export LINT_FAILED
trap 'rm -f "$LINT_FAILED"' EXIT
jobs "$@" | xargs -P "$(nproc)" -L 1 tests/lint/run.sh --one || exit 1
if [ -s "$LINT_FAILED" ]; then
	echo "lint: failed: $(sort "$LINT_FAILED" | paste -sd, | sed 's/,/, /g')"
	exit 1
fi
echo "lint: clean ($SECONDS s)"
