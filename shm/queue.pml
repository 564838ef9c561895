/*
 * The model of shm/queue.c and worker/schedule/wait.c for spin: three requests, each of a worker of its own, two slots,
 * one place at a prefill engine (P) and one at a decode engine (D).  Requests of need A take P and D, in that
 * order, and give them back in it; of need B, D alone.  With -DTWO_ENGINES need A's D is one engine and need B's
 * another, of another model, and P is left out.  Some leave when they like (their client has gone);
 * one worker may be killed at any step, and is reaped by the master.  `make verify` searches all of it;
 * tests/verify/README.md says how to run one case.
 *
 *	P1  nobody waits for ever: who stands there is called when there
 *	    is something for it					(no invalid end state)
 *	P2  at the end every slot is free and unmarked, every place given
 *	    back						(assertions in the auditor)
 *	P3  only who stands there is called: no slot is revived		(assertion at the CAS)
 *	P4  nobody who enters overtakes one of its own need		(assertion after the try)
 *
 * There is no clock: neither queue_timeout, nor the master's call once a second, which is for workers that
 * are stopped.  So a wake-up that gets lost leaves a request that can never go on, which spin reports as an
 * invalid end state.
 *
 * Places are taken and given back in one step: load.pml is about those.  `high` is left out: it only grows,
 * before a slot is taken.  see() reads a slot twice until it is of one moment, which is one step here.
 * Memory is sequentially consistent: the word is changed by CAS and exchange, marks by CAS and or, all full
 * barriers, as is the CAS that gives a place back.  `lacks` is a plain store, before the exchange that makes
 * it WAITING, or narrows what was there; whoever reads the wider one causes one spurious wake-up.
 *
 * Broken variants, each of which must yield an error: -DNO_SECOND_TRY (after standing there) -DOLD_LACKS (what
 * it lacked before still stands there while it tries) -DLOOK_BEFORE_RELEASE -DQUIET_GIVE_BACK (P is taken, D is
 * full, P goes back) -DNO_PASS (a waiter keeps its spurious wake-up for itself) -DLEAVE_CALLED (who was called leaves
 * and says nothing) -DQUIET_LEAVE (others relied on who leaves, and it says nothing) -DKEEPS_WHAT_IT_HAD (who was
 * called for another place than it took does not pass that on) -DOWN_MODELS_ROOM (nor one of an engine that does not
 * serve it) -DNO_CALL_AFTER_DEATH -DNO_TELL_AFTER_DEATH (the
 * dead one had called, and not written the eventfd) -DUNMARK_AFTER_FREE (all against P1) -DPLAIN_CALL (a store
 * instead of the CAS: against P3) -DNO_REAP (against P2) -DPUSH_IN (a newcomer tries first: against P4).  Must be
 * reached: -DREACH_BEHIND -DREACH_FULL -DREACH_CAS_LOST -DREACH_IN_VAIN -DREACH_TOLD -DREACH_DIED_CALLED
 * -DREACH_LEFT_CALLED -DREACH_ALL_SERVED.
 */
#define NREQS 3
#define NSLOTS 2
#define NOBODY 7
#define TOLD 6 /* was called already, and takes this call with it */

#ifdef ONE_NEED /* A: 1, B: 2 */
#define NEED_OF(r) 2
#else
#define NEED_OF(r) ((r) == 2 -> 2 : 1)
#endif

#define P 1
#define D 2
#define ALL 3
#define UNTRIED 4
#define ALL_MARKS 3

#define FREE 0
#define TAKEN 1
#define WAITING 2
#define WOKEN 3

typedef slot {
	byte ticket, owner, state, roles; /* word */
	byte lacks
};
slot slots[NSLOTS];
byte marks;
byte last; /* ticket */
byte free_p = 1, free_d = 1;
byte free_d2 = 1; /* -DTWO_ENGINES */
bool efd[NREQS];

typedef request {
	bool leaves; /* may leave */
	bool p, d, d2; /* what it holds */
	bool killed, dead, over
};
request reqs[NREQS];

#ifdef REACH_ALL_SERVED
byte served_after_waiting;
#endif
#define STANDS(s) (slots[s].state >= WAITING && (marks & (1 << s)))

/* ahead(): one slot at a time */
#define IN_FRONT(s, than) \
	(STANDS(s) && slots[s].ticket < than && (NEED_OF(slots[s].owner) == need || slots[s].state == WOKEN))

inline ahead(than)
{
	behind = IN_FRONT(0, than);
	behind = behind || IN_FRONT(1, than)
}

/* choose(): who waits in slot s, if it is the first of its need so far */
#define KEEP(s, h, hs, hl) \
	if \
	:: h == 0 || slots[s].ticket < h -> h = slots[s].ticket; hs = s; hl = slots[s].lacks \
	:: else \
	fi
