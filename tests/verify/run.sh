#!/usr/bin/env bash
# make verify: spin searches the models beside the algorithms of shm/, whole.  The design must pass, each
# broken variant must yield an error trail, each interesting point must be reached.  One line for each
# search, with the states it stored and the CPU seconds it took; exits 1 if any did not end as it must.
#
#   run.sh [--wide] [MODEL...]   all models, or some of: rcu load flags queue prefix state; --wide: larger bounds too
#   run.sh --smoke               each design once, and one broken variant of each: part of `make test`
#   run.sh --trail NAME          how the search NAME came to its error, a line for each step
# Everything is kept in build/verify/NAME/.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$PWD/build/verify
MEMORY=4096 # MB at most for one search; without --wide the largest takes 1,000
LIMIT=900   # seconds at most for one search

# model, name, bounds and variant, what kind of search, what it must end with
#   pass   no error in any state; every line of the model is reached in one of the model's pass searches
#   live   the ltl property holds for every fair run
#   short  breadth first, to an error by the shortest trail		deep  depth first, where breadth takes long
#   cycle  the ltl property fails
# flags: one slot that is armed twice; two slots once each; one slot once, for one notice, where errors are near
again='-DGENS0=2 -DGENS1=0' two='-DGENS0=1 -DGENS1=1' once='-DGENS0=0 -DGENS1=1'
table="
rcu|2-arenas|-DARENAS=2|pass|
rcu|4-arenas|-DARENAS=4|pass|
rcu|all-freed|-DARENAS=2 -DONE_MORTAL|live|
rcu|NO_READER_BARRIER|-DNO_READER_BARRIER|short|!(freed
rcu|NO_PUBLISHER_BARRIER|-DNO_PUBLISHER_BARRIER|short|!(freed
rcu|GP_BEFORE_POINTER|-DGP_BEFORE_POINTER|short|!(freed
rcu|PLAIN_POINTER|-DPLAIN_POINTER|short|(mem
rcu|REAP_ALIVE|-DREAP_ALIVE|short|!(freed
rcu|FORK_UNORDERED|-DFORK_UNORDERED|short|!(freed
rcu|COOKIE_EARLY|-DCOOKIE_EARLY|short|!(freed
rcu|NO_REAP|-DNO_REAP|cycle|acceptance cycle
rcu|REACH_FREE|-DREACH_FREE|short|assertion violated 0
rcu|REACH_HELD|-DREACH_HELD|short|assertion violated 0
rcu|REACH_REUSE|-DREACH_REUSE|short|assertion violated
rcu|REACH_DEATH|-DREACH_DEATH|short|!(died_with
load|3-and-3|-DSEQS0=3 -DSEQS1=3|pass|
load|4-and-1|-DSEQS0=4 -DSEQS1=1|pass|
load|CHECK_THEN_ADD|-DCHECK_THEN_ADD|short|(words[0].count<=2)
load|COUNTER_BESIDE_ROW|-DCOUNTER_BESIDE_ROW|short|(procs[d].row
load|NO_ACKED|-DNO_ACKED|short|(procs[d].row
load|ACKED_AFTER_CAS|-DACKED_AFTER_CAS|short|(procs[d].row
load|ACKED_LOWERED|-DACKED_LOWERED|deep|(procs[d].row
load|ACKED_READ_FIRST|-DACKED_READ_FIRST|short|(procs[d].row
load|JOURNAL_CLEARED_FIRST|-DJOURNAL_CLEARED_FIRST|short|(procs[d].row
load|JOURNAL_AFTER_CAS|-DJOURNAL_AFTER_CAS|short|(procs[d].row
load|REAPER_UNRECORDED|-DREAPER_UNRECORDED|short|(procs[d].row
load|REQUESTS_FIRST|-DREQUESTS_FIRST|short|(words[1].count==0)
load|REACH_BY_WORD|-DREACH_BY_WORD|short|assertion violated 0
load|REACH_BY_ACKED|-DREACH_BY_ACKED|short|assertion violated 0
load|REACH_NOT_HAPPENED|-DREACH_NOT_HAPPENED|short|assertion violated 0
load|REACH_REFUSED|-DREACH_REFUSED|short|assertion violated 0
load|REACH_CAS_LOST|-DREACH_CAS_LOST|short|assertion violated 0
load|REACH_REST|-DREACH_REST|short|(words[0].count==0)
flags|1-slot|$again|pass|
flags|2-slots|$two|pass|
flags|BITS_BEFORE_EVENTFD|$once -DBITS_BEFORE_EVENTFD|short|invalid end state
flags|EVENTFD_BEFORE_BIT|$once -DEVENTFD_BEFORE_BIT|short|invalid end state
flags|BIT_BEFORE_READY|$once -DBIT_BEFORE_READY|short|invalid end state
flags|NO_KICK|$once -DNO_KICK|short|invalid end state
flags|KICK_WITHOUT_BITS|$once -DKICK_WITHOUT_BITS|short|invalid end state
flags|KICK_WITHOUT_EVENTFD|$once -DKICK_WITHOUT_EVENTFD|short|invalid end state
flags|ASK_BEFORE_ARM|$once -DASK_BEFORE_ARM|short|invalid end state
flags|NONCE_AFTER_WORD|$again -DNONCE_AFTER_WORD|short|==nonce)
flags|NO_NONCE|$again -DNO_NONCE|short|==nonce)
flags|PLAIN_COUNT|$again -DPLAIN_COUNT|short|assertion violated
flags|REAP_TO_ZERO|$again -DREAP_TO_ZERO|short|==nonce)
flags|REACH_COLLECT|$once -DREACH_COLLECT|short|assertion violated 0
flags|REACH_KICKED|$once -DREACH_KICKED|short|!(kicked)
flags|REACH_STALE|$two -DREACH_STALE|short|assertion violated 0
flags|REACH_WRONG_NONCE|$again -DREACH_WRONG_NONCE|short|assertion violated 0
flags|REACH_CAS_LOST|$two -DREACH_CAS_LOST|short|assertion violated 0
flags|REACH_TIMEOUT|$two -DREACH_TIMEOUT|short|assertion violated 0
queue|all|-DNOTHING_HELD|pass|
queue|held|-DHELD|pass|
queue|held-leaves|-DHELD -DLEAVES=1|pass|
queue|held-d-first|-DHELD -DD_FIRST|pass|
queue|one-key|-DONE_KEY|pass|
queue|one-slot|-DONE_SLOT|pass|
queue|two-engines|-DHELD -DTWO_ENGINES|pass|
queue|one-key-dies|-DONE_KEY -DHELD -DVICTIM=1|pass|
queue|two-engines-fair|-DHELD -DTWO_ENGINES -DFAIR -DD2_FIRST|pass|
queue|NO_SECOND_TRY|-DONE_KEY -DNO_SECOND_TRY|deep|invalid end state
queue|OLD_LACKS|-DHELD -DOLD_LACKS|deep|invalid end state
queue|LOOK_BEFORE_RELEASE|-DHELD -DLOOK_BEFORE_RELEASE|deep|invalid end state
queue|QUIET_GIVE_BACK|-DQUIET_GIVE_BACK|deep|invalid end state
queue|NO_PASS|-DHELD -DD_FIRST -DNO_PASS|deep|invalid end state
queue|LEAVE_WOKEN|-DHELD -DLEAVES=1 -DLEAVE_WOKEN|deep|invalid end state
queue|QUIET_LEAVE|-DONE_KEY -DLEAVES=0 -DQUIET_LEAVE|deep|invalid end state
queue|KEEPS_OTHER_ROLES|-DHELD -DKEEPS_OTHER_ROLES|deep|invalid end state
queue|OWN_SLOTS_ONLY|-DHELD -DTWO_ENGINES -DOWN_SLOTS_ONLY|deep|invalid end state
queue|NO_WAKE_AFTER_DEATH|-DONE_KEY -DHELD -DVICTIM=0 -DNO_WAKE_AFTER_DEATH|deep|invalid end state
queue|NO_EVENTFD_AFTER_DEATH|-DONE_KEY -DHELD -DVICTIM=0 -DNO_EVENTFD_AFTER_DEATH|deep|invalid end state
queue|NO_REAP|-DONE_KEY -DHELD -DVICTIM=1 -DNO_REAP|deep|assertion violated
queue|UNMARK_AFTER_FREE|-DONE_KEY -DUNMARK_AFTER_FREE|deep|invalid end state
queue|PLAIN_WAKE|-DONE_KEY -DPLAIN_WAKE|deep|assertion violated
queue|OVERTAKE|-DONE_KEY -DOVERTAKE|deep|assertion violated
queue|ORDER_BY_TICKET|-DHELD -DTWO_ENGINES -DFAIR -DD2_FIRST -DORDER_BY_TICKET|deep|invalid end state
queue|REACH_BEHIND|-DONE_KEY -DREACH_BEHIND|deep|assertion violated 0
queue|REACH_FULL|-DONE_SLOT -DREACH_FULL|deep|assertion violated 0
queue|REACH_CAS_LOST|-DONE_KEY -DREACH_CAS_LOST|deep|assertion violated 0
queue|REACH_SPURIOUS|-DHELD -DREACH_SPURIOUS|deep|assertion violated 0
queue|REACH_ALREADY_WOKEN|-DHELD -DREACH_ALREADY_WOKEN|deep|assertion violated 0
queue|REACH_DIED_WOKEN|-DONE_KEY -DHELD -DVICTIM=1 -DREACH_DIED_WOKEN|deep|assertion violated
queue|REACH_LEFT_WOKEN|-DHELD -DLEAVES=1 -DREACH_LEFT_WOKEN|deep|(woken==0)
queue|REACH_ALL_SERVED|-DHELD -DREACH_ALL_SERVED|deep|(served_after_waiting<2)
prefix|look|-DNSTORES=2|pass|
prefix|remove|-DREMOVE|pass|
prefix|TWO_STORES|-DTWO_STORES|short|assertion violated
prefix|SMALL_JUMP|-DSMALL_JUMP|short|assertion violated
prefix|REMOVE_FIRST|-DREMOVE -DREMOVE_FIRST|short|assertion violated
prefix|REACH_LOST|-DREACH_LOST|short|assertion violated
prefix|REACH_TWO|-DREMOVE -DREACH_TWO|short|assertion violated
prefix|REACH_STALE|-DREACH_STALE|short|assertion violated
prefix|REACH_FOUND|-DREACH_FOUND|short|assertion violated
prefix|REACH_CAS_LOST|-DREMOVE -DREACH_CAS_LOST|short|assertion violated 0
state|2-changes|-DNREQUESTS=1|pass|
state|1-change|-DNCHANGES=1|pass|
state|UP_BEFORE_TABLE|-DUP_BEFORE_TABLE|short|(s<=t)
state|UP_AT_ONCE|-DUP_AT_ONCE|short|(s<=t)
state|COOKIE_EARLY|-DCOOKIE_EARLY|short|(s<=t)
state|NO_BARRIER|-DNCHANGES=1 -DNREQUESTS=1 -DNO_BARRIER|short|invalid end state
state|WAKE_BEFORE_STATE|-DNCHANGES=1 -DNREQUESTS=1 -DWAKE_BEFORE_STATE|short|invalid end state
state|NO_SECOND_TRY|-DNCHANGES=1 -DNREQUESTS=1 -DNO_SECOND_TRY|short|invalid end state
state|REACH_HELD|-DREACH_HELD|short|assertion violated 0
state|REACH_WOKEN|-DREACH_WOKEN|short|assertion violated 0
state|REACH_SECOND_TRY|-DREACH_SECOND_TRY|short|assertion violated 0
state|REACH_BOTH|-DREACH_BOTH|short|(s==0)
"
wide="
state|2-changes-again||pass|
queue|held-fair|-DHELD -DFAIR|pass|
queue|held-dies|-DHELD -DVICTIM=0|pass|
queue|held-waiter-dies|-DHELD -DVICTIM=1|pass|
queue|one-key-leaves|-DONE_KEY -DLEAVES=0|pass|
rcu|all-freed-both|-DARENAS=2|live|
load|4-and-2|-DSEQS0=4 -DSEQS1=2|pass|
load|4-and-3|-DSEQS0=4 -DSEQS1=3|pass|
flags|3-gens|-DGENS0=3 -DGENS1=0|pass|
flags|2-slots-again|-DGENS0=2 -DGENS1=1|pass|
"
smoke="rcu|2-arenas rcu|NO_READER_BARRIER load|4-and-1 load|NO_ACKED flags|1-slot flags|NO_NONCE queue|held queue|two-engines-fair
	queue|NO_PASS prefix|look prefix|TWO_STORES state|1-change state|NO_BARRIER"

# Where a model stands, seen from the folder of one search: it is beside the code that it models.
model_file() { # MODEL
	echo ../../../shm/"$1".pml ../../../shm/*/"$1".pml | tr ' ' '\n' | while read -r path; do
		[ -f "$path" ] && echo "$path"
	done
}

# Why the search that ended in `out` did not pass; nothing if it did.
fault() { # KIND EXPECTED OUT
	local bad
	bad=$(grep -m 1 -E 'max search depth too small|out of memory|memory bound|reached -DMEMLIM' "$3")
	[ -n "$bad" ] && { echo "truncated: $bad"; return; }
	grep -q 'states, stored' "$3" || { echo "it did not end"; return; }
	case $1 in
	pass | live)
		bad=$(grep -m 1 '^pan:1:' "$3")
		[ -n "$bad" ] && { echo "${bad#pan:1: }"; return; }
		if ! grep -q 'errors: 0$' "$3" || ! grep -q '^Full statespace search' "$3" || grep -q 'not completed' "$3"; then
			echo "the search is not complete"
		elif [ "$1" = live ] && { ! grep -qE 'never claim[[:space:]]+\+' "$3" || ! grep -q 'fairness enabled' "$3"; }; then
			echo "the property was not looked at"
		fi
		;;
	*)
		grep '^pan:1:' "$3" | grep -qF -- "$2" || echo "no error, or another one: $(grep -m 1 '^pan:1:' "$3")"
		;;
	esac
}

search() { # MODEL NAME FLAGS KIND EXPECTED
	local dir=$work/$1-$2 cc run=(-m100000) why states seconds said
	case $4 in
	pass) cc="-O2 -DSAFETY -DNOCLAIM" ;;
	short) cc="-O0 -DSAFETY -DNOCLAIM -DBFS" run=(-w20) ;;
	deep) cc="-O0 -DSAFETY -DNOCLAIM" ;;
	live | cycle) cc="-O2 -DNFAIR=3" run+=(-a -f) ;;
	esac
	[ "$1" = queue ] && cc+=" -DCOLLAPSE" # slower by half, in a third of the memory
	rm -rf "$dir"
	mkdir -p "$dir"
	# without partial-order reduction: `unless` is at odds with it, and the models are small
	# shellcheck disable=SC2086 # lists of words
	if (cd "$dir" && spin -a $3 "$(model_file "$1")" && gcc -w -DNOREDUCE -DMEMLIM=$MEMORY $cc -o pan pan.c) >"$dir/build.log" 2>&1; then
		(cd "$dir" && TIMEFORMAT=%U && { time timeout $LIMIT ./pan "${run[@]}" >out 2>&1; } 2>seconds)
		why=$(fault "$4" "$5" "$dir/out")
	else
		why="it does not build: $(grep -m 1 -i error "$dir/build.log")"
	fi
	echo "$3" >"$dir/flags"
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$dir/out" 2>/dev/null)
	seconds=$(cat "$dir/seconds" 2>/dev/null)
	said="passes"
	case $4:$2 in
	pass:* | live:*) ;;
	*:REACH_*) said="is reached" ;;
	*) said="fails, as it must: $(sed -n 's/^pan:1: //p' "$dir/out" 2>/dev/null | tr -s ' ')" ;;
	esac
	if [ -n "$why" ]; then
		said="WRONG: $why"
		echo "$1-$2: $why" >>"$work/wrong"
	fi
	printf '%-29s %9s states %6s s  %s\n' "$1 $2" "${states:-?}" "${seconds:-?}" "$said"
}

# queue.pml's inlines are expanded many times, some with arguments that leave no choice: spin tells of each copy by the same
# line, so their lines prove nothing.  The REACH_ searches show that they make steps.
except_copies() { # MODEL
	[ "$1" = queue ] || exec cat
	awk -F'[: ]' 'NR == FNR { if (/^inline /) on = 1; if (on) copy[FNR] = 1; if (/^}/) on = 0; next }
		!copy[$5]' shm/queue.pml -
}

# Lines that no pass search of the model reached: a model that makes no step would pass every search.
unreached() { # MODEL
	local n=0 out
	for out in $(printf '%s\n' "${rows[@]}" | awk -F'|' -v m="$1" -v w="$work" '$1 == m && $4 == "pass" { print w "/" m "-" $2 "/out" }'); do
		n=$((n + 1))
		sed -n '/^unreached in \(proctype\|init\)/,/^unreached in claim/{s/^.*\(shm\/.*\.pml:[0-9]*\), state [0-9]*, /\1 /p}' "$out" | sort -u
	done | sort | uniq -c | awk -v n="$(printf '%s\n' "${rows[@]}" | awk -F'|' -v m="$1" '$1 == m && $4 == "pass"' | wc -l)" \
		'$1 == n && !/-end-|D_STEP/ { $1 = ""; print "never reached:" $0 }' | except_copies "$1"
}

if [ "${1:-}" = --trail ]; then
	dir=$work/${2:-}
	[ -f "$dir/flags" ] || { echo "run.sh: no search ${2:-}; they are: $(cd "$work" 2>/dev/null && echo *-*)" >&2; exit 2; }
	model=${2%%-*}
	cd "$dir" || exit 1
	# shellcheck disable=SC2046 # a list of words
	spin -t -p -k "$model.pml.trail" $(cat flags) "$(model_file "$model")" |
		awk '/^Starting/ { next } /^ *[0-9]+:\tproc/ { if ($1 == last) next; last = $1 } 1' # of a d_step its first line
	exit
fi
for tool in spin gcc cpp; do
	command -v "$tool" >/dev/null || { echo "verify: $tool is missing: tests/tools/deps.sh build verify" >&2; exit 1; }
done
[ "${1:-}" = --wide ] && { table=$table$wide; shift; }
if [ "${1:-}" = --smoke ]; then
	# shellcheck disable=SC2086 # a list of words
	table=$(printf '%s|\n' $smoke | grep -F -f /dev/stdin <(echo "$table"))
	unreached() { :; } # some lines are reached in other searches only
	shift
fi
mapfile -t rows < <(grep -E "^($(IFS='|'; echo "${*:-rcu|load|flags|queue|prefix|state}"))\|" <<<"$table")
[ ${#rows[@]} -eq 0 ] && { echo "run.sh: no such model: $*" >&2; exit 2; }
mkdir -p "$work"
rm -f "$work/wrong"
for row in "${rows[@]}"; do
	[ "$(jobs -pr | wc -l)" -ge "$(nproc)" ] && wait -n
	IFS='|' read -r model name flags kind expected <<<"$row"
	search "$model" "$name" "$flags" "$kind" "$expected" &
done
wait
for model in $(printf '%s\n' "${rows[@]}" | cut -d'|' -f1 | sort -u); do
	unreached "$model" | tee -a "$work/wrong"
done
if [ -s "$work/wrong" ]; then
	echo "verify: FAILED ($SECONDS s)"
	sed 's/^/    /' "$work/wrong"
	exit 1
fi
echo "verify: ${#rows[@]} searches ended as they must ($SECONDS s)"
