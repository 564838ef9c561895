#!/usr/bin/env bash
# make fleet-demo: one fleet file becomes two prefill and two decode engines (simulated) and a router, without root and
# without systemd; then a third prefill engine under load, an engine that does not start, and the end of it all.
# Exits 1 if a request of the load failed, or if anything is not as it should be.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=$PWD/build/${VARIANT:-release}
dir=$(mktemp -d "${TMPDIR:-/tmp}/pdrouter-fleet.XXXXXX")
load=()

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
die() {
	echo "fleet-demo: $*" >&2
	exit 1
}
fleet() { "$B/pdctl" fleet "$@" -f "$dir/fleet.yaml" -t etc/fleet --plain "$dir/host"; }
pids() { cut -d' ' -f1 "$dir"/host/run/*.pid 2>/dev/null; }
finish() {
	trap - EXIT INT TERM
	local pid
	touch "$dir/stop"
	[ ${#load[@]} -eq 0 ] || wait "${load[@]}"
	for pid in $(pids); do # each leads a group of its own
		kill -KILL -- "-$pid" 2>/dev/null
	done
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

# So many free ports in a row, below those that the kernel gives to outgoing connections.
free_ports() { # COUNT
	local first p
	for first in $(shuf -i 11000-30000 -n 50); do
		for ((p = first; p < first + $1; p++)); do
			(exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null && continue 2
		done
		echo "$first"
		return
	done
	die "no free ports found"
}

# The fleet file, as it is after each change.
first=$(free_ports 30)
router=$first
declare -A replicas=([prefill]=2 [decode]=2) args=([prefill]='' [decode]='')
entries() { # ROLE OFFSET
	local i
	for i in 0 1 2 3; do
		[ "$i" -lt "${replicas[$1]}" ] || break
		printf '    - {replica: %d, ports: {api: %d, side: %d}}\n' "$i" $((first + $2 + 2 * i)) $((first + $2 + 2 * i + 1))
	done
}
write() {
	cat >"$dir/fleet.yaml" <<YAML
fleet: demo
model: {path: /no/model, served_as: demo-model}
engine:
  kind: vllm
  version: "0.21"
  command: [$B/pdsim, --role, "\${role}", --host, "\${address}", --port, "\${port.api}", --side-port, "\${port.side}",
            --model, "\${served_as}", --name, "\${name}", --token-delay, "10"]
connector: nixl
hosts:
  here: {address: 127.0.0.1}
prefill:
  replicas: ${replicas[prefill]}
  args: [${args[prefill]}]
  overrides:
$(entries prefill 1)
decode:
  replicas: ${replicas[decode]}
  args: [${args[decode]}]
  overrides:
$(entries decode 11)
router:
  hosts: [here]
  listen: ["127.0.0.1:$router"]
  config: {control_socket: $dir/control.sock, workers: 2, rise: 1, health_interval: 200ms}
YAML
}

# A client that streams one answer after the other; each leaves a line: ok, or what was wrong.
ask() {
	curl -sN -m 30 "http://127.0.0.1:$router/v1/completions" -H 'Content-Type: application/json' \
		-d '{"model":"demo-model","stream":true,"max_tokens":20,"prompt":"Tell me about routers"}'
}
client() { # NUMBER
	local answer
	while [ ! -e "$dir/stop" ]; do
		answer=$(ask)
		if [ "$(tail -n 2 <<<"$answer" | tr -d '\n')" = 'data: [DONE]' ]; then echo ok; else echo "failed: ${answer: -300}"; fi
	done >"$dir/client-$1"
}
count() { cat "$dir"/client-* 2>/dev/null | grep -c "$1"; }
# Nothing is lost, and the load has gone on.
served() {
	local before
	before=$(count '^ok')
	for _ in $(seq 200); do
		[ "$(count '^ok')" -gt $((before + 8)) ] && break
		sleep 0.05
	done
	[ "$(count '^ok')" -gt "$before" ] || die "the load stands still"
	[ "$(count '^failed')" -eq 0 ] || die "requests failed: $(grep -h '^failed' "$dir"/client-* | head -3)"
	echo "  $(count '^ok') streams answered, 0 failed"
}
indent() { sed 's/^/  /'; }
# Runs `pdctl fleet`, shows what it says, and compares its exit code.
step() { # CODE ARGUMENTS...
	local want=$1 code
	shift
	echo "  \$ pdctl fleet $*"
	fleet "$@" 2>&1 | cut -c1-160 | indent
	code=${PIPESTATUS[0]}
	[ "$code" -eq "$want" ] || die "exit code $code, not $want"
}
running() { for pid in ${started-$(pids)}; do kill -0 "$pid" 2>/dev/null && echo "$pid"; done | wc -l; }

say "A fleet file: 2P2D of the simulator, and a router"
write
indent <"$dir/fleet.yaml"
step 0 check
step 0 apply
[ "$(running)" -eq 5 ] || die "five processes should run"

say "Requests, four streams at a time"
for i in 1 2 3 4; do
	client "$i" &
	load+=($!)
done
served

say "prefill: replicas: 3, under load"
replicas[prefill]=3
write
step 3 plan
step 0 apply
step 0 apply
[ "$(running)" -eq 6 ] || die "six processes should run"
served

say "Other arguments for decode, under load: one engine after the other"
args[decode]='"--blocks", "5000"'
write
step 0 apply
served

say "An engine that does not start goes back to its former files"
args[prefill]='"--no-such-option"'
write
step 1 apply
[ "$(running)" -eq 6 ] || die "six processes should run"
served
args[prefill]=''
write
step 0 plan

say "The end: what was started is stopped"
touch "$dir/stop"
wait "${load[@]}"
load=()
echo "  $(count '^ok') streams answered, $(count '^failed') failed"
[ "$(count '^failed')" -eq 0 ] || die "requests failed"
started=$(pids)
step 1 remove
step 0 remove --yes
for _ in $(seq 200); do # ended, and gone once init has seen it
	[ "$(running)" -eq 0 ] && break
	sleep 0.05
done
[ "$(running)" -eq 0 ] || die "a process is left"
