#!/usr/bin/env bash
# make fuzz [SECONDS=60]: each target under libFuzzer with ASan and UBSan for so many seconds; then the parsers beside
# those of others (differential.py), on what coverage has found.  New inputs go to
# build/fuzz/<name>/, never into the corpus; a crash is kept there and fails the run.
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-60}
bad=0

programs=()
for src in tests/fuzz/fuzz_*.c; do
	name=$(basename "$src" .c)
	programs+=("build/fuzz/whole/${name#fuzz_}")
done
make --no-print-directory -s -j"$(nproc)" VARIANT=fuzz "${programs[@]}" || exit 1
for program in "${programs[@]}"; do
	name=$(basename "$program")
	out=build/fuzz/$name
	mkdir -p "$out/new"
	dict=()
	[ -e "tests/fuzz/$name.dict" ] && dict=("-dict=tests/fuzz/$name.dict")
	if "$program" -max_total_time="$seconds" -timeout=20 -print_final_stats=1 -artifact_prefix="$out/" \
		"${dict[@]}" "$out/new" "tests/fuzz/corpus/$name" >"$out/log" 2>&1; then
		echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$out/log") runs, nothing found"
	else
		bad=1
		echo "$name: FAILED"
		tail -n 30 "$out/log"
	fi
done
make --no-print-directory build/release/tell && build/venv/bin/python tests/fuzz/differential.py build/release/tell "$seconds" || bad=1
exit $bad
