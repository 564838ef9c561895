#!/usr/bin/env bash
# make fuzz [SECONDS=60]: each target under libFuzzer with ASan and UBSan for so many seconds; then the parsers beside
# those of others (differential.py), on what coverage has found.  New inputs go to
# build/fuzz/<name>/, never into the corpus; a crash is kept there and fails the run.
set -u
cd "$(dirname "$0")/../.." || exit 1
seconds=${1:-60}
flags=(-std=gnu11 -D_GNU_SOURCE -I. '-DPDROUTER_VERSION="fuzz"' -O1 -g
	-fsanitize=fuzzer -fsanitize=address -fsanitize=undefined -fno-sanitize-recover=all)
bad=0

run() { # NAME PROGRAM OPTIONS...
	local name=$1 out=build/fuzz/$1
	shift
	if "$@" -max_total_time="$seconds" -timeout=20 -print_final_stats=1 -artifact_prefix="$out/" \
		"$out/new" "tests/fuzz/corpus/$name" >"$out/log" 2>&1; then
		echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$out/log") runs, nothing found"
	else
		bad=1
		echo "$name: FAILED"
		tail -n 30 "$out/log"
	fi
}

for src in tests/fuzz/fuzz_*.c; do
	name=$(basename "$src" .c)
	name=${name#fuzz_}
	out=build/fuzz/$name
	mkdir -p "$out/new"
	if [ "$name" = worker ]; then # all of the router, in one program
		make --no-print-directory -s -j"$(nproc)" VARIANT=fuzz build/fuzz/whole/worker || exit 1
		run worker build/fuzz/whole/worker -dict=tests/fuzz/worker.dict
		continue
	fi
	case $name in
	conf) more=(master/config/*.c) ;;
	topology) more=(master/config/*.c master/topology/*.c) ;;
	saved) more=(master/fleet/saved.c) ;;
	inherit) more=(master/supervise/inherit.c) ;;
	*) more=() ;;
	esac
	clang "${flags[@]}" -o "$out/$name" "$src" proto/*/*.c shm/base/*.c "${more[@]}" \
		-lhttp_parser -ljson-c -lyaml -lresolv -lssl -lcrypto -lm || exit 1
	run "$name" "$out/$name"
done
make --no-print-directory build/release/tell && build/venv/bin/python tests/fuzz/differential.py build/release/tell "$seconds" || bad=1
exit $bad
