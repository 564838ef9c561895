#!/usr/bin/env bash
# make torture-mutants: does the torture program notice what it is there to notice?
#
# Each mutants/*.patch breaks one thing in a copy of shm/ or of the program (build/mutants/NAME).  The
# broken program runs the named part until one of the named oracles bites.  A mutant that survives, is
# caught by something else, does not apply or does not build, is a failure.
#
#   mutants.sh            all of them
#   mutants.sh NAME...    some
#   mutants.sh --check    only whether they still apply
#
# LIMIT=20 is how many seconds a mutant may live.  First lines of a patch: what is broken; then
# "part: NAME"; "oracle: NAME..." (those of the program, or "tsan": a race, or "master": an assertion in
# the master); "children: threads" where TSan has to see it.
set -u
cd "$(dirname "$0")/../.." || exit 1
limit=${LIMIT:-20}
check=
[ "${1:-}" = --check ] && { check=1; shift; }
mutants=("$@")
if [ $# -eq 0 ]; then
	for patch in tests/torture/mutants/*.patch; do
		patch=${patch##*/}
		mutants+=("${patch%.patch}")
	done
fi
. tests/torture/tsan.sh

head_of() { # KEY PATCH
	sed -n "s/^$1: //p; /^---/q" "$2" | head -n 1
}

# A copy with the patch in it.
copy() { # PATCH DIR
	rm -rf "$2"
	mkdir -p "$2/tests"
	cp -r Makefile shm "$2" && cp -r tests/torture "$2/tests/" && patch -s -p1 -F0 -d "$2" <"$1"
}

# The name of what bit first, and after how many seconds if the program could still tell; empty if
# nothing did.
run() { # DIR PART CHILDREN
	local out rc most=$((limit * 2 + 30)) # far more than it takes, even where it hangs
	if [ "$3" = threads ]; then
		out=$(cd "$1" && tsan --first --threads --part "$2" --seconds "$limit" 2>&1)
		rc=$?
	else
		out=$(cd "$1" && timeout -k 1 "$most" build/release/torture --first --part "$2" --seconds "$limit" 2>&1)
		rc=$?
	fi
	printf '%s\n' "$out" >"$1/log"
	case $out in
	*'WARNING: ThreadSanitizer: data race'*) echo tsan; return ;;
	esac
	[ $rc -eq 134 ] && { echo master; return; }
	sed -n 's/^torture: \([a-z_]*\) after \([0-9.]*\) s.*/\1 \2/p' <<<"$out"
}

one() { # NAME; prints its row, 1 if it is not caught as it should be
	local patch=tests/torture/mutants/$1.patch dir=build/mutants/$1 part oracles children variant caught after from tenths
	[ -f "$patch" ] || { echo "$1: no such mutant"; return 1; }
	part=$(head_of part "$patch") oracles=$(head_of oracle "$patch") children=$(head_of children "$patch")
	if [ -z "$part" ] || [ -z "$oracles" ]; then
		echo "$1: no part, or no oracle"
		return 1
	fi
	copy "$patch" "$dir" >"$dir.log" 2>&1 || { echo "$1: does not apply: $dir.log"; return 1; }
	[ -n "$check" ] && return 0
	variant=release
	[ "$children" = threads ] && variant=tsan
	make -s --no-print-directory -C "$dir" VARIANT=$variant "build/$variant/torture" >"$dir.log" 2>&1 ||
		{ echo "$1: does not build: $dir.log"; return 1; }
	from=$(date +%s%1N)
	read -r caught after <<<"$(run "$dir" "$part" "$children")"
	tenths=$(($(date +%s%1N) - from))
	printf '%-28s %-12s %6s s  %s\n' "$1" "$part" "${after:-$((tenths / 10)).$((tenths % 10))}" "${caught:-SURVIVES}"
	case " $oracles " in *" ${caught:-SURVIVES} "*) return 0 ;; esac
	[ -n "$caught" ] && echo "    but not by $oracles: $dir/log"
	return 1
}

bad=0
mkdir -p build/mutants
[ -n "$check" ] || printf '%-28s %-12s %7s  %s\n' mutant part after 'caught by'
for name in "${mutants[@]}"; do
	one "$name" || bad=$((bad + 1))
done
echo "${#mutants[@]} mutants, $bad not as they should be"
[ $bad -eq 0 ]