#define SEE(s) \
	if \
	:: STANDS(s) -> \
		if \
		:: NEED_OF(slots[s].owner) == 1 -> KEEP(s, head1, at1, lacks1) \
		:: else -> KEEP(s, head2, at2, lacks2) \
		fi \
	:: else \
	fi

#define MEANT(h, hl, n) \
	(h != 0 && ((hl & roles_) != 0 || n == need_) && (behind_ == 0 || (h > behind_ && n != need)))

/* queue_wake(), and the write to the eventfd.  need_, behind_ (a ticket): or 0. */
inline wake(roles_, need_, behind_)
{
	do
	:: true ->
		d_step { SEE(0) };
		d_step {
			SEE(1);
			who = NOBODY;
			if
			:: MEANT(head1, lacks1, 1) && !(MEANT(head2, lacks2, 2) && head2 < head1) ->
				who = at1; key = head1
			:: MEANT(head2, lacks2, 2) && !(MEANT(head1, lacks1, 1) && head1 < head2) ->
				who = at2; key = head2
			:: else
			fi;
			head1 = 0; head2 = 0; at1 = 0; at2 = 0; lacks1 = 0; lacks2 = 0
		}
		if
		:: who == NOBODY -> break
		:: d_step { /* shm_cas(word, s.word, ...) */
			who != NOBODY ->
			if
#ifdef PLAIN_CALL
			:: true ->
				assert(slots[who].state == WAITING || slots[who].state == WOKEN); /* P3 */
#else
			:: slots[who].ticket == key && slots[who].state == WOKEN ->
#ifdef REACH_TOLD
				assert(false);
#endif
				slots[who].roles = slots[who].roles | (roles_);
				who = TOLD
			:: slots[who].ticket == key && slots[who].state == WAITING ->
#endif
				slots[who].state = WOKEN;
				slots[who].roles = roles_;
				who = slots[who].owner
			:: else ->
#ifdef REACH_CAS_LOST
				assert(false);
#endif
				who = NOBODY
			fi;
			key = 0
		   }
		   if
		   :: d_step { who < TOLD -> efd[who] = true }; break
		   :: who == TOLD -> break
		   :: who == NOBODY
		   fi
		fi
	od;
	who = 0
}

/* call_any() */
inline call_any(roles2_, need2_)
{
	if
	:: roles2_ != 0 && marks != 0 -> wake(roles2_, need2_, 0)
	:: else
	fi
}

#ifdef TWO_ENGINES
inline try()
{
	d_step {
		got = false;
		lacks = 0;
		if
		:: need == 1 && free_d > 0 -> free_d--; reqs[me].d = true; got = true
		:: need == 2 && free_d2 > 0 -> free_d2--; reqs[me].d2 = true; got = true
		:: else -> lacks = D
		fi
	}
}
#else
/* plan_once(): `got`, or what it lacks; owes what was given back inside it. */
inline try()
{
	if
	:: need == 1 ->
		d_step {
			got = false;
			lacks = 0;
			if
			:: free_p > 0 -> free_p--; reqs[me].p = true
			:: else -> lacks = P
			fi
		}
		if
		:: lacks == P && free_d == 0 -> lacks = D /* either will do */
		:: lacks == P && free_d > 0
		:: lacks == 0 ->
			d_step {
				if
				:: free_d > 0 -> free_d--; reqs[me].d = true; got = true
				:: else -> lacks = D
				fi
			}
			if
			:: !got ->
				d_step { free_p++; reqs[me].p = false }
				owes = owes | P
			:: else
			fi
		fi
	:: else ->
		d_step {
			got = false;
			lacks = 0;
			if
			:: free_d > 0 -> free_d--; reqs[me].d = true; got = true
			:: else -> lacks = D
			fi
		}
	fi
}

#endif

#define SLOT slots[mine]

inline unmark()
{
	marks = marks & (ALL_MARKS - (1 << mine))
}

/* queue_leave(): called = the roles for which it was called */
inline leave()
{
	d_step { /* shm_xchg(word, TAKEN) */
		called = (SLOT.state == WOKEN -> SLOT.roles : 0);
		SLOT.state = TAKEN;
		SLOT.roles = 0
	}
#ifndef UNMARK_AFTER_FREE
	unmark();
#endif
	d_step { SLOT.state = FREE; SLOT.ticket = 0; SLOT.owner = 0; SLOT.lacks = 0 }
#ifdef UNMARK_AFTER_FREE
	unmark();
#endif
}

