#!/usr/bin/env bash
# make demo: two prefill and two decode engines (simulated), pdrouter with two workers and a notifier,
# real requests, and what they left behind.  HOLD=1 leaves it all running until Ctrl-C; CONNECTOR=NAME
# takes another hand-shake than nixl.
set -u
cd "$(dirname "$0")/../.." || exit 1
B=build/release
dir=$(mktemp -d "${TMPDIR:-/tmp}/pdrouter-demo.XXXXXX")
pids=()

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
die() {
	echo "demo: $*" >&2
	[ -f "$dir/router.log" ] && tail -5 "$dir/router.log" >&2
	exit 1
}
finish() {
	trap - EXIT INT TERM
	local i
	for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
		kill -TERM "${pids[i]}" 2>/dev/null
		wait "${pids[i]}" 2>/dev/null
	done
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

# A free port, the given one if it is: bound by nobody now; the router is started right after.
free_port() { # [port]
	local p
	for p in ${1:-} $(shuf -i 20000-30000 -n 20); do
		(exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p"; return; }
	done
}

# What a hand-shake asks of its engines (options of both, of prefill, of decode), of the pool and the router.
# A connector that is not named here needs the engines' option alone.
connector=${CONNECTOR:-nixl}
both=() prefill=() decode=() pool='' notices="ipc://$dir/notices"
# shellcheck disable=SC2034 # prefill and decode: by name, in engine()
case $connector in
nixl | orchestrated) ;;
lmcache)
	notices="tcp://127.0.0.1:$(free_port)"
	both=(--handshake lmcache) prefill=(--proxy "${notices#tcp://}") decode=(--skip-last 1 --receiver-ports 0 --refuse-local)
	;;
sglang) both=(--handshake sglang) pool='engine: sglang' ;;
shared_storage) both=(--handshake shared_storage --storage "$dir/storage") decode=(--refuse-local) ;;
*) both=(--handshake "$connector") ;;
esac
mkdir "$dir/storage"

engine() { # name role
	local -n more=$2 # the options of its role
	"$B/pdsim" --role "$2" --name "$1" --model demo-model --token-delay 40 "${both[@]}" "${more[@]}" >"$dir/$1.out" 2>"$dir/$1.err" &
	pids+=($!)
	for _ in $(seq 100); do
		grep -q listening "$dir/$1.out" 2>/dev/null && break
		sleep 0.02
	done
	urls[$1]="http://127.0.0.1:$(port_of "$1" http)"
}
port_of() { # name, what its first line calls it
	sed -n "s/.* $2=\([0-9]*\).*/\1/p" "$dir/$1.out"
}
entry() { # name: as it stands in the pool
	local more=
	case $connector-${1%-*} in
	p2p_nccl-*) more=", kv_addr: \":$(port_of "$1" side)\"" ;;
	mooncake-prefill) more=", bootstrap_port: $(port_of "$1" bootstrap)" ;;
	lmcache-decode) more=", receiver_init_port: $(port_of "$1" init), receiver_alloc_port: $(port_of "$1" alloc)" ;;
	esac
	echo "{url: \"${urls[$1]}\"$more}"
}

say "Engines: two prefill, two decode (simulated)"
declare -A urls
for e in prefill-1 prefill-2 decode-1 decode-2; do
	engine "$e" "${e%-*}"
	[ "${urls[$e]}" != "http://127.0.0.1:" ] || die "$e did not start: $(cat "$dir/$e.err")"
	echo "  $e  ${urls[$e]}"
done

port=$(free_port "${PORT:-8000}")
[ -n "$port" ] || die "no free port found"
cat >"$dir/pdrouter.yaml" <<YAML
listen: ["127.0.0.1:$port"]
workers: 2
control_socket: $dir/control.sock
lmcache: {listen: "$notices"}
pools:
  - models: [demo-model]
    connector: $connector
    policy: least_loaded
    $pool
    prefill: [$(entry prefill-1), $(entry prefill-2)]
    decode:  [$(entry decode-1), $(entry decode-2)]
