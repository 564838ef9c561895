# Made by `pdctl completion bash` (make docs): do not edit.
_pdctl() {
	local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' skip='' w words
	for w in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		if [ -n "$skip" ]; then skip=''; continue; fi
		case $w in
		-s | --socket | --host | --group | --role | --pool | --timeout | --prompt | --slower) skip=1 ;;
		-*) ;;
		*) command=${command:-$w} ;;
		esac
	done
	case $before in
	-s | --socket | --prompt) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
	--role) mapfile -t COMPREPLY < <(compgen -W 'prefill decode' -- "$word"); return ;;
	esac
	[ -n "$skip" ] && return
	case $command in
	'') words='-s status top reload config upgrade drain undrain explain requests request weight log-level workers prefix check fleet key ping completion version' ;;
	status) words=' --socket --json --help --version' ;;
	top) words=' --socket --json --help --version' ;;
	reload) words=' --socket --json --dry-run --help --version' ;;
	config) words=' --socket --json --help --version diff' ;;
	upgrade) words=' --socket --json --help --version' ;;
	drain) words=' --socket --json --host --group --role --pool --wait --timeout --help --version' ;;
	undrain) words=' --socket --json --host --group --role --pool --when-up --timeout --help --version' ;;
	explain) words=' --socket --json --prompt --help --version' ;;
	requests) words=' --socket --json --slower --help --version' ;;
	request) words=' --socket --json --help --version' ;;
	weight) words=' --socket --json --host --group --role --pool --help --version default' ;;
	log-level) words=' --socket --json --help --version error warn info debug' ;;
	workers) words=' --socket --json --help --version' ;;
	prefix) words=' --socket --json --help --version' ;;
	check) words=' --socket --json --help --version' ;;
	fleet) words=' --socket --json --help --version' ;;
	key) words=' --socket --json --help --version new' ;;
	ping) words=' --socket --json --help --version' ;;
	completion) words=' --socket --json --help --version bash zsh' ;;
	version) words=' --socket --json --help --version' ;;
	esac
	mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _pdctl pdctl
