#!/usr/bin/env bash
# What `make test` runs, part by part: lint, the models of shm/, builds without a warning, unit tests, fuzz corpora, the
# simulator's own check, that of tests/engine_args, end-to-end tests, a short torture, the scheduler simulated,
# instructions counted; then unit tests, corpora and end-to-end tests under ASan (with leaks) and UBSan.  Goes on after a failure; the last line is
# "N passed, N failed".
#
#   run_tests.sh            everything
#   run_tests.sh PART...    some of: lint verify release asan
#   run_tests.sh unit       the unit tests
#   run_tests.sh check      what one runs while working: the quick lint, all unit tests, one test of each end-to-end file
# Each part's output is kept in build/test/; what failed is shown.
set -u
cd "$(dirname "$0")/../.." || exit 1
logs=$PWD/build/test
rm -rf "$logs"
mkdir -p "$logs"
passed=0 failed=0 bad=() unsteady=()
readonly most_unsteady=3 # of some 9,000 tests
began=$SECONDS
export ASAN_OPTIONS=detect_leaks=1 # leaks fail the run
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# each of pytest's processes rewrites each test file, 6 s of CPU in all: what it has rewritten is kept
export PYTHONPYCACHEPREFIX=$PWD/build/pycache
unset PYTHONDONTWRITEBYTECODE
crashes='invariant broken|process exited|signal"?[=:]"?(ABRT|SEGV|BUS|FPE)'
reports='ERROR: [A-Za-z]*Sanitizer|runtime error:|SUMMARY: [A-Za-z]*Sanitizer'

count() { # PASSED FAILED NAME LOG SECONDS
	passed=$((passed + $1)) failed=$((failed + $2))
	printf '%-34s %5d passed %4d failed  %3d s\n' "$3" "$1" "$2" "$5"
	[ "$2" -eq 0 ] && return
	bad+=("$3: $4")
	grep -vE '^(\{"level"|cc |gcc |clang )' "$4" | tail -n 40 | cut -c1-400 | sed 's/^/    /'
}