YAML
sed -i '/^ *$/d' "$dir/pdrouter.yaml"
say "pdrouter: a master, two workers, a notifier"
sed 's/^/  /' "$dir/pdrouter.yaml"
"$B/pdrouter" -c "$dir/pdrouter.yaml" >"$dir/router.log" 2>&1 &
router=$!
pids+=("$router")
base="http://127.0.0.1:$port"
for _ in $(seq 100); do
	curl -sf -o /dev/null "$base/ready" && break
	kill -0 "$router" 2>/dev/null || die "pdrouter did not start"
	sleep 0.05
done
curl -sf -o /dev/null "$base/ready" || die "pdrouter is not ready: $(curl -s "$base/ready")"

# The end of a request, from its one log line.
served() { # request id
	local line
	for _ in $(seq 50); do
		line=$(grep -F "req=$1 " "$dir/router.log") && break
		sleep 0.02
	done
	for e in "${!urls[@]}"; do
		line=${line//${urls[$e]}/$e}
	done
	printf '  -> %s\n' "$(grep -o -E '(prefill|decode|reason|prefill_ms|first_ms|total_ms)=[^ ]*' <<<"$line" | tr '\n' ' ')"
}
post() { # id, body, curl options
	local id=$1 body=$2
	shift 2
	curl -sN "$@" "$base/v1/chat/completions" -H 'Content-Type: application/json' -H "X-Request-Id: $id" -d "$body"
}

say "A streamed chat completion, token by token"
printf '  '
post demo-streamed '{"model":"demo-model","stream":true,"max_tokens":24,"messages":[{"role":"user","content":"Tell me about routers"}]}' |
	while IFS= read -r event; do
		printf '%b' "$(sed -nE 's/^data: .*"content":"(([^"\\]|\\.)*)".*/\1/p' <<<"$event")"
		[ "$event" = "data: [DONE]" ] && echo
	done
served demo-streamed

say "One that is not streamed"
post demo-whole '{"model":"demo-model","max_tokens":8,"messages":[{"role":"user","content":"And briefly?"}]}' | sed 's/^/  /'
echo
served demo-whole

say "Eight at once, to spread"
burst=()
for i in 1 2 3 4 5 6 7 8; do
	post "demo-burst-$i" "{\"model\":\"demo-model\",\"max_tokens\":30,\"messages\":[{\"role\":\"user\",\"content\":\"Number $i\"}]}" -o /dev/null &
	burst+=($!)
done
sleep 0.4
say "pdctl status, meanwhile"
"$B/pdctl" -s "$dir/control.sock" status | sed -e 's/^/  /'
wait "${burst[@]}"

say "From /metrics"
curl -s "$base/metrics" | grep -E '^pdrouter_(requests_total|events_relayed_total|endpoint_in_flight|endpoint_up|workers |prefill_seconds_(sum|count)|time_to_first_token_seconds_(sum|count))' | sed 's/^/  /'

say "What the engines still hold of it"
left() { # for a moment after the last answer, connections are being closed
	for e in "${!urls[@]}"; do
		curl -s "${urls[$e]}/metrics" | grep -E '^pdsim:(held_blocks|held_requests|open_rooms|running_requests) [^0]' | sed "s/^/  $e /"
	done
}
for _ in $(seq 50); do
	[ -z "$(left)" ] && break
	sleep 0.05
done
left
[ -z "$(left)" ] || die "KV or rooms were left behind"
echo "  nothing: no KV, no open room, no request"
grep -F ' route=/v1/chat/completions ' "$dir/router.log" | grep -qvF ' reason=ok ' && die "not all requests ended well: see the log above"

if [ "${HOLD:-}" = 1 ]; then
	say "It goes on running. Try:"
	cat <<TRY
  curl -N $base/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"demo-model","stream":true,"messages":[{"role":"user","content":"Hello"}]}'
  $B/pdctl -s $dir/control.sock status
  log: $dir/router.log      (Ctrl-C ends it all)
TRY
	trap 'exit 0' INT TERM # it was asked for
	wait "$router"
fi
say "Everything that was started is stopped now."
