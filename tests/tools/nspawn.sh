# shellcheck shell=bash
# Machines for tests: containers that boot systemd over a copy-on-write view of this machine.  To be sourced, with
# checks.sh before it.
#
#   machines_enter "$@"     first of all: runs the script again, in namespaces of its own
#   machine_new NAME [ROOT] a machine with an empty disk over this machine's files, or those in ROOT; keeps what it
#                           writes over a reboot
#   machine_boot NAME ARGUMENTS-OF-NSPAWN...
#   machine_run NAME COMMAND...
#   machine_reboot NAME
#
# Mounts, interfaces and processes belong to the namespaces and end with them.  What does not, a folder and
# control groups, the process outside of the namespaces removes.
declare -A machine_pids # of what starts nspawn

machines_enter() { # ARGUMENTS OF THE SCRIPT...
	[ -z "${MACHINES:-}" ] || return 0 # in them
	[ "$(id -u)" = 0 ] || { echo "$0: needs root" >&2; exit 2; }
	local tool
	for tool in systemd-nspawn ip pgrep; do
		command -v $tool >/dev/null || {
			echo "$0: needs $tool: apt-get install systemd-container iproute2 procps" >&2
			exit 2
		}
	done
	MACHINES=$(mktemp -d)
	export MACHINES
	trap machines_end EXIT
	trap 'exit 130' INT TERM HUP
	# shellcheck disable=SC2016 # it is the inner shell's
	TMPDIR=$MACHINES setpriv --pdeathsig KILL unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private \
		sh -c 'mount -t tmpfs machines "$MACHINES" && mount -t tmpfs run /run && ip link set lo up && exec "$@"' - "$0" "$@" &
	wait $!
	exit
}
machines_end() {
	local code=$? pid group
	trap '' INT TERM HUP
	for pid in $(jobs -p); do
		# shellcheck disable=SC2046 # its child is the first process of the namespace: all others end with that
		kill -KILL $(pgrep -P "$pid" || echo "$pid")
	done
	wait
	for group in $(machine_groups); do
		[ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} +
	done
	rmdir "$MACHINES"
	checks_clean
	exit $code
}

# The control groups of all machines, one in each hierarchy that systemd uses.
machine_groups() {
	local kind path at
	while IFS=: read -r _ kind path; do
		case $kind in
		'') at=$(findmnt -rno TARGET -t cgroup2 | head -n 1) ;;
		name=systemd) at=$(findmnt -rno TARGET -t cgroup -O name=systemd | head -n 1) ;;
		*) continue ;;
		esac
		echo "$at${path%/}/pdrouter-${MACHINES##*.}"
	done </proc/self/cgroup
}
machine_new() { # NAME [ROOT]
	local at=$MACHINES/$1
	mkdir -p "$at"/{upper,work,root}
	mount -t overlay -o "lowerdir=${2:-/},upperdir=$at/upper,workdir=$at/work" "$1" "$at/root" || exit 2
	rm -rf "$at"/root/etc/systemd/system/*.wants # services of this machine
	echo "$1" >"$at/root/etc/hostname"
}
machine_boot() { # NAME ARGUMENTS-OF-NSPAWN...
	local name=$1 group
	shift
	(
		for group in $(machine_groups); do
			mkdir -p "$group/$name" && echo 0 >"$group/$name/cgroup.procs"
		done
		while :; do
			systemd-nspawn --quiet --register=no --keep-unit --link-journal=no --directory="$MACHINES/$name/root" --machine="$name" \
				--bind-ro="$PWD" "$@" --console=pipe --boot systemd.unit=multi-user.target systemd.show_status=no
			[ $? = 133 ] || break # that is a reboot
		done
	) </dev/null >"$MACHINES/$name/console" 2>&1 &
	machine_pids[$name]=$!
	machine_wait "$name"
}
machine_wait() { # NAME
	within 60 machine_is_up "$1" && return
	echo "$0: $1 does not boot" >&2
	cat "$MACHINES/$1/console" >&2
	exit 2
}
machine_is_up() { machine_run "$1" systemctl is-active --quiet multi-user.target 2>/dev/null; }
machine_init() { # NAME; the first process of it
	local nspawn
	nspawn=$(pgrep -x -P "${machine_pids[$1]}" systemd-nspawn) && pgrep -P "$nspawn"
}
machine_run() { # NAME COMMAND...
	local init
	init=$(machine_init "$1") || return
	shift
	nsenter --all --target "$init" -- env -i PATH="$PATH" HOME=/root USER=root "$@"
}
machine_reboot() { # NAME
	local init
	init=$(machine_init "$1")
	machine_run "$1" systemctl reboot 2>/dev/null # the connection may end before the answer
	within 200 fails kill -0 "$init" 2>/dev/null
	machine_wait "$1"
}