/* queue_rearm(): roles = those it was called for */
inline stand()
{
#ifdef OLD_LACKS
	if
	:: SLOT.state == TAKEN -> SLOT.lacks = UNTRIED | ALL
	:: else
	fi;
#else
	SLOT.lacks = UNTRIED | ALL;
#endif
	d_step { /* shm_xchg(word, WAITING) */
		roles = (SLOT.state == WOKEN -> SLOT.roles : 0);
		SLOT.state = WAITING;
		SLOT.roles = 0
	}
}

/* wait_served(), wait_settle(): what it was called for and did not take, or where a place is left, it passes on */
inline served()
{
	leave();
	roles = roles | called;
	called = 0;
#ifdef OWN_MODELS_ROOM
	left = ((need == 1 -> free_d : free_d2) > 0 -> D : 0);
#else
	left = (need == 1 && free_p > 0 -> P : 0);
	left = left | (free_d > 0 -> D : 0);
#ifdef TWO_ENGINES
	left = left | (free_d2 > 0 -> D : 0);
#endif
#endif
	d_step {
#ifdef KEEPS_WHAT_IT_HAD
		roles = 0;
#endif
		owes = owes | (roles & left) | (need == 2 -> (roles & P) : 0);
#ifndef QUIET_LEAVE
		owes = owes | UNTRIED;
#endif
		roles = 0; left = 0
	}
#ifdef OWN_FORGOTTEN
	call_any(owes, 0);
#else
	call_any(owes, need);
#endif
	owes = 0
}

/* wait_again() with waits, wait_settle(): it stays there */
inline stays()
{
	SLOT.lacks = lacks;
	lacks = 0;
#ifndef QUIET_GIVE_BACK
	call_any(owes, 0);
#endif
	owes = 0
}

#define TAKE(s) \
	if \
	:: slots[s].state == FREE -> \
		slots[s].state = TAKEN; slots[s].ticket = ticket; slots[s].owner = me; mine = s \
	:: else \
	fi

inline enter()
{
	d_step { last++; ticket = last }
	d_step { TAKE(0) }
#ifndef ONE_SLOT
	if
	:: d_step { mine == NOBODY -> TAKE(1) }
	:: mine != NOBODY
	fi;
#endif
	if
	:: mine != NOBODY ->
		marks = marks | (1 << mine);
		stand();
		ahead(ticket)
	:: else
	fi
}

inline release()
{
#ifdef LOOK_BEFORE_RELEASE
	call_any(P, 0);
#endif
	if
	:: reqs[me].p ->
		d_step { free_p++; reqs[me].p = false }
#ifndef LOOK_BEFORE_RELEASE
		call_any(P, 0)
#endif
	:: else
	fi;
#ifdef LOOK_BEFORE_RELEASE
	call_any(D, 0);
#endif
#ifdef TWO_ENGINES
	if
	:: reqs[me].d ->
		d_step { free_d++; reqs[me].d = false }
		call_any(D, 0)
	:: else
	fi;
	if
	:: reqs[me].d2 ->
		d_step { free_d2++; reqs[me].d2 = false }
		call_any(D, 0)
	:: else
	fi
#else
	d_step { free_d++; reqs[me].d = false }
#ifndef LOOK_BEFORE_RELEASE
	call_any(D, 0)
#endif
#endif
}

