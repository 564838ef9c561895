#!/usr/bin/env bash
# make deb-test: the package in a fresh Debian 12 (debootstrap) under a real systemd, with simulated
# engines: installed, upgraded below a stream, removed and purged.  Needs root, a Debian mirror the
# first time, and debootstrap and systemd-nspawn.  build/deb-root keeps the fresh Debian.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
. tests/tools/nspawn.sh
old=0.0.1 new=0.0.2 # of the packages
arch=$(dpkg --print-architecture)
root=$PWD/build/deb-root
packages=$PWD/build/deb-packages

fresh_debian() { # what the package needs is in it: a machine has no network
	local needs
	if [ ! -e "$root.done" ]; then
		command -v debootstrap >/dev/null || { echo "$0: needs debootstrap" >&2; return 1; }
		rm -rf "$root"
		debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,procps,curl bookworm "$root" >build/deb-root.log || return
		touch "$root.done"
	fi
	mapfile -t needs < <(dpkg-deb -f "$packages/pdrouter_$new-1_$arch.deb" Depends | tr , '\n' | sed 's/^ *//; s/[ |].*//')
	chroot "$root" sh -c 'dpkg -s "$@" >/dev/null 2>&1 || { apt-get -q update && apt-get -qy --no-install-recommends install "$@"; }' - "${needs[@]}" >>build/deb-root.log
}
if [ -z "${MACHINES:-}" ]; then
	[ "$(id -u)" = 0 ] || { echo "$0: needs root" >&2; exit 2; }
	for v in $old $new; do
		make -s VERSION="$v" deb >/dev/null && mkdir -p "$packages" && cp build/deb/pdrouter_*.deb "$packages/" || exit
	done
	fresh_debian || { tail -n 20 build/deb-root.log >&2; exit 2; }
fi
machines_enter "$@"

