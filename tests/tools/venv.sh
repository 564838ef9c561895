#!/usr/bin/env bash
# Makes build/venv from Debian's python3 and tests/e2e/requirements.txt, again only when that file or
# the interpreter has changed.  The stamp is written last, so an interrupted run is done over.
set -eu
cd "$(dirname "$0")/../.."
want=tests/e2e/requirements.txt
venv=build/venv
# Debian's own interpreter, not one that a version manager has put before it in PATH
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || {
	echo "venv.sh: no python3; run tests/tools/deps.sh test" >&2
	exit 1
}
stamp=$("$python" -V | cat - "$want" | sha256sum | cut -d' ' -f1)
[ "$(cat $venv/stamp 2>/dev/null)" = "$stamp" ] && exit 0

mkdir -p build
exec 9>build/venv.lock
flock 9
[ "$(cat $venv/stamp 2>/dev/null)" = "$stamp" ] && exit 0
echo "making $venv (once)"
rm -rf $venv
log=$(mktemp)
if ! { "$python" -m venv $venv &&
	$venv/bin/pip install --disable-pip-version-check --no-deps -q -r "$want"; } >"$log" 2>&1; then
	tail -20 "$log" >&2
	echo "venv.sh: could not install $want (see above); is the network there?" >&2
	rm -f "$log"
	exit 1
fi
rm -f "$log"
echo "$stamp" >$venv/stamp
