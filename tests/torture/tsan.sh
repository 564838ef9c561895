# shellcheck shell=bash
# To be sourced: tsan ARGUMENTS... runs build/tsan/torture of the current folder, which ends at the first
# race.  TSan wants its part of the address space free; a kernel that randomises by more bits than it
# knows of does not leave it that, so there the program runs without randomisation.
tsan() {
	export TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}"
	case $(build/tsan/torture --seconds 0 2>&1) in
	*'unexpected memory mapping'*) setarch -R build/tsan/torture "$@" ;;
	*) build/tsan/torture "$@" ;;
	esac
}