# One command is one test.
part() { # NAME COMMAND...
	local name=$1 log=$logs/${1//[^a-z0-9]/-}.log from=$SECONDS
	shift
	if "$@" >"$log" 2>&1; then
		count 1 0 "$name" "$log" $((SECONDS - from))
		return 0
	fi
	count 0 1 "$name" "$log" $((SECONDS - from))
	return 1
}

# One Criterion program: its output, then "PASSED FAILED".  Criterion passes a test that leaks and a program that a
# sanitizer ends after its summary, so the exit code and the reports count too.
unit() { # PROGRAM
	local prog=$1 said out rc line p f c
	said=$(mktemp) # a process that is left behind would hold a pipe open
	timeout 300 "$prog" >"$said" 2>&1
	rc=$?
	out=$(<"$said")
	rm "$said"
	line=$(sed -n 's/.*Passing: \([0-9]*\) | Failing: \([0-9]*\) | Crashing: \([0-9]*\).*/\1 \2 \3/p' <<<"$out" | tail -n 1)
	read -r p f c <<<"${line:-0 0 0}"
	if [ $((p + f + c)) -eq 0 ] || { [ $rc -ne 0 ] && [ $((f + c)) -eq 0 ]; } || grep -qE "$reports" <<<"$out"; then
		f=$((f + 1))
		out+=$'\n'"exit code $rc, or a report above, or no test in it"
	fi
	printf '%s\n%s\n%s %s\n' "$prog" "$out" "$p" $((f + c))
}
export -f unit
export reports

# The one unit test that failed, by an assertion and by nothing else, passes if its program passes alone, twenty times in a
# row.  It is shown as UNSTEADY, to be mended, and counts among the most_unsteady of the run.
unsteady_unit() { # VARIANT DIRECTORY LOG
	local said prog turn
	said=$(grep -lE '^[0-9]+ 1$' "$2"/*) && [ ${#unsteady[@]} -lt $most_unsteady ] || return 1
	prog=$(head -n 1 "$said")
	grep -q 'Failing: 1 | Crashing: 0' "$said" && ! grep -qE "$reports|or a report above" "$said" || return 1
	for ((turn = 0; turn < 20; turn++)); do
		timeout 300 "$prog" >"$3.again" 2>&1 && ! grep -qE "$reports" "$3.again" || return 1
	done
	unsteady+=("$prog, $1: $3")
	grep -E '^\[(----|FAIL)\]' "$said" | cut -c1-400 | sed 's/^/    /'
}

# All of them, twice as many at a time as there are CPUs: half of their time they wait.
units() { # VARIANT
	local dir=$logs/unit-$1 log=$logs/unit-$1.log from=$SECONDS prog out ok no lost=0
	mkdir "$dir"
	# shellcheck disable=SC2016 # they are the inner shell's
	find build/"$1"/unit -type f | while read -r prog; do
		[ -f "tests/unit/${prog#build/*/unit/}.c" ] && echo "$prog" # not of a test that is gone
	done | xargs -P $((2 * $(nproc))) -I{} bash -c 'unit "$1" >"$2/$(tr / - <<<"${1#build/}")"' - {} "$dir" || lost=1
	for out in "$dir"/*; do # those with a failure at the end, where one looks
		printf '%s %s\n' "$(tail -n 1 "$out" | cut -d' ' -f2)" "$out"
	done | sort -n | cut -d' ' -f2- | xargs cat >"$log"
	read -r ok no < <(tail -qn 1 "$dir"/* | awk '{ ok += $1; no += $2 } END { print ok + 0, no + 0 }')
	if [ $((no + lost)) -eq 1 ] && unsteady_unit "$1" "$dir" "$log"; then
		ok=$((ok + 1)) no=0
	fi
	count "$ok" $((no + lost)) "unit tests, $1" "$log" $((SECONDS - from))
}

# End-to-end tests.  The parallel part first, a file at a time for each process, the longest files first
# (tests/e2e/quick.py); then alone those that measure time.
end_to_end() { # VARIANT NAME PYTEST-ARGUMENTS...
	local variant=$1 name=$2 log from=$SECONDS rc ok no
	shift 2
	log=$logs/${name//[^a-z0-9]/-}.log
	# the first time by one process, in place of by all of them at once
	compgen -G "$PYTHONPYCACHEPREFIX$PWD/tests/e2e/test_*-pytest-*.pyc" >/dev/null || pytest "$variant" "$log" --collect-only tests/e2e
	pytest "$variant" "$log" tests/e2e "$@"
	rc=$?
	ok=$(tail -n 1 "$log" | grep -oE '[0-9]+ passed' | grep -oE '[0-9]+')
	no=$(tail -n 1 "$log" | grep -oE '[0-9]+ (failed|error)' | awk '{ n += $1 } END { print n + 0 }')
	[ $rc -ne 0 ] && [ "$no" -eq 0 ] && no=1
	if [ "$no" -gt 0 ] && only_unsteady "$variant" "$log" "$no"; then
		ok=$((${ok:-0} + no)) no=0
	fi
	count "${ok:-0}" "$no" "$name" "$log" $((SECONDS - from))
}

pytest() { # VARIANT LOG ARGUMENTS...
	local variant=$1 log=$2
	shift 2
	PDR_VARIANT=$variant PDR_FAILED=$log.failed build/venv/bin/python -m pytest -c tests/e2e/pytest.ini --tb=short "$@" >"$log" 2>&1
}

# A few tests of the whole run may fail beside others on a machine that is short of time, if they pass alone, five
# times in a row, and their whole files once in three runs.  Such a test passes, and is shown as UNSTEADY, to be mended.  Never a
# crash or a sanitizer's report, nor what a test found broken when it looked around at its end (pytest's "error").
only_unsteady() { # VARIANT LOG COUNT
	local one which files
	mapfile -t which <"$2.failed"
	if [ $((${#unsteady[@]} + $3)) -gt $most_unsteady ] || [ "${#which[@]}" -ne "$3" ] || grep -qE "$reports|$crashes" "$2"; then
		return 1
	fi
	for one in 1 2 3 4 5; do
		PDR_ALL=1 pytest "$1" "$2.again" "${which[@]}" || return 1
	done
	mapfile -t files < <(printf '%s\n' "${which[@]%%::*}" | sort -u)
	for one in 1 2 3; do # another unsteady test of such a file may fail once, too
		pytest "$1" "$2.again" -n 3 "${files[@]}" && break
		[ "$one" -lt 3 ] || return 1
	done
	for one in "${which[@]}"; do
		unsteady+=("$one, $1: $2")
	done
	tail -n 40 "$2" | cut -c1-400 | sed 's/^/    /'
}

build() { # VARIANT TARGETS...
	local variant=$1
	shift
	part "build $variant, no warning" make --no-print-directory CI=1 VARIANT="$variant" -j"$(nproc)" "$@"
}

corpus() { # VARIANT
	local prog
	for prog in build/"$1"/replay/*; do
		part "corpus ${prog##*/}, $1" "$prog" tests/fuzz/corpus/"${prog##*/}"/*
	done
}

# A run draws a seed.  What it finds is a failure, unless no process crashed and two more runs with the same seed find nothing:
# then it is UNSTEADY, unless a test was so before.
chaos() { # SECONDS
	local name="chaos, $1 s" log=$logs/chaos.log from=$SECONDS seed=$RANDOM again
	if ! SEED=$seed tests/chaos/run.sh "$1" >"$log" 2>&1; then
		for again in 1 2; do
			if [ ${#unsteady[@]} -gt 0 ] || grep -qE "$reports|$crashes" "$log" || ! SEED=$seed tests/chaos/run.sh "$1" >"$log.$again" 2>&1; then
				count 0 1 "$name" "$log" $((SECONDS - from))
				return 1
			fi
		done
		unsteady+=("$name, seed $seed: $log")
		tail -n 40 "$log" | cut -c1-400 | sed 's/^/    /'
	fi
	count 1 0 "$name" "$log" $((SECONDS - from))
}

run_unit() {
	build release units && units release
}

run_check() {
	build release bins units || return
	LINT_STATES=30000 part "lint, the quick checks" tests/lint/run.sh quick
	units release
	end_to_end release "end to end, one test of each file" -n 3 --quick
}

run_lint() {
	LINT_STATES=30000 part "lint, its analyzer in short" tests/lint/run.sh
}

run_verify() {
	part "models of shm/, spin" tests/verify/run.sh --smoke
}

run_release() {
	build release bins units build/release/pdwire build/release/torture build/release/sched build/release/tell build/release/pdload || return
	build tsan build/tsan/torture || return
	part "programs are hardened" python3 tests/lint/binary.py
	units release
	part "fleet demo" tests/tools/fleet_demo.sh
	part "what make install puts in place" tests/tools/install_check.sh
	part "simulator" python3 tests/engine/selfcheck.py build/release/pdsim
	part "parsers beside those of others" build/venv/bin/python tests/fuzz/differential.py build/release/tell 3 1 # always with the same mutations
	part "check of engine arguments" build/venv/bin/python -B tests/engine_args/selfcheck.py
	part "torture, 14 s, and 6 s under tsan" tests/torture/run.sh 14 6
	part "torture: its mutants still apply" tests/torture/mutants.sh --check
	part "torture: a mutant is caught" tests/torture/mutants.sh load-check-then-add
	chaos 30
	part "scheduler, simulated" build/release/sched --smoke
	part "instructions of a request" python3 tests/bench/callgrind.py --check
	end_to_end release "end to end, release" -n 8 --dist loadfile -m 'not timing'
	end_to_end release "end to end, measuring time" -m timing
}

run_asan() {
	build asan bins units replays || return
	units asan
	corpus asan
	end_to_end asan "end to end, asan and ubsan" -n 8 --dist loadfile -m 'not timing'
}

for one in "${@:-lint verify release asan}"; do
	for word in $one; do
		case $word in
		unit | check | lint | verify | release | asan) "run_$word" ;;
		*) echo "run_tests.sh: no such part: $word" >&2; exit 2 ;;
		esac
	done
done
echo
for one in "${unsteady[@]}"; do
	echo "UNSTEADY $one"
done
for one in "${bad[@]}"; do # once more what it was: who reads the end of a long output sees it
	echo "FAILED $one"
	grep -aE '^\[(----|FAIL|CRASH)|^FAILED |^E  |ERROR: |runtime error:' "${one##*: }" | cut -c1-200 | head -n 12 | sed 's/^/    /'
done
echo "all of it took $((SECONDS - began)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
