#!/usr/bin/env bash
# make torture: processes for so many seconds, then the same bodies as threads under TSan for a tenth of it.
#
#   run.sh [SECONDS [TSAN-SECONDS]]
#
# Both programs are built before (make torture-bins).  Ends with 1 if either found something.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/torture/tsan.sh
seconds=${1:-600}
threads=${2:-$(((seconds + 9) / 10))}
bad=0
build/release/torture --seconds "$seconds" || bad=1
tsan --threads --seconds "$threads" || bad=1
exit $bad
