#!/usr/bin/env bash
# What systemd/README.md promises, checked one by one under a real systemd, against simulated engines.
# Run it as root, after `make`.  On a machine that was not booted with systemd, it boots a container (systemd-nspawn).
# The service is installed under a name, a folder and ports of its own; all of it is taken away at the end.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
. tests/tools/nspawn.sh
if [ ! -d /run/systemd/system ]; then
	machines_enter "$@"
	machine_new smoke
	machine_boot smoke --private-network
	machine_run smoke "$PWD/tests/tools/systemd_smoke.sh"
	exit
fi
U=pdrouter-smoke
D=/opt/$U
C=$D/etc/pdrouter/pdrouter.yaml
units=/run/systemd/system
engines=()

[ "$(id -u)" = 0 ] || {
	echo "systemd_smoke.sh: needs root" >&2
	exit 2
}
command -v pgrep >/dev/null || {
	echo "systemd_smoke.sh: needs pgrep and pkill: apt-get install procps" >&2
	exit 2
}
dir=$(mktemp -d)
finish() {
	systemctl stop -q $U.socket $U.service 2>/dev/null
	rm -rf "$D" "$dir" /var/lib/${U:?} /var/lib/private/${U:?} ${units:?}/$U.service ${units:?}/$U.service.d ${units:?}/$U.socket
	systemctl daemon-reload
	systemctl reset-failed -q $U.service $U.socket 2>/dev/null
	[ ${#engines[@]} -eq 0 ] || kill "${engines[@]}"
	checks_clean
}
trap finish EXIT
trap 'exit 130' INT TERM

after_failure() { journal info | tail -n 8 | sed 's/^/        | /'; }
free_port() { # FROM TO
	local p
	for p in $(shuf -i "$1-$2" -n 20); do
		(exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || { echo "$p"; return; }
	done
}
# From what was said since mark().
mark() { mark=$(date '+%F %T.%6N'); }
journal() { # LEVEL
	journalctl --sync
	journalctl -u $U -p "$1" -o cat -q --since "$mark"
}
said() { # LEVEL WORDS
	journal "$1" | grep -F -- "$2"
}
main_pid() { systemctl show -P MainPID $U; }
prop() { # NAME VALUE
	systemctl show -p "$1" $U
	[ "$(systemctl show -P "$1" $U)" = "$2" ]
}
ctl() { $D/usr/local/bin/pdctl -s /run/$U/control.sock "$@"; }
shows() { ctl status | grep -E "$1"; }
status_is() { # CODE URL
	local got
	got=$(curl -s -m 5 -o /dev/null -w '%{http_code}' "$2")
	echo "$got"
	[ "$got" = "$1" ]
}
stream() { # TOKENS
	curl -sN -m 30 "$base/v1/chat/completions" -H 'Content-Type: application/json' \
		-d "{\"model\":\"m\",\"stream\":true,\"max_tokens\":$1,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
}
engine() { # ROLE; sets url
	build/release/pdsim --role "$1" --model m --token-delay 50 >"$dir/$1" 2>&1 &
	engines+=($!)
	within 5 grep -q listening "$dir/$1" || { cat "$dir/$1" >&2; exit 1; }
	url="http://127.0.0.1:$(sed -n 's/.*http=\([0-9]*\).*/\1/p' "$dir/$1")"
}
config() { # WORKERS [FURTHER LINES [PORT]]
	cat >"$C" <<YAML
listen: ["127.0.0.1:${3:-$port}"]
workers: $1
control_socket: /run/$U/control.sock
pools:
  - connector: nixl
    prefill: [{url: "$prefill"}]
    decode: [{url: "$decode"}]
${2:-}
YAML
}
drop_in() { # LINE
	mkdir -p $units/$U.service.d
	printf '[Service]\n%s\n' "$1" >$units/$U.service.d/smoke.conf
	systemctl daemon-reload
}

make -s install DESTDIR=$D >"$dir/install" 2>&1 || { cat "$dir/install" >&2; exit 1; }
sed -e "s,/usr/local,$D/usr/local,g" -e "s,/etc/pdrouter,$D/etc/pdrouter,g" -e "s,^\(User\|RuntimeDirectory\|StateDirectory\)=.*,\1=$U," \
	-e "s,pdctl ,&-s /run/$U/control.sock ," $D/lib/systemd/system/pdrouter.service >$units/$U.service
engine prefill && prefill=$url
engine decode && decode=$url
port=$(free_port 20000 30000) low=$(free_port 600 1000)
base=http://127.0.0.1:$port
config 1
systemctl daemon-reload
mark

check "the unit has nothing systemd-analyze knows to be wrong" systemd-analyze verify $units/$U.service
for i in 1 2 3; do
	check "start $i: active means that it serves" eval "systemctl restart $U && status_is 200 $base/live"
done
[ $failed -eq 0 ] || exit 1 # all else would fail with it, slowly
check "READY=1 was told" prop StatusText serving
check "the service has no capability" grep -qE '^CapBnd:\s+0+$' "/proc/$(main_pid)/status"
check "workers have a filter of their own" eval "curl -s $base/metrics | grep -xF 'pdrouter_sandbox{process=\"worker\"} 1'"
check "not root" fails grep -q '^Uid:.*\b0\b' "/proc/$(main_pid)/status"
check "engines come up in the sandbox" within 5 status_is 200 "$base/ready"
check "pdctl of root reaches it" ctl ping
check "others do not" fails setpriv --reuid=65534 --regid=65534 --clear-groups $D/usr/local/bin/pdctl -s /run/$U/control.sock ping

config 2
check "reload" systemctl reload $U
check "reload returned with the configuration in force" shows 'worker .*generation=2 state=ready'
config many
mark
check "reload with a wrong file fails" fails systemctl reload $U
check "... and the journal says where, as a warning" said warning "$C:2: workers: many"
check "... and it goes on" status_is 200 "$base/live"
config 2 'drain_timeout: 9s'
check "SIGHUP" eval "systemctl kill -s HUP --kill-who=main $U && within 5 shows 'config=3'"

mark
# in a container systemd may not lower it
check "the kernel chooses a worker before the master" \
	[ "$(cat "/proc/$(pgrep -o -P "$(main_pid)" pdr-worker)/oom_score_adj")" -gt "$(cat "/proc/$(main_pid)/oom_score_adj")" ]
check "no core file" grep -q '^Max core file size  *0 ' "/proc/$(main_pid)/limits"
check "kill a worker" pkill -KILL -o -P "$(main_pid)" pdr-worker
check "a killed worker comes back" within 3 shows 'worker .*restarts=1'
check "... and is a warning in the journal" said warning 'signal=KILL'
check "what is usual is none" fails said warning 'process started'

stream 60 >"$dir/stream" &
client=$!
sleep 0.5
check "stop with a stream under way" systemctl stop $U
wait $client
check "... lets it finish" grep -F '[DONE]' "$dir/stream"
check "... and is a success" prop Result success

mark
config many
check "start with a wrong file fails" fails systemctl start $U
check "... and the journal says where, as a warning" said warning "$C:2: workers: many"
config 2
check "it starts once the file is good" within 5 systemctl is-active $U

# Upgrades: systemd follows the new instance, and ends all of them.
config 2 'upgrade_trial: 300ms'
check "reload for a short trial" systemctl reload $U
stream 60 >"$dir/stream" &
client=$!
sleep 0.5
restarts=$(systemctl show -P NRestarts $U)
check "upgrade" ctl upgrade
new=$(ctl status | sed -n 's/^pdrouter .* pid=\([0-9]*\)$/\1/p')
check "... systemd supervises the new instance" within 3 eval "[ \$(main_pid) = $new ]"
check "... the service was not restarted" prop NRestarts "$restarts"
check "... it serves" status_is 200 "$base/ready"
wait $client
check "... a stream of the older instance was finished" grep -F '[DONE]' "$dir/stream"
check "... whose processes are gone" within 3 eval "[ \$(ctl status | grep -c '^older') = 0 ]"
check "a reload of the new instance" systemctl reload $U
check "the new program is broken" eval "mv $D/usr/local/bin/pdrouter $dir/pdrouter && printf '#!/bin/sh\nexit 1\n' >$D/usr/local/bin/pdrouter && chmod 755 $D/usr/local/bin/pdrouter"
check "... the upgrade fails" fails ctl upgrade
check "... and the instance serves on" status_is 200 "$base/ready"
mv "$dir/pdrouter" $D/usr/local/bin/pdrouter
stream 60 >"$dir/stream" &
client=$!
sleep 0.5
check "upgrade again" ctl upgrade
check "stop with a stream in the older instance" systemctl stop $U
wait $client
check "... lets it finish" grep -F '[DONE]' "$dir/stream"
check "... and is a success" prop Result success
check "... and leaves no process" fails pgrep -f "$D/usr/local/bin/pdrouter"
check "start" systemctl start $U
new=$(main_pid)
check "upgrade, then kill the new master" eval "ctl upgrade && within 3 eval '[ \$(main_pid) != $new ]' && systemctl kill -s KILL --kill-who=main $U"
check "... systemd starts pdrouter again" within 5 status_is 200 "$base/ready"
config 2

check "drain an engine" ctl drain "$decode"
check "a restart keeps the drain" eval "systemctl restart $U && shows 'drained by pdctl'"
check "so does a killed master" eval "systemctl kill -s KILL --kill-who=main $U && within 5 shows 'drained by pdctl'"
check "undrain" ctl undrain "$decode"
check "... and it serves again" within 5 status_is 200 "$base/ready"

old=$(main_pid)
children=$(pgrep -d, -P "$old" 'pdr-')
check "kill the master" systemctl kill -s KILL --kill-who=main $U
check "a killed master is replaced" within 5 eval "systemctl is-active $U && [ \$(main_pid) != $old ]"
check "... and leaves no process behind" fails ps -o pid,comm -p "$children"
check "... and it serves again" within 5 status_is 200 "$base/ready"

config 2 '' "$low"
drop_in $'CapabilityBoundingSet=CAP_NET_BIND_SERVICE\nAmbientCapabilities=CAP_NET_BIND_SERVICE'
check "a port below 1024 with the drop-in" eval "systemctl restart $U && status_is 200 http://127.0.0.1:$low/live"
check "... whose workers have no capability" grep -qE '^CapEff:\s+0+$' "/proc/$(pgrep -o -P "$(main_pid)" pdr-worker)/status"
config 2

drop_in $'WatchdogSec=2\nLimitNOFILE=4000'
systemctl restart $U
old=$(main_pid)
check "LimitNOFILE" grep -E 'Max open files +4000 ' "/proc/$old/limits"
sleep 5
check "the watchdog is fed" [ "$(main_pid)" = "$old" ]
check "stop the master" systemctl kill -s STOP --kill-who=main $U
check "a stopped master is replaced by the watchdog" within 10 eval "systemctl is-active $U && [ \$(main_pid) != $old ]"

# Requests of an unknown path, which have a line each, at a rate: NUMBER A_SECOND; says the rate that there was.
flood() {
	python3 - "$port" "$@" <<-'PYTHON'
		import socket, sys, threading, time
		port, number, rate = map(int, sys.argv[1:])
		CONNECTIONS, EACH = 8, 10  # so many requests are written at once
		begun = time.monotonic()
		def connection():
		    with socket.create_connection(("127.0.0.1", port)) as s, s.makefile("rb") as answers:
		        for i in range(number // CONNECTIONS // EACH):
		            time.sleep(max(0, begun + i * EACH * CONNECTIONS / rate - time.monotonic()))
		            s.sendall(b"GET /flood HTTP/1.1\r\nHost: r\r\n\r\n" * EACH)
		            for _ in range(EACH):
		                head = b"".join(iter(answers.readline, b"\r\n"))
		                assert head.startswith(b"HTTP/1.1 404 "), head
		                answers.read(int(head.lower().partition(b"content-length:")[2].split()[0]))
		threads = [threading.Thread(target=connection) for _ in range(CONNECTIONS)]
		for t in threads:
		    t.start()
		for t in threads:
		    t.join()
		print(int(number / (time.monotonic() - begun)), end="")
	PYTHON
}
refusals() { # TO: how many lines of them are in the journal
	journalctl --sync
	case $1 in
	stderr) journal info | grep -c 'reason=not_found' ;;
	journald) journalctl PDR_REASON=not_found -o cat -q --since "$mark" | wc -l ;;
	esac
}
all_are_there() { [ "$(refusals "$1")" = 50000 ]; }
for to in stderr journald; do
	config 2 "log_to: $to"
	systemctl restart $U
	mark
	flood 50000 10000 >"$dir/rate" 2>&1
	within 20 all_are_there $to # journald may be late
	check "log_to: $to: $(tail -n 1 "$dir/rate") lines a second for 5 s are all in the journal" same "$(refusals $to)" 50000
	check "... and none was dropped" eval "curl -s $base/metrics | grep -xF 'pdrouter_log_lines_dropped_total 0'"
done
config 2
systemctl restart $U

refused() { # asks again and again while a restart runs; the longest wait in ms
	local at
	for _ in $(seq 100); do
		at=$(date +%s%N)
		curl -s -m 5 -o /dev/null "$base/live" || echo "curl: $?" >&2
		echo $((($(date +%s%N) - at) / 1000000))
	done | sort -n | tail -n 1
}
config 2
systemctl restart $U
for _ in 1 2 3; do
	refused >"$dir/longest" 2>"$dir/refused" &
	client=$!
	sleep 0.1
	systemctl restart $U
	wait $client
	check "a restart without the socket unit refuses nobody; longest wait: $(cat "$dir/longest") ms" fails grep . "$dir/refused"
done

systemctl stop $U
check "after a stop the address refuses" eval "curl -s -m 2 -o /dev/null $base/live; [ \$? = 7 ]"
printf '[Socket]\nListenStream=127.0.0.1:%s\n' "$port" >$units/$U.socket
systemctl daemon-reload
systemctl start $U.socket
check "the socket alone does not start it" fails systemctl is-active $U
check "the first client does" status_is 200 "$base/live"
for _ in $(seq 40); do
	curl -s -m 5 -o /dev/null "$base/live" || echo "curl: $?"
done >"$dir/refused" &
client=$!
systemctl restart $U
wait $client
check "a restart behind the socket loses no connection" fails grep . "$dir/refused"

checks_end
