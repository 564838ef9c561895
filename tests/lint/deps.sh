#!/usr/bin/env bash
# Who may include whom, and the one door of each third party.  Prints the rule that was broken and where.
set -u
cd "$(dirname "$0")/../.." || exit 1
bad=0

# rule TEXT REGEX FILES...: no line of FILES may match
rule() {
	local text=$1 regex=$2 hits
	shift 2
	hits=$(grep -nHE -- "$regex" "$@")
	[ -z "$hits" ] && return
	printf '%s\n' "${hits//$'\n'/"    <- $text"$'\n'}    <- $text"
	bad=1
}
c() { find "$@" -name '*.[ch]'; }
without() { grep -vxE -- "$1"; }
mapfile -t proto < <(c proto)
mapfile -t shm < <(c shm)
mapfile -t base < <(c shm/base)
mapfile -t worker < <(c worker)
mapfile -t master < <(c master | without 'master/(main\.c|notifier/.*)')
mapfile -t notifier < <(c master/notifier)
mapfile -t product < <(c master worker shm proto)
mapfile -t all < <(c master worker shm proto tests)
but() { printf '%s\n' "${product[@]}" | without "$1"; }

I='^[[:space:]]*#[[:space:]]*include[[:space:]]*'
# our folders
rule "proto/ includes nothing of ours but proto/ and shm/base/" "$I\"(master|worker|tests|shm/[^b]|shm/b[^a])" "${proto[@]}"
rule "shm/ knows no process and not proto/" "$I\"(master|worker|tests|proto)/" "${shm[@]}"
rule "shm/base/ is a leaf" "$I\"(shm/[a-z_]*\.h|shm/core/|master|worker|proto|tests)" "${base[@]}"
rule "worker/ does not include master/" "$I\"(master|tests)/" "${worker[@]}"
rule "master/ does not include worker/ (main.c wires them)" "$I\"(worker|tests)/" "${master[@]}"
rule "master/ does not include master/notifier/ (main.c wires them)" "$I\"master/notifier/" "${master[@]}"
rule "master/notifier/ does not include master/ or worker/" "$I\"(master/[a-z_]*\.h|worker|tests)" "${notifier[@]}"
rule "memory orders are spelled in shm/ only" "$I\"shm/core/atomic\.h\"" "${worker[@]}" "${master[@]}" "${notifier[@]}" "${proto[@]}" master/main.c
rule "atomics are in shm/ only" '__atomic_|__sync_|uatomic_|\b(cmm|CMM)_|_Atomic|<stdatomic\.h>|\brcu_dereference|\brcu_assign' \
	"${worker[@]}" "${master[@]}" "${notifier[@]}" "${proto[@]}" master/main.c
# the doors; tests may use the libraries as oracles
doors() { # HEADER-REGEX DOOR-REGEX TEXT
	local rest
	mapfile -t rest < <(but "$2")
	rule "$3" "${I}[<\"]$1" "${rest[@]}"
}
doors 'zmq' 'master/notifier/.*' 'zmq is included in master/notifier/ only'
doors 'urcu' 'shm/core/atomic\.h' 'liburcu is included in shm/core/atomic.h only'
doors 'http_parser' 'proto/http/http\.c' 'http-parser is included in proto/http/http.c only'
doors 'json-c' 'proto/json/json_small\.c' 'json-c is included in proto/json/json_small.c only'
doors '(event2/|event\.h|evutil)' '(master|worker)/.*' 'libevent is included in process folders only'
doors 'yaml\.h' 'master/config/.*' 'libyaml is included in master/conf* only'
doors 'ares' 'master/probe/resolve\.c' 'c-ares is included in master/probe/resolve.c only'
doors 'systemd/' 'master/.*' 'libsystemd is included in master/ only'
doors '(sys/socket|netinet/|netdb)' '(master|worker|shm)/.*' 'proto/ knows no socket'

# written from the root
while IFS=: read -r file line name; do
	[ -f "$name" ] && continue
	echo "$file:$line:$name    <- an include in quotes is written from the root"
	bad=1
done < <(grep -nHoE "$I\"[^\"]+\"" "${all[@]}" | sed -E 's/#.*"(.*)"/\1/')
exit $bad
