#!/usr/bin/env bash
# What etc/docs/fleet.md promises of apply and roll, under a real systemd, with simulated engines.
#
#   fleet_systemd.sh          boots a container (systemd-nspawn) over a copy-on-write view of this machine, and reboots it
#   fleet_systemd.sh --here   the test itself, on a machine that is to be thrown away: it installs into /usr/local and
#                             /etc.  Again after a reboot: the rest of it
#
# Both need root, and `make` before.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
. tests/tools/nspawn.sh

if [ "${1:-}" != --here ]; then
	machines_enter "$@"
	machine_new fleet-test
	machine_boot fleet-test --private-network
	machine_run fleet-test "$PWD/tests/tools/fleet_systemd.sh" --here || exit 1
	machine_reboot fleet-test
	machine_run fleet-test "$PWD/tests/tools/fleet_systemd.sh" --here
	exit
fi

B=$PWD/build/release
before=/var/lib/pdrouter-fleet-test # what was counted before the reboot
dir=$(mktemp -d)
load=()
finish() {
	touch "$dir/stop"
	[ ${#load[@]} -eq 0 ] || wait "${load[@]}"
	rm -rf "$dir"
	checks_clean
}
trap finish EXIT
fleet() { pdctl fleet "$@" -f /etc/pdrouter/fleet.yaml; }
pid() { systemctl show -P MainPID "pdrouter-engine@t-$1"; }
pids() { for e in prefill-0 prefill-1 decode-0 decode-1; do pid $e; done | xargs; }
differ() { # PIDS PIDS: no engine is the same
	for one in $1; do
		case " $2 " in *" $one "*) echo "$one is in $2"; return 1 ;; esac
	done
}
user_fleet() { su - fleet-test -c "pdctl fleet $* -f fleet.yaml --host here --user"; }
units=(pdrouter pdrouter-engine@t-{prefill,decode}-{0,1})
all_run() { # SYSTEMCTL UNIT...: systemctl itself is content with one of them
	local ctl=$1 unit
	shift
	for unit; do
		$ctl is-active "$unit" || return 1
	done
}
units_run() { all_run systemctl "$@"; }
user_units_run() { all_run "systemctl --user --machine=fleet-test@" "${units[@]/@t-/@u-}"; }
decode_args=
fleet_file() { # NAME PORT_OFFSET CONTROL-SOCKET
	cat <<YAML
fleet: $1
model: {path: /no/model, served_as: m}
engine:
  kind: vllm
  version: "0.33"
  command: [$B/pdsim, --role, "\${role}", --host, "\${address}", --port, "\${port.api}", --side-port, "\${port.side}",
            --model, "\${served_as}", --token-delay, "5"]
connector: nixl
port_offset: $2
hosts: {here: {address: 127.0.0.1}}
prefill: {replicas: 2}
decode: {replicas: 2, args: [$decode_args]}
router:
  hosts: [here]
  listen: ["127.0.0.1:$((8000 + $2))"]
  config: {control_socket: $3, workers: 2, rise: 1, health_interval: 200ms}
YAML
}
write() { fleet_file t 0 /run/pdrouter/control.sock >/etc/pdrouter/fleet.yaml; }
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

if [ ! -e $before ]; then
	check "make install" make -s install
	rm -f /etc/pdrouter/pdrouter.yaml # the example that `make install` puts there
	write
	check "plan: all is to be done" exits 3 fleet plan --host here
	check "apply" fleet apply --host here
	check "units are as they should be" units_run "${units[@]}"
	check "apply again: nothing to do" silent fleet apply --host here
	useradd --create-home fleet-test
	loginctl enable-linger fleet-test
	fleet_file u 10000 "/run/user/$(id -u fleet-test)/pdrouter/control.sock" >~fleet-test/fleet.yaml
	check "a fleet of a user, beside it" user_fleet apply
	check "... its units are as they should be" user_units_run
	check "... nothing to do" silent user_fleet apply
	declare -p passed failed >$before
	[ $failed -eq 0 ]
	exit
fi
# shellcheck source=/dev/null
. $before
check "after a reboot all runs" within 10 units_run "${units[@]}"
check "... is healthy" within 10 fleet status --host here
check "... as the fleet file says" silent fleet plan --host here
first=$(pids)
check "apply again: nothing to do" silent fleet apply --host here
check "... and no engine is another one" same "$first" "$(pids)"
check "the fleet of the user runs, too" within 10 user_units_run
check "... is healthy" within 10 user_fleet status
check "... roll" user_fleet roll
check "... nothing to do" silent user_fleet apply
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
cp "$checks/said" "$dir/said"
check "... says what its journal said" grep no-such-option "$dir/said"
check "... and runs with its former files" units_run pdrouter-engine@t-decode-{0,1}
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
checks_end
