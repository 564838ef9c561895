#!/usr/bin/env bash
# Installs the Debian packages that are missing: `deps.sh build`, `deps.sh build test`, `... bench`, `... verify`, `... deb`.
# As root through apt-get, else with sudo; where neither works it prints the line to type.  `deps.sh --list build`
# prints the packages of a set.
# shellcheck disable=SC2034 # the lists are read by name
set -u
build="gcc libc6-dev make pkg-config libevent-dev libhttp-parser-dev libjson-c-dev libzmq3-dev liburcu-dev
	libyaml-dev libc-ares-dev libseccomp-dev libsystemd-dev libssl-dev libxxhash-dev uthash-dev libncurses-dev curl ca-certificates"
test="xz-utils libcriterion-dev python3 python3-venv python3-pip clang clang-format clang-tidy cppcheck
	libclang-rt-14-dev prometheus shellcheck patch iproute2 nginx-light haproxy systemd openssl mandoc tmux valgrind chromium"
verify="spin"
deb="build-essential debhelper dpkg-dev lintian python3"
bench="nginx-light haproxy valgrind strace python3 python3-venv gnuplot-nox openssl xz-utils"
want=
list=
if [ "${1:-}" = --list ]; then
	list=1
	shift
fi
for set in "$@"; do
	case $set in
	build | test | bench | verify | deb) want="$want ${!set}" ;;
	*) echo "deps.sh: no such set: $set" >&2; exit 2 ;;
	esac
done
# shellcheck disable=SC2086 # a list of words
[ -z "$list" ] || { printf '%s\n' $want; exit 0; }
# shellcheck disable=SC2086 # a list of words
missing=$(for p in $want; do
	[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || echo "$p"
done | tr '\n' ' ')
[ -z "$missing" ] && exit 0
line="apt-get install -y --no-install-recommends $missing"
if ! command -v apt-get >/dev/null; then
	echo "These packages are missing and this is not a Debian machine: $missing" >&2
	exit 1
fi
as_root=
if [ "$(id -u)" != 0 ]; then
	if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
		printf 'Packages are missing and I am not root. Type:\n  sudo apt-get update && sudo %s\n' "$line" >&2
		exit 1
	fi
	as_root=sudo
fi
echo "installing: $missing"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# shellcheck disable=SC2086
if ! $as_root apt-get update -q >"$log" 2>&1 || ! $as_root $line >>"$log" 2>&1; then
	tail -20 "$log" >&2
	printf 'apt-get failed. Type it by hand to see why:\n  %s apt-get update && %s %s\n' "$as_root" "$as_root" "$line" >&2
	rm -f "$log"
	exit 1
fi
rm -f "$log"
