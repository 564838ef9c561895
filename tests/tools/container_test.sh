#!/usr/bin/env bash
# make container-test: the image of etc/packages/Containerfile is built from the package, and a router in it serves a
# request of simulated engines.  Needs root and podman; else it is skipped.  The base image comes from a registry, or is
# made by debootstrap.  `podman run` serves where it can; else the image's files do, in a chroot.  Images are kept in
# build/container, not among the user's own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
skip() { echo "container-test: skipped: $1"; exit 0; }
command -v podman >/dev/null || skip "podman is missing (apt-get install podman)"
[ "$(id -u)" = 0 ] || skip "it needs root"

store=$PWD/build/container
image=localhost/pdrouter:test base=docker.io/library/debian:12-slim
own=$(mktemp -d)
running=()
pods() { podman --root "$store/images" --runroot "$store/run" "$@"; }
ended() { # of what this script has started
	local pid
	for pid in "${running[@]}"; do
		kill "$pid" 2>/dev/null && wait "$pid"
	done
	pods rm -f -t 0 pdrouter-test
	pods image unmount -f $image
	rm -rf "$own"
} >/dev/null 2>&1
trap 'ended; checks_clean' EXIT
trap 'exit 130' INT TERM
mkdir -p "$store"

# --- the image ---------------------------------------------------------------------------------
base_image() {
	pods image exists $base && return
	pods pull -q $base && return
	command -v debootstrap || { echo "no registry has $base, and debootstrap is missing"; return 1; }
	debootstrap --variant=minbase bookworm "$own/debian" && tar -C "$own/debian" -c . | pods import - $base
}
build() { # a kernel that gives no namespaces still allows a chroot
	local isolation
	for isolation in oci chroot; do
		pods build --pull=never --isolation $isolation --network host -t $image -f etc/packages/Containerfile build/deb && return
	done
	return 1
}
base_image >"$own/said" 2>&1 || { tail -n 5 "$own/said"; skip "there is no $base"; }
check "the image is built from the package" build
[ $failed -eq 0 ] || { checks_end; exit; }

# --- two engines, a configuration, a router -------------------------------------------------------
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port) prefill=$(free_port) decode=$(free_port)
for role in prefill decode; do
	build/release/pdsim --role $role --port "${!role}" --model m >"$own/$role.log" 2>&1 &
	running+=($!)
done
mkdir "$own/etc"
cat >"$own/etc/pdrouter.yaml" <<YAML
listen: ["127.0.0.1:$port"]
pools:
  - connector: nixl
    prefill: [{url: "http://127.0.0.1:$prefill"}]
    decode: [{url: "http://127.0.0.1:$decode"}]
YAML
chmod -R a+rX "$own"

in_podman() { # RUN...: what podman is run by
	local id
	id=$("$@" podman --root "$store/images" --runroot "$store/run" run -d --name pdrouter-test --cgroups=disabled --network host \
		--ulimit nproc=4096:4096 --ulimit nofile=2048:2048 \
		--read-only --tmpfs /run/pdrouter:mode=1777 --cap-drop all --security-opt no-new-privileges -v "$own/etc:/etc/pdrouter:ro" $image)
	[ -n "$id" ] && within 5 alive
}
in_chroot() {
	root=$(pods image mount $image) || return
	cp -a "$root/." "$own/root" && install -d -m 1777 "$own/root/run/pdrouter" && cp "$own/etc/pdrouter.yaml" "$own/root/etc/pdrouter/" || return
	# shellcheck disable=SC2016 # the inner shell's
	unshare --mount sh -c 'mount --rbind /dev "$1/dev" && mount -t proc proc "$1/proc" && shift && exec chroot --userspec=pdrouter:pdrouter "$@"' \
		- "$own/root" "$own/root" /usr/bin/pdrouter -c /etc/pdrouter/pdrouter.yaml >"$own/router.log" 2>&1 &
	router=$!
	running+=("$router")
	within 5 alive
}
alive() { curl -sf -m 2 -o /dev/null "http://127.0.0.1:$port/live"; }
ready() { curl -sf -m 2 -o /dev/null "http://127.0.0.1:$port/ready"; }
serves() {
	curl -sf -m 20 "http://127.0.0.1:$port/v1/completions" -H 'Content-Type: application/json' \
		-d '{"model": "m", "prompt": "hi", "max_tokens": 3}' | grep '"completion_tokens": *3'
}
# crun refuses both versions of cgroups at once
# shellcheck disable=SC2016 # the inner shell's
one_cgroup_version() { unshare --mount sh -c 'umount /sys/fs/cgroup/unified; exec "$@"' - "$@"; }
stop_podman() { pods stop -t 10 pdrouter-test && same "$(pods inspect -f '{{.State.ExitCode}}' pdrouter-test)" 0; }
stop_chroot() { kill "$router" && wait "$router"; }

how=chroot
if in_podman env >"$own/said" 2>&1; then
	how=podman
elif pods rm -f -t 0 pdrouter-test >/dev/null 2>&1; in_podman one_cgroup_version >>"$own/said" 2>&1; then
	how=podman
else
	echo "podman run does not work here, the image's files serve in a chroot: $(grep -m 1 -i error "$own/said")"
	check "the router of the image starts" in_chroot
fi
check "it is ready ($how)" within 15 ready
check "... and serves a request" serves
check "... SIGTERM ends it with exit code 0" stop_$how
checks_end