proctype worker(byte me)
{
	byte need = NEED_OF(me), mine = NOBODY, ticket, lacks, owes, roles, called;
	byte who, key, head1, head2, at1, at2, lacks1, lacks2;
	byte before; /* ghost: who stood there of its need when it came */
	byte left;
	bool got, behind;

	{
#ifdef HELD
		if
		:: me == 0 -> goto served_at_once /* it begins with both places */
		:: else
		fi;
#endif
#ifndef HELD
		/* a newcomer: wait_before() */
		d_step {
			if
			:: STANDS(0) && NEED_OF(slots[0].owner) == need -> before = slots[0].ticket
			:: else
			fi
		}
		ahead(250);
#ifdef PUSH_IN
		behind = false;
#endif
		if
		:: !behind -> try()
		:: else -> got = false
		fi;
		behind = false;
		if
		:: got ->
			assert(before == 0 || !STANDS(0) || slots[0].ticket != before); /* P4 */
			goto served_at_once
		:: else -> before = 0
		fi;
#endif
		/* wait_again(): a place given back inside the try is settled last */
		lacks = 0;
		enter();
		if
		:: mine == NOBODY -> /* 429 */
#ifdef REACH_FULL
			assert(false);
#endif
			call_any(owes, 0);
			owes = 0;
			goto done
		:: mine != NOBODY && !behind ->
#ifndef NO_SECOND_TRY
			try();
			if
			:: got -> served(); goto is_served
			:: else -> stays()
			fi
#endif
		:: else ->
#ifdef REACH_BEHIND
			assert(false);
#endif
			behind = false;
			call_any(owes, 0);
			owes = 0
		fi;
		do /* waits: on_wake(), wait_collect() */
		:: efd[me] ->
			efd[me] = false;
			if
			:: SLOT.state == WOKEN ->
				stand();
				try();
				if
				:: got -> served(); goto is_served
				:: else
				fi;
#ifdef REACH_IN_VAIN
				assert(false);
#endif
				stays();
#ifndef NO_PASS
				wake(roles, 0, ticket);
#endif
				roles = 0
			:: else
			fi
		:: reqs[me].leaves -> /* its client has gone: wait_leave() */
			leave();
#ifdef REACH_LEFT_CALLED
			assert(called == 0);
#endif
#ifdef LEAVE_CALLED
			called = 0;
#endif
#ifndef QUIET_LEAVE
			called = called | UNTRIED;
#endif
			call_any(called, need);
			called = 0;
			goto done
		od;
is_served:
#ifdef REACH_ALL_SERVED
		served_after_waiting++;
		assert(served_after_waiting < 2);
#endif
served_at_once:
		/* its legs run */
#ifdef TWO_ENGINES
		(me != 1 || reqs[2].over); /* longer than the other, which needs nothing of it */
#endif
		release();
done:
		skip;
		d_step {
			reqs[me].over = true;
			mine = NOBODY; ticket = 0; lacks = 0; owes = 0; roles = 0; called = 0; who = 0; key = 0;
			head1 = 0; head2 = 0; at1 = 0; at2 = 0; lacks1 = 0; lacks2 = 0;
			got = false; behind = false; left = 0; before = 0
		}
	} unless {
		d_step {
			reqs[me].killed && !reqs[me].over && !reqs[me].dead ->
			reqs[me].dead = true;
			mine = NOBODY; ticket = 0; lacks = 0; owes = 0; roles = 0; called = 0; who = 0; key = 0;
			head1 = 0; head2 = 0; at1 = 0; at2 = 0; lacks1 = 0; lacks2 = 0;
			got = false; behind = false; left = 0; before = 0
		}
	}
}

#ifdef VICTIM
/* SIGKILL of one of them. */
proctype killer()
{
	reqs[VICTIM].killed = true
}

/* After waitpid(): load_reap(), queue_reap(), then the first is called. */
#define REAP(s) \
	if \
	:: slots[s].state != FREE && slots[s].owner == me -> \
		marks = marks & (ALL_MARKS - (1 << s)); \
		d_step { slots[s].state = FREE; slots[s].ticket = 0; slots[s].owner = 0; slots[s].roles = 0; slots[s].lacks = 0 } \
	:: else \
	fi
/* Who was called by the dead one, and not told. */
#define TELL(s) d_step { \
	if \
	:: slots[s].state == WOKEN -> efd[slots[s].owner] = true \
	:: else \
	fi }

proctype master()
{
	byte me, need, who, key, head1, head2, at1, at2, lacks1, lacks2;

end:	atomic {
		reqs[VICTIM].dead ->
		me = VICTIM;
		if
		:: reqs[me].p -> free_p++; reqs[me].p = false
		:: else
		fi;
		if
		:: reqs[me].d -> free_d++; reqs[me].d = false
		:: else
		fi
	}
#ifdef REACH_DIED_CALLED
	assert(!(slots[0].state == WOKEN && slots[0].owner == me));
#endif
#ifndef NO_REAP
	REAP(0);
	REAP(1);
#endif
#ifndef NO_TELL_AFTER_DEATH
	TELL(0);
	TELL(1);
#endif
#ifndef NO_CALL_AFTER_DEATH
	if
	:: marks != 0 -> wake(ALL, 0, 0)
	:: else
	fi;
#endif
	reqs[me].over = true
}
#endif

/* P2 */
proctype auditor()
{
end:	if
	:: d_step {
		reqs[0].over && reqs[1].over && reqs[2].over ->
		assert(free_p == 1 && free_d == 1 && free_d2 == 1);
		assert(marks == 0 && slots[0].state == FREE && slots[1].state == FREE)
	   }
	fi
}

init {
	atomic {
#ifdef HELD
#ifdef TWO_ENGINES
		free_d2 = 0; reqs[0].d2 = true;
#else
		free_p = 0; reqs[0].p = true;
#endif
		free_d = 0; reqs[0].d = true;
#endif
#ifdef LEAVES
		reqs[LEAVES].leaves = true;
#endif
		run worker(0);
		run worker(1);
		run worker(2);
#ifdef VICTIM
		run killer();
		run master();
#endif
		run auditor()
	}
}