run() { machine_run deb env DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"; }
sh() { run bash -c "$1"; }
package() { echo "/packages/pdrouter_$1-1_$arch.deb"; }
# a changed conffile in the new package is no question: the operator's file stays
install_package() { run apt-get -qy -o Dpkg::Options::=--force-confold -o APT::Install-Recommends=0 --allow-downgrades install "$(package "$1")"; }
files() { sh 'find /etc /opt /root /srv /usr /var -xdev ! -path "/var/lib/dpkg/*" ! -path "/var/lib/apt/*" ! -path "/var/cache/*" ! -path "/var/log/*" ! -path "/var/lib/systemd/*" | sort'; }
main_pid() { run systemctl show -P MainPID pdrouter; }
status_is() { # CODE URL
	local got
	got=$(run curl -s -m 5 -o /dev/null -w '%{http_code}' "$2")
	echo "$got"
	[ "$got" = "$1" ]
}
shows() { run pdctl status | grep -E "$1"; }
base=http://127.0.0.1:8000
stream() { # TOKENS
	run curl -sN -m 60 $base/v1/completions -H 'Content-Type: application/json' \
		-d "{\"model\":\"m\",\"stream\":true,\"max_tokens\":$1,\"prompt\":\"hi\"}"
}
whole() { # FILE TOKENS: it has that many events with text, and the end
	grep -c '"text"' "$1"
	grep -qF '[DONE]' "$1" && [ "$(grep -c '"text": *"[^"]' "$1")" -ge "$2" ]
}
serves_a_stream() { stream 5 >"$MACHINES/stream" && whole "$MACHINES/stream" 5; }
engine() { # ROLE PORT
	run systemd-run --quiet --unit="sim-$1" "$PWD/build/release/pdsim" --role "$1" --port "$2" --model m --token-delay 50
}
ask_all_the_time() { # until $MACHINES/stop is there
	while [ ! -e "$MACHINES/stop" ]; do
		status_is 200 $base/v1/models || echo failed
	done
}
config() { # FURTHER LINE
	sh "cat >/etc/pdrouter/pdrouter.yaml && chgrp pdrouter /etc/pdrouter/pdrouter.yaml && chmod 640 /etc/pdrouter/pdrouter.yaml" <<YAML
listen: ["127.0.0.1:8000"]
upgrade_trial: 2s
pools:
  - connector: nixl
    prefill: [{url: "http://127.0.0.1:8100"}]
    decode: [{url: "http://127.0.0.1:8200"}]
${1:-}
YAML
}

machine_new deb "$root"
mkdir "$MACHINES/packages"
cp "$packages"/pdrouter_*_"$arch".deb "$MACHINES/packages/"
# the newer package has another conffile, too
dpkg-deb -R "$packages/pdrouter_$new-1_$arch.deb" "$MACHINES/changed"
echo '# a new line of a new version' >>"$MACHINES/changed/etc/pdrouter/pdrouter.yaml"
dpkg-deb --root-owner-group -b "$MACHINES/changed" "$MACHINES/packages/pdrouter_$new-1_$arch.deb" >/dev/null
cp "$packages/pdrouter_$old-1_$arch.deb" "$MACHINES/deb/root/root/pdrouter.deb"
check "it installs where no systemd runs" chroot "$MACHINES/deb/root" dpkg -i /root/pdrouter.deb
check "... and is purged there" chroot "$MACHINES/deb/root" dpkg --purge pdrouter
rm "$MACHINES/deb/root/root/pdrouter.deb"
machine_boot deb --private-network --bind-ro="$MACHINES/packages:/packages"

files >"$MACHINES/before"
check "apt-get install" install_package $old
check "... makes the user" run getent passwd pdrouter
check "... starts nothing: the configuration is an example" fails run systemctl is-active pdrouter
check "... the example is right" run pdrouter -t -c /etc/pdrouter/pdrouter.yaml
check "... each file is there as it was packed" run dpkg --verify pdrouter
engine prefill 8100
engine decode 8200
config
check "systemctl enable --now" run systemctl enable --now pdrouter
check "... its engines are up" within 10 status_is 200 $base/ready
check "... it serves a stream" serves_a_stream
check "... as user pdrouter" same pdrouter "$(run ps -o user= -p "$(main_pid)")"

first=$(main_pid)
stream 240 >"$MACHINES/stream" & # 12 s
client=$!
ask_all_the_time >"$MACHINES/asked" &
asking=$!
within 5 grep -q text "$MACHINES/stream"
check "a newer package below a stream" install_package $new
check "... the new version serves" shows "^pdrouter $new .*state=serving.* instance=2"
check "... systemd supervises the new process" within 3 fails same "$first" "$(main_pid)"
check "... the service was not restarted" same "$(run systemctl show -P NRestarts pdrouter)" 0
check "... the stream goes on" kill -0 $client
wait $client
check "... and is whole" whole "$MACHINES/stream" 240
touch "$MACHINES/stop"
wait $asking
check "... no request failed meanwhile" fails grep failed "$MACHINES/asked"
check "... the operator's configuration stays" sh 'grep upgrade_trial /etc/pdrouter/pdrouter.yaml'
check "... the new example lies beside it" sh 'grep "a new line" /etc/pdrouter/pdrouter.yaml.dpkg-dist'

config 'lisen: []'
second=$(main_pid)
check "an upgrade below a wrong configuration: the package is installed" install_package $old
cp "${checks:?}/said" "$MACHINES/said"
check "... and says what is wrong" grep lisen "$MACHINES/said"
check "... and what to do" grep 'run: pdctl upgrade' "$MACHINES/said"
check "... the former program serves on" same "$second 200" "$(main_pid) $(status_is 200 $base/ready)"
config
check "... until the file is right" run pdctl upgrade
check "... the older version serves" shows "^pdrouter $old .*state=serving"

run systemctl stop pdrouter
check "what is stopped is upgraded" install_package $new
check "... and stays stopped" fails run systemctl is-active pdrouter
run systemctl start pdrouter
check "start" within 10 status_is 200 $base/ready
stream 40 >"$MACHINES/stream" & # 2 s
client=$!
within 5 grep -q text "$MACHINES/stream"
check "removed below a stream" run apt-get -qy remove pdrouter
wait $client
check "... the stream was finished" whole "$MACHINES/stream" 40
check "... no process is left" fails run pgrep pdr
check "... the configuration stays" run test -e /etc/pdrouter/pdrouter.yaml
check "purge" run apt-get -qy purge pdrouter
files >"$MACHINES/after"
check "... leaves no file" diff "$MACHINES/before" "$MACHINES/after"
check "... no user" fails run getent passwd pdrouter
check "... and no unit" fails run systemctl cat pdrouter
checks_end
