#!/usr/bin/env bash
# make fleet-tutorial: the commands of etc/docs/fleet_tutorial.md, taken from that page, in two machines (systemd-nspawn)
# that a bridge joins.  What a command prints is compared with the page: "..." stands for anything, in a line or as
# a line for several.  Fenced blocks of the page:
#   LANGUAGE simulator               what takes the place of the line `engine:` in fleet files
#   LANGUAGE HOST FILE               a file, written on HOST
#   console HOST [WORDS]             commands ("# ..."), which succeed, each with what it prints.  "soon": not always at once;
#                                    "second terminal": beside the others, until the end
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/tools/checks.sh
. tests/tools/nspawn.sh
machines_enter "$@"
page=etc/docs/fleet_tutorial.md
shared=$MACHINES/shared
simulator=''
beside=() # commands of a second terminal: PID HOST # COMMAND

join() { # HOST ADDRESS: boots it
	machine_new "$1"
	printf '[Match]\nName=host0\n[Network]\nAddress=%s/24\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n' "$2" >"$MACHINES/$1/root/etc/systemd/network/10-host0.network"
	systemctl --quiet --root="$MACHINES/$1/root" enable systemd-networkd
	machine_boot "$1" --network-bridge=fleet --bind="$shared:/srv/fleet"
	check "$1: make install" machine_run "$1" make -s -C "$PWD" install
}
run() { machine_run "$1" bash -c "$2"; } # HOST COMMAND
write() { # HOST FILE TEXT
	ENGINE=$simulator awk '/^engine:/ { $0 = ENVIRON["ENGINE"] } { print }' <<<"$3" | run "$1" "cat >'$2'"
}
real() { run "$1" 'cat >/tmp/real.yaml && pdctl fleet check -f /tmp/real.yaml' <<<"$2"; } # HOST TEXT
# Is TEXT what the page shows?
prints() { # SHOWN TEXT
	local line pattern=^ n=$'\n'
	if [ -z "$1" ]; then [ -z "$2" ]; return; fi
	while IFS= read -r line; do
		if [ "$line" = ... ]; then
			pattern+="([^$n]*$n)+"
			continue
		fi
		# shellcheck disable=SC2001 # an expansion cannot put a backslash before what it has found
		line=$(sed 's/[][().*+?^${}|\\]/\\&/g' <<<"$line")
		pattern+=${line//'\.\.\.'/[^$n]*}$n
	done <<<"$1"
	[[ $2$n =~ $pattern$ ]]
}
as_shown() { # HOST COMMAND SHOWN
	local text code
	text=$(run "$1" "$2" 2>&1)
	code=$?
	[ $code -eq 0 ] && prints "$3" "$text" && return
	printf 'exit code %d; it printed:\n%s\n' $code "$text"
	return 1
}
step() { # HOST WORDS COMMAND SHOWN
	case $2 in
	'second terminal')
		as_shown "$1" "$3" "$4" >"$checks/beside-${#beside[@]}" 2>&1 &
		beside+=("$! $1 # $3")
		echo "begins  $1 # $3"
		;;
	soon) check "$1 # $3" within 60 as_shown "$1" "$3" "$4" ;;
	*) check "$1 # $3" as_shown "$1" "$3" "$4" ;;
	esac
}
console() { # HOST WORDS TEXT
	local line command='' shown=''
	while IFS= read -r line; do
		if [[ $line = '# '* ]]; then
			[ -z "$command" ] || step "$1" "$2" "$command" "${shown%$'\n'}"
			command=${line#\# } shown=''
		else
			shown+=$line$'\n'
		fi
	done <<<"$3"
	step "$1" "$2" "$command" "${shown%$'\n'}"
}
block() { # LANGUAGE HOST WORDS TEXT
	case "$1 $2" in
	console*) console "$2" "$3" "$4" ;;
	*' simulator') simulator=$4 ;;
	*)
		[ "$1" != yaml ] || check "$2: $3, as on the page" real "$2" "$4"
		check "$2: $3" write "$2" "$3" "$4"
		;;
	esac
}

mkdir "$shared"
ip link add fleet type bridge && ip link set fleet up || exit 2
join gpu-1 10.87.0.1
join gpu-2 10.87.0.2
[ $failed -eq 0 ] || exit 1
head='' text=''
while IFS= read -r line <&3; do
	case $head,$line in
	,'```'?*) head=${line#'```'} text='' ;;
	,*) ;;
	*,'```')
		read -r language host words <<<"$head"
		block "$language" "$host" "$words" "${text%$'\n'}"
		head=''
		;;
	*) text+=$line$'\n' ;;
	esac
done 3<"$page"
ended() { # NUMBER; of a command of a second terminal
	wait "${beside[$1]%% *}" && return
	cat "$checks/beside-$1"
	return 1
}
for i in "${!beside[@]}"; do
	check "${beside[$i]#* }, to its end" ended "$i"
done
checks_end
