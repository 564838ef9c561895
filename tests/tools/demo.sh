#!/usr/bin/env bash
# make demo: two prefill and two decode engines (simulated), pdrouter with two workers and a notifier,
# real requests, and what they left behind.  HOLD=1 leaves it all running until Ctrl-C.
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

# A free port: bound by nobody now; the router is started right after.
free_port() {
	local p
	for p in "${PORT:-8000}" $(shuf -i 20000-30000 -n 20); do
		(exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p"; return; }
	done
}
engine() { # name role
	"$B/pdsim" --role "$2" --name "$1" --model demo-model --token-delay 40 >"$dir/$1.out" 2>"$dir/$1.err" &
	pids+=($!)
	for _ in $(seq 100); do
		grep -q listening "$dir/$1.out" 2>/dev/null && break
		sleep 0.02
	done
	urls[$1]="http://127.0.0.1:$(sed -n 's/.*http=\([0-9]*\).*/\1/p' "$dir/$1.out")"
}

say "Engines: two prefill, two decode (simulated)"
declare -A urls
for e in prefill-1 prefill-2 decode-1 decode-2; do
	engine "$e" "${e%-*}"
	[ "${urls[$e]}" != "http://127.0.0.1:" ] || die "$e did not start: $(cat "$dir/$e.err")"
	echo "  $e  ${urls[$e]}"
done

port=$(free_port)
[ -n "$port" ] || die "no free port found"
cat >"$dir/pdrouter.yaml" <<YAML
listen: ["127.0.0.1:$port"]
workers: 2
control_socket: $dir/control.sock
notices: {listen: "ipc://$dir/notices"}
pools:
  - models: [demo-model]
    connector: nixl
    policy: least_loaded
    prefill: [{url: "${urls[prefill-1]}"}, {url: "${urls[prefill-2]}"}]
    decode:  [{url: "${urls[decode-1]}"}, {url: "${urls[decode-2]}"}]
YAML
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

if [ "${HOLD:-}" = 1 ]; then
	say "It goes on running. Try:"
	cat <<TRY
  curl -N $base/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model":"demo-model","stream":true,"messages":[{"role":"user","content":"Hello"}]}'
  $B/pdctl -s $dir/control.sock status
  log: $dir/router.log      (Ctrl-C ends it all)
TRY
	wait "$router"
fi
say "Everything that was started is stopped now."
