#!/usr/bin/env bash
# make deb-test [SUITE=noble MIRROR=URL]: the package in a fresh Debian 12 (debootstrap), or in a fresh
# distribution of that name, under a real systemd, with simulated engines: installed, upgraded and taken
# back below streams, removed and purged.  Needs root, debootstrap, systemd-nspawn, and a mirror the first
# time.  The package of another suite is built in a root of that suite.  build/deb-root-SUITE keeps the
# fresh root, build/deb-build-SUITE the one that builds.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
. tests/tools/nspawn.sh
old=0.0.1 new=0.0.2 # of the packages
arch=$(dpkg --print-architecture)
here=$(sed -n "s/^VERSION_CODENAME=//p" /etc/os-release)
suite=${SUITE:-bookworm}
root=$PWD/build/deb-root-$suite
builder=$PWD/build/deb-build-$suite
packages=$PWD/build/deb-packages-$suite
log=$root.log

skip() { # WHY: an explicit suite may be one that this machine cannot make
	tail -n 5 "$log" 2>/dev/null >&2
	echo "deb-test: $suite SKIPPED: $1" >&2
	[ "$suite" = "$here" ] && exit 2
	exit 0
}
fresh_root() {
	local options=(--variant=minbase "--include=systemd,systemd-sysv,dbus,procps,curl")
	local script=/usr/share/debootstrap/scripts/$suite
	[ ! -e "$root.done" ] || return 0
	command -v debootstrap >/dev/null || skip "needs debootstrap"
	rm -rf --one-file-system "$root" # debootstrap that was stopped leaves /proc mounted
	if [ ! -e "$script" ]; then # newer than debootstrap: all Ubuntus have one script
		[ -n "${MIRROR:-}" ] || skip "MIRROR=URL has to name a mirror of it"
		script=/usr/share/debootstrap/scripts/gutsy
		options+=("--components=main,universe")
	fi
	debootstrap "${options[@]}" "$suite" "$root" "${MIRROR:-}" "$script" >"$log" 2>&1 || skip "debootstrap failed"
	touch "$root.done"
}
in_root() { # ROOT COMMAND...
	local at=$1
	shift
	cp -L /etc/resolv.conf "$at/etc/resolv.conf" 2>/dev/null
	chroot "$at" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 "$@"
}
# What the package needs is in the root that is tried: a machine has no network.
runtime() {
	local needs
	mapfile -t needs < <(dpkg-deb -f "$packages/pdrouter_$new-1_$arch.deb" Depends | tr , '\n' | sed 's/^ *//; s/[ |].*//')
	# shellcheck disable=SC2016 # it is the inner shell's
	in_root "$root" sh -c 'dpkg -s "$@" >/dev/null 2>&1 || { apt-get -q update && apt-get -qy --no-install-recommends install "$@"; }' \
		- "${needs[@]}" >>"$log" 2>&1 || skip "apt-get failed in its root"
}
build_here() {
	for v in $old $new; do
		make -s VERSION="$v" deb >/dev/null && cp build/deb/pdrouter_*.deb "$packages/" || exit
	done
}
# In a root of the suite: its own compiler and libraries, and the sources without this machine's objects.
build_there() {
	local v
	if [ ! -e "$builder.done" ]; then
		rm -rf "$builder" && cp -a "$root" "$builder" || exit
		in_root "$builder" sh -c 'apt-get -q update && apt-get -qy --no-install-recommends install make' >>"$log" 2>&1 ||
			skip "apt-get failed in its root"
		mkdir "$builder/src" && touch "$builder.done"
	fi
	find "$builder/src" -mindepth 1 -maxdepth 1 ! -name build -exec rm -rf {} +
	tar --exclude=./build --exclude=./.git -c . | tar -x -C "$builder/src" || exit
	for v in $old $new; do
		in_root "$builder" make -s -C /src VERSION="$v" SOURCE_DATE_EPOCH="$SOURCE_DATE_EPOCH" deb >>"$log" 2>&1 || {
			tail -n 20 "$log" >&2
			exit 2
		}
		cp "$builder"/src/build/deb/pdrouter_*.deb "$packages/" || exit
	done
}
if [ -z "${MACHINES:-}" ]; then
	[ "$(id -u)" = 0 ] || { echo "$0: needs root" >&2; exit 2; }
	mkdir -p "$packages"
	fresh_root
	if [ "$suite" = "$here" ]; then build_here; else build_there; fi
	runtime
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
	run curl -sN -m 120 $base/v1/completions -H 'Content-Type: application/json' \
		-d "{\"model\":\"m\",\"stream\":true,\"max_tokens\":$1,\"prompt\":\"hi\"}"
}
whole() { # FILE TOKENS: it has that many events with text, and the end
	grep -c '"text"' "$1"
	grep -qF '[DONE]' "$1" && [ "$(grep -c '"text": *"[^"]' "$1")" -ge "$2" ]
}
serves_a_stream() { stream 5 >"$MACHINES/stream" && whole "$MACHINES/stream" 5; }
engine() { # ROLE PORT
	run systemd-run --quiet --unit="sim-$1" /usr/libexec/pdrouter/pdsim --role "$1" --port "$2" --model m --token-delay 50
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

# The other version takes over while a stream runs and requests come.  The operator's file is not asked about.
replaced() { # WHAT VERSION INSTANCE
	local first client asking
	first=$(main_pid)
	rm -f "$MACHINES/stop"
	stream 600 >"$MACHINES/stream" & # 30 s
	client=$!
	ask_all_the_time >"$MACHINES/asked" &
	asking=$!
	within 5 grep -q text "$MACHINES/stream"
	check "$1" install_package "$2"
	check "... version $2 serves" shows "^pdrouter $2 .*state=serving.* instance=$3"
	check "... systemd supervises the new process" within 3 fails same "$first" "$(main_pid)"
	check "... the service was not restarted" same "$(run systemctl show -P NRestarts pdrouter)" 0
	check "... the stream goes on" kill -0 $client
	wait $client
	check "... and is whole" whole "$MACHINES/stream" 600
	touch "$MACHINES/stop"
	wait $asking
	check "... no request failed meanwhile" fails grep failed "$MACHINES/asked"
	check "... the operator's configuration stays" sh 'grep upgrade_trial /etc/pdrouter/pdrouter.yaml'
}
replaced "a newer package below a stream" $new 2
check "... the new example lies beside it" sh 'grep "a new line" /etc/pdrouter/pdrouter.yaml.dpkg-dist'
replaced "back to the older package below a stream" $old 3
check "... the old example lies beside it" fails sh 'grep "a new line" /etc/pdrouter/pdrouter.yaml.dpkg-dist'

config 'lisen: []'
second=$(main_pid)
check "an upgrade below a wrong configuration: the package is installed" install_package $new
cp "${checks:?}/said" "$MACHINES/said"
check "... and says what is wrong" grep lisen "$MACHINES/said"
check "... and what to do" grep 'run: pdctl upgrade' "$MACHINES/said"
check "... the former program serves on" same "$second 200" "$(main_pid) $(status_is 200 $base/ready)"
config
check "... until the file is right" run pdctl upgrade
check "... the newer version serves" shows "^pdrouter $new .*state=serving"

run systemctl stop pdrouter
check "what is stopped is replaced" install_package $old
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
