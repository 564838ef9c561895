# shellcheck shell=bash
# Checks of a shell test: each is a line, "ok" or "FAILED", and what the command has said if it failed.  To be sourced.
# A script with a trap on EXIT of its own calls checks_clean there.
checks=$(mktemp -d) # checks/said: what the last check's command has said
passed=0 failed=0
checks_clean() { rm -rf "$checks"; }
trap checks_clean EXIT

checks_own() { # FOLDER of the script: it goes at the script's end, also when that is stopped
	checks_owned=$1
	trap 'rm -rf "$checks_owned"; checks_clean' EXIT
	trap 'exit 130' INT TERM
}

after_failure() { :; } # a script may define it anew: what else it shows
check() { # WHAT COMMAND...
	local what=$1
	shift
	if "$@" >"$checks/said" 2>&1; then
		passed=$((passed + 1))
		echo "ok      $what"
	else
		failed=$((failed + 1))
		echo "FAILED  $what"
		tail -n 15 "$checks/said" | sed 's/^/        /'
		after_failure
	fi
}
checks_end() { # the exit code is that of the test
	echo "$passed passed, $failed failed"
	[ $failed -eq 0 ]
}

# Commands for check().
fails() { ! "$@"; }
exits() { # CODE COMMAND...
	local want=$1 code
	shift
	"$@"
	code=$?
	echo "exit code $code"
	[ $code -eq "$want" ]
}
silent() { # COMMAND...: it prints nothing, and exits 0
	local out
	out=$("$@" 2>&1) || { echo "exit code $?: $out"; return 1; }
	[ -z "$out" ] || { echo "$out"; return 1; }
}
same() { [ "$1" = "$2" ] || { echo "$1 and $2"; return 1; }; }
within() { # SECONDS COMMAND...
	local until=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $until ] || return 1
		sleep 0.1
	done
}
