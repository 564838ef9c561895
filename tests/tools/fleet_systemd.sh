#!/usr/bin/env bash
# What etc/docs/fleet.md promises of apply and roll, under a real systemd, with simulated engines.
#
#   fleet_systemd.sh          boots a container (systemd-nspawn) over a copy-on-write view of this machine, and runs there
#   fleet_systemd.sh --here   runs on this machine, which is to be thrown away: it installs into /usr/local and /etc
#
# Both need root, and `make` before.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$PWD/build/release
unit=pdrouter-fleet-test

if [ "$(id -u)" != 0 ]; then
	echo "fleet_systemd.sh: needs root" >&2
	exit 2
fi
if [ "${1:-}" != --here ]; then
	command -v systemd-nspawn >/dev/null || {
		echo "fleet_systemd.sh: needs systemd-nspawn: apt-get install systemd-container" >&2
		exit 2
	}
	root=$(mktemp -d) out=$(mktemp -d)
	service=$out/service
	trap 'rm -rf "$out"; rmdir "$root"' EXIT
	# the exit code of the container is that of the test
	cat >"$service" <<UNIT
[Unit]
After=multi-user.target
SuccessAction=exit
FailureAction=exit
[Service]
Type=oneshot
ExecStart=$PWD/tests/tools/fleet_systemd.sh --here
StandardOutput=append:/fleet-test/log
StandardError=inherit
UNIT
	chmod 644 "$service"
	# nspawn does not take / itself; the mount is of a namespace that ends with it
	# shellcheck disable=SC2016 # they are the inner shell's
	unshare --mount --propagation private sh -c 'mount --bind / "$1" && shift && exec systemd-nspawn "$@"' - "$root" \
		--quiet --register=no --keep-unit --link-journal=no --directory="$root" --volatile=overlay --private-network --machine=$unit-$$ \
		--bind-ro="$PWD" --bind="$out:/fleet-test" --bind-ro="$service:/etc/systemd/system/$unit.service" --console=pipe \
		--boot systemd.unit=multi-user.target systemd.wants=$unit.service systemd.show_status=no >"$out/console" 2>&1
	code=$?
	cat "$out/log" 2>/dev/null || cat "$out/console"
	exit $code
fi

dir=$(mktemp -d)
passed=0 failed=0 load=()
finish() {
	touch "$dir/stop"
	[ ${#load[@]} -eq 0 ] || wait "${load[@]}"
	rm -rf "$dir"
}
trap finish EXIT
check() { # WHAT COMMAND...
	local what=$1
	shift
	if "$@" >"$dir/out" 2>&1; then
		passed=$((passed + 1))
		echo "ok      $what"
	else
		failed=$((failed + 1))
		echo "FAILED  $what"
		tail -n 15 "$dir/out" | sed 's/^/        /'
	fi
}
exits() { # CODE COMMAND...
	local want=$1 code
	shift
	"$@"
	code=$?
	echo "exit code $code"
	[ $code -eq "$want" ]
}
silent() { # COMMAND...: it prints nothing, and exits 0
	local out
	out=$("$@" 2>&1) || { echo "exit code $?: $out"; return 1; }
	[ -z "$out" ] || { echo "$out"; return 1; }
}
same() { [ "$1" = "$2" ] || { echo "$1 and $2"; return 1; }; }
fleet() { pdctl fleet "$@" -f /etc/pdrouter/fleet.yaml; }
pid() { systemctl show -P MainPID "pdrouter-engine@t-$1"; }
pids() { for e in prefill-0 prefill-1 decode-0 decode-1; do pid $e; done | xargs; }
differ() { # PIDS PIDS: no engine is the same
	for one in $1; do
		case " $2 " in *" $one "*) echo "$one is in $2"; return 1 ;; esac
	done
}
decode_args=
write() {
	cat >/etc/pdrouter/fleet.yaml <<YAML
fleet: t
model: {path: /no/model, served_as: m}
engine:
  kind: vllm
  version: "0.21"
  command: [$B/pdsim, --role, "\${role}", --host, "\${address}", --port, "\${port.api}", --side-port, "\${port.side}",
            --model, "\${served_as}", --token-delay, "5"]
connector: nixl
hosts: {here: {address: 127.0.0.1}}
prefill: {replicas: 2}
decode: {replicas: 2, args: [$decode_args]}
router: {hosts: [here], listen: ["127.0.0.1:8000"], config: {workers: 2, rise: 1, health_interval: 200ms}}
YAML
}
client() { # NUMBER
	while [ ! -e "$dir/stop" ]; do
		curl -sN -m 30 http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
			-d '{"model":"m","stream":true,"max_tokens":20,"prompt":"hi"}' | tail -n 2 | tr -d '\n'
		echo
	done >"$dir/client-$1"
}
count() { cat "$dir"/client-* | grep -c "$1" || true; }
served() { # more answers have come, and none failed
	local before end=$((SECONDS + 20))
	before=$(count '^data: \[DONE\]$')
	until [ "$(count '^data: \[DONE\]$')" -gt $((before + 8)) ]; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.1
	done
	! grep -v '^data: \[DONE\]$' "$dir"/client-* | grep ':.' # prints those that failed
}

check "make install" make -s install
rm -f /etc/pdrouter/pdrouter.yaml # the example that `make install` puts there
write
check "plan: all is to be done" exits 3 fleet plan --host here
check "apply" fleet apply --host here
[ $failed -eq 0 ] || exit 1
check "units are as they should be" systemctl is-active pdrouter pdrouter-engine@t-{prefill,decode}-{0,1}
check "and start at boot" systemctl is-enabled pdrouter pdrouter-engine@t-{prefill,decode}-{0,1}
first=$(pids)
check "apply again: nothing to do" silent fleet apply --host here
check "... and no engine is another one" same "$first" "$(pids)"
for i in 1 2 3 4; do
	client "$i" &
	load+=($!)
done
check "requests" served
check "roll under load" fleet roll --host here
check "... all engines are others" differ "$first" "$(pids)"
check "... no request failed" served
decode_args='"--blocks", "5000"'
write
check "a change of arguments under load" fleet apply --host here
check "... no request failed" served
good=$(pids)
decode_args='"--no-such-option"'
write
check "an engine that does not start" exits 1 fleet apply --host here
cp "$dir/out" "$dir/said"
check "... says what its journal said" grep no-such-option "$dir/said"
check "... and runs with its former files" systemctl is-active pdrouter-engine@t-decode-{0,1}
check "... no request failed" served
decode_args='"--blocks", "5000"'
write
check "nothing to do after it" silent fleet apply --host here
check "the others were left alone" same "$(cut -d' ' -f1,2,4 <<<"$good")" "$(cut -d' ' -f1,2,4 <<<"$(pids)")"
for i in $(seq 1 20); do
	decode_args="\"--blocks\", \"$((6000 + i))\""
	write
	pdctl fleet apply -f /etc/pdrouter/fleet.yaml --host here >/dev/null 2>&1 &
	apply=$!
	sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
	kill -KILL $apply 2>/dev/null
	wait $apply 2>/dev/null
done
check "after 20 kills the next apply goes on" fleet apply --host here
check "... to the end" silent fleet apply --host here
check "... with the last arguments" grep -q "6020" "/proc/$(pid decode-0)/cmdline" "/proc/$(pid decode-1)/cmdline"
check "... no request failed" served
systemctl stop pdrouter-engine@t-prefill-1
check "drift is seen" exits 3 fleet plan --host here
check "... and mended" fleet apply --host here
check "... to the end" silent fleet plan --host here
echo "$(count '^data: \[DONE\]$') streams answered"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
