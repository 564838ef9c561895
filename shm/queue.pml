/*
 * The model of shm/queue.c and worker/schedule/wait.c for spin: three requests, each of a worker of its own, two queue
 * entries, one slot at a prefill engine (P) and one at a decode engine (D).  Requests of key 1 take P and D, in that
 * order, and give them back in it; requests of key 2 take D alone.  With -DTWO_ENGINES the D of key 1 is one engine and
 * the D of key 2 another, of another model, and P is left out.  With -DD_FIRST a request gives D back first, and the first
 * request keeps P until that of key 2 is over.  With -DFAIR a new waiter of one key may go before
 * waiters of the other key that came earlier; else tickets alone order them.  Some requests leave at any time (their client has gone).
 * One worker may be killed at any step, and the master reaps it.  `make verify` searches all states;
 * tests/verify/README.md says how to run one case.  In the code below an entry of the queue is called a slot.
 *
 *	P1  no request waits for ever: a waiter is woken when a slot
 *	    that it lacks is free				(no invalid end state)
 *	P2  at the end every entry is free and unmarked, and every
 *	    slot is given back					(assertions in the auditor)
 *	P3  only a waiter is woken: no free entry is revived		(assertion at the CAS)
 *	P4  no new request overtakes a waiter of its own key		(assertion after the try)
 *
 * There is no clock: neither queue_timeout, nor the wake-up by the master once a second, which is for stopped workers.
 * So a lost wake-up leaves a request that can never continue, which spin reports as an invalid end state.
 *
 * Slots are taken and given back in one step: load.pml models those.  `high` is left out: it only grows, before an
 * entry is taken.  see() reads an entry until its fields are of one moment, which is one step here.  Memory is
 * sequentially consistent: the word is changed by CAS and exchange, marks by CAS and or, all full barriers, and so is
 * the CAS that gives a slot back.  `lacks` is a plain store, either before the exchange that stores WAITING, or a store
 * that narrows the former value; a process that reads the wider value causes one spurious wake-up.
 *
 * Broken variants, each of which must yield an error.  Against P1:
 *	-DNO_SECOND_TRY           no try after the request has enqueued
 *	-DOLD_LACKS               while the waiter tries, `lacks` still has the former roles
 *	-DLOOK_BEFORE_RELEASE     the scan comes before the release
 *	-DQUIET_GIVE_BACK         P is taken, D is full, P is given back without a wake-up
 *	-DNO_PASS                 a waiter does not pass its spurious wake-up on
 *	-DLEAVE_WOKEN             a woken waiter leaves and does not pass its wake-up on
 *	-DQUIET_LEAVE             a waiter that others rely on leaves without a wake-up
 *	-DKEEPS_OTHER_ROLES       a waiter does not pass on the wake-up for a role that it did not take
 *	-DOWN_SLOTS_ONLY          nor the one for a slot of an engine that does not serve its model
 *	-DNO_WAKE_AFTER_DEATH     the master does not wake the first waiter after a death
 *	-DNO_EVENTFD_AFTER_DEATH  the dead worker woke a waiter and did not write the eventfd, nor does the master
 *	-DUNMARK_AFTER_FREE       the mark is cleared after the entry is free
 *	-DORDER_BY_TICKET         with -DFAIR: a request that will go before a woken waiter does not try, since it came later
 * Against P2: -DNO_REAP.  Against P3: -DPLAIN_WAKE (a store instead of the CAS).  Against P4: -DOVERTAKE (a new
 * request tries first).
 *
 * Must be reached: -DREACH_BEHIND -DREACH_FULL -DREACH_CAS_LOST -DREACH_SPURIOUS -DREACH_ALREADY_WOKEN
 * -DREACH_DIED_WOKEN -DREACH_LEFT_WOKEN -DREACH_ALL_SERVED.
 */
#define NREQS 3
#define NSLOTS 2
#define NOBODY 7
#define ALREADY 6 /* was woken before, and takes this wake-up too */

#ifdef ONE_KEY /* A: 1, B: 2 */
#define KEY_OF(r) 2
#else
#define KEY_OF(r) ((r) == 2 -> 2 : 1)
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
#define WAITS_IN(s) (slots[s].state >= WAITING && (marks & (1 << s)))

#define LATE 16 /* added to a ticket: the waiter's start is after those of tickets without */
#ifdef ORDER_BY_TICKET
#define BEFORE(a, b) (a % LATE < b % LATE)
#else
#define BEFORE(a, b) (a < b)
#endif

/* ahead(): one slot at a time */
#define IN_FRONT(s, than) \
	(WAITS_IN(s) && BEFORE(slots[s].ticket, than) && (KEY_OF(slots[s].owner) == qkey || slots[s].state == WOKEN))

inline ahead(than)
{
	behind = IN_FRONT(0, than);
	behind = behind || IN_FRONT(1, than)
}

/* choose(): the waiter of entry s, if it is the first of its key so far */
#define KEEP(s, h, hs, hl) \
	if \
	:: h == 0 || slots[s].ticket < h -> h = slots[s].ticket; hs = s; hl = slots[s].lacks \
	:: else \
	fi
#define SEE(s) \
	if \
	:: WAITS_IN(s) -> \
		if \
		:: KEY_OF(slots[s].owner) == 1 -> KEEP(s, head1, at1, lacks1) \
		:: else -> KEEP(s, head2, at2, lacks2) \
		fi \
	:: else \
	fi

#define MATCHES(h, hl, n) \
	(h != 0 && ((hl & roles_) != 0 || n == qkey_) && (behind_ == 0 || (h > behind_ && n != qkey)))

/* queue_wake(), and the write to the eventfd.  qkey_, behind_ (a ticket): or 0. */
inline wake(roles_, qkey_, behind_)
{
	do
	:: true ->
		d_step { SEE(0) };
		d_step {
			SEE(1);
			who = NOBODY;
			if
			:: MATCHES(head1, lacks1, 1) && !(MATCHES(head2, lacks2, 2) && head2 < head1) ->
				who = at1; its_ticket = head1
			:: MATCHES(head2, lacks2, 2) && !(MATCHES(head1, lacks1, 1) && head1 < head2) ->
				who = at2; its_ticket = head2
			:: else
			fi;
			head1 = 0; head2 = 0; at1 = 0; at2 = 0; lacks1 = 0; lacks2 = 0
		}
		if
		:: who == NOBODY -> break
		:: d_step { /* shm_cas(word, s.word, ...) */
			who != NOBODY ->
			if
#ifdef PLAIN_WAKE
			:: true ->
				assert(slots[who].state == WAITING || slots[who].state == WOKEN); /* P3 */
#else
			:: slots[who].ticket == its_ticket && slots[who].state == WOKEN ->
#ifdef REACH_ALREADY_WOKEN
				assert(false);
#endif
				slots[who].roles = slots[who].roles | (roles_);
				who = ALREADY
			:: slots[who].ticket == its_ticket && slots[who].state == WAITING ->
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
			its_ticket = 0
		   }
		   if
		   :: d_step { who < ALREADY -> efd[who] = true }; break
		   :: who == ALREADY -> break
		   :: who == NOBODY
		   fi
		fi
	od;
	who = 0
}

/* queue_any(), then wake() */
inline wake_any(roles2_, qkey2_)
{
	if
	:: roles2_ != 0 && marks != 0 -> wake(roles2_, qkey2_, 0)
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
		:: qkey == 1 && free_d > 0 -> free_d--; reqs[me].d = true; got = true
		:: qkey == 2 && free_d2 > 0 -> free_d2--; reqs[me].d2 = true; got = true
		:: else -> lacks = D
		fi
	}
}
#else
/* plan_once(): `got`, or the roles that it lacks; `owes`: the roles that it gave back inside. */
inline try()
{
	if
	:: qkey == 1 ->
		d_step {
			got = false;
			lacks = 0;
			if
			:: free_p > 0 -> free_p--; reqs[me].p = true
			:: else -> lacks = P
			fi
		}
		if
		:: lacks == P && free_d == 0 -> lacks = D /* a slot of either role allows another try */
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

/* queue_leave(): woken = the roles for which the waiter was woken, and those that its last try did not find full */
inline leave()
{
	d_step { /* shm_xchg(word, TAKEN) */
		woken = (SLOT.state == WOKEN -> SLOT.roles : 0);
#ifndef QUIET_LEAVE
		woken = woken | (ALL - was_full);
#endif
		was_full = ALL;
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

/* queue_rearm(): roles = the roles for which the waiter was woken */
inline rearm()
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

/* wait_served(), wait_settle(): passes on the wake-up for the roles that it did not take or that have a slot left */
inline served()
{
	leave();
	roles = roles | woken;
	woken = 0;
#ifdef OWN_SLOTS_ONLY
	left = ((qkey == 1 -> free_d : free_d2) > 0 -> D : 0);
#else
	left = (qkey == 1 && free_p > 0 -> P : 0);
	left = left | (free_d > 0 -> D : 0);
#ifdef TWO_ENGINES
	left = left | (free_d2 > 0 -> D : 0);
#endif
#endif
	d_step {
#ifdef KEEPS_OTHER_ROLES
		roles = 0;
#endif
		owes = owes | (roles & left) | (qkey == 2 -> (roles & P) : 0);
#ifndef QUIET_LEAVE
		owes = owes | UNTRIED;
#endif
		roles = 0; left = 0
	}
#ifdef OWN_FORGOTTEN
	wake_any(owes, 0);
#else
	wake_any(owes, qkey);
#endif
	owes = 0
}

/* wait_again() with waits, wait_settle(): the waiter stays */
inline stays()
{
	SLOT.lacks = lacks;
	was_full = lacks;
	lacks = 0;
#ifndef QUIET_GIVE_BACK
	wake_any(owes, 0);
#endif
	owes = 0
}

#define TAKE(s) \
	if \
	:: slots[s].state == FREE -> \
		slots[s].state = TAKEN; slots[s].ticket = ticket; slots[s].owner = me; mine = s \
	:: else \
	fi

#ifdef FAIR
/* fair_start(): the models of two keys start in any order; a key's new waiter starts after those that it sees */
#define STARTS_LATE(s) (WAITS_IN(s) && KEY_OF(slots[s].owner) == qkey && slots[s].ticket > LATE)
inline choose_start()
{
	if
	:: ticket = ticket + LATE
	:: d_step { !STARTS_LATE(0) && !STARTS_LATE(1) -> skip }
	fi
}
#endif

inline enqueue()
{
	d_step { last++; ticket = last }
#ifdef FAIR
	choose_start();
#endif
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
		rearm();
		ahead(ticket)
	:: else
	fi
}

#ifdef TWO_ENGINES
inline release_d()
{
	if
	:: reqs[me].d ->
		d_step { free_d++; reqs[me].d = false }
		wake_any(D, 0)
	:: else
	fi
}

inline release_d2()
{
	if
	:: reqs[me].d2 ->
		d_step { free_d2++; reqs[me].d2 = false }
		wake_any(D, 0)
	:: else
	fi
}
#endif

inline release_p()
{
	if
	:: reqs[me].p ->
		d_step { free_p++; reqs[me].p = false }
#ifndef LOOK_BEFORE_RELEASE
		wake_any(P, 0)
#endif
	:: else
	fi
}

/* longer than the request that needs none of it */
#define OUTLIVES (me != 0 || reqs[2].over)

inline release()
{
#ifdef LOOK_BEFORE_RELEASE
	wake_any(P, 0);
#endif
#ifndef D_FIRST
	release_p();
#endif
#ifdef LOOK_BEFORE_RELEASE
	wake_any(D, 0);
#endif
#ifdef TWO_ENGINES
#ifdef D2_FIRST
	release_d2();
	OUTLIVES;
	release_d()
#else
	release_d();
	release_d2()
#endif
#else
	d_step { free_d++; reqs[me].d = false }
#ifndef LOOK_BEFORE_RELEASE
	wake_any(D, 0)
#endif
#endif
#ifdef D_FIRST
	OUTLIVES;
	release_p()
#endif
}

proctype worker(byte me)
{
	byte qkey = KEY_OF(me), mine = NOBODY, ticket, lacks, owes, roles, woken;
	byte was_full = ALL; /* roles that its last failed try found full */
	byte who, its_ticket, head1, head2, at1, at2, lacks1, lacks2;
	byte before; /* ghost: the waiter of the same key when the request came */
	byte left;
	bool got, behind;

	{
#ifdef HELD
		if
		:: me == 0 -> goto served_at_once /* it begins with both slots */
		:: else
		fi;
#endif
#ifndef HELD
		/* a newcomer: wait_before() */
		d_step {
			if
			:: WAITS_IN(0) && KEY_OF(slots[0].owner) == qkey -> before = slots[0].ticket
			:: else
			fi
		}
		ahead(250);
#ifdef OVERTAKE
		behind = false;
#endif
		if
		:: !behind -> try()
		:: else -> got = false
		fi;
		behind = false;
		if
		:: got ->
			assert(before == 0 || !WAITS_IN(0) || slots[0].ticket != before); /* P4 */
			goto served_at_once
		:: else -> before = 0
		fi;
#endif
		/* wait_again(): a slot given back inside the try is settled last */
		lacks = 0;
		enqueue();
		if
		:: mine == NOBODY -> /* 429 */
#ifdef REACH_FULL
			assert(false);
#endif
			wake_any(owes, 0);
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
			wake_any(owes, 0);
			owes = 0
		fi;
		do /* waits: on_wake(), wait_collect() */
		:: efd[me] ->
			efd[me] = false;
			if
			:: SLOT.state == WOKEN ->
				rearm();
				try();
				if
				:: got -> served(); goto is_served
				:: else
				fi;
#ifdef REACH_SPURIOUS
				assert(false);
#endif
				stays();
#ifndef NO_PASS
				wake(roles, 0, ticket);
#endif
				roles = 0
			:: else
			fi
		:: reqs[me].leaves -> /* its client has left: wait_leave() */
			leave();
#ifdef REACH_LEFT_WOKEN
			assert(woken == 0);
#endif
#ifdef LEAVE_WOKEN
			woken = 0;
#endif
#ifndef QUIET_LEAVE
			woken = woken | UNTRIED;
#endif
			wake_any(woken, qkey);
			woken = 0;
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
		(me != 1 || reqs[2].over); /* longer than the other request, which needs none of its slots */
#endif
		release();
done:
		skip;
		d_step {
			reqs[me].over = true;
			mine = NOBODY; ticket = 0; lacks = 0; owes = 0; roles = 0; woken = 0; who = 0; its_ticket = 0;
			head1 = 0; head2 = 0; at1 = 0; at2 = 0; lacks1 = 0; lacks2 = 0;
			got = false; behind = false; left = 0; before = 0; was_full = ALL
		}
	} unless {
		d_step {
			reqs[me].killed && !reqs[me].over && !reqs[me].dead ->
			reqs[me].dead = true;
			mine = NOBODY; ticket = 0; lacks = 0; owes = 0; roles = 0; woken = 0; who = 0; its_ticket = 0;
			head1 = 0; head2 = 0; at1 = 0; at2 = 0; lacks1 = 0; lacks2 = 0;
			got = false; behind = false; left = 0; before = 0; was_full = ALL
		}
	}
}

#ifdef VICTIM
/* SIGKILL of one worker. */
proctype killer()
{
	reqs[VICTIM].killed = true
}

/* After waitpid(): load_reap(), queue_reap(), then the first waiter is woken. */
#define REAP(s) \
	if \
	:: slots[s].state != FREE && slots[s].owner == me -> \
		marks = marks & (ALL_MARKS - (1 << s)); \
		d_step { slots[s].state = FREE; slots[s].ticket = 0; slots[s].owner = 0; slots[s].roles = 0; slots[s].lacks = 0 } \
	:: else \
	fi
/* A waiter that the dead worker woke without writing the eventfd. */
#define KICK(s) d_step { \
	if \
	:: slots[s].state == WOKEN -> efd[slots[s].owner] = true \
	:: else \
	fi }

proctype master()
{
	byte me, qkey, who, its_ticket, head1, head2, at1, at2, lacks1, lacks2;

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
#ifdef REACH_DIED_WOKEN
	assert(!(slots[0].state == WOKEN && slots[0].owner == me));
#endif
#ifndef NO_REAP
	REAP(0);
	REAP(1);
#endif
#ifndef NO_EVENTFD_AFTER_DEATH
	KICK(0);
	KICK(1);
#endif
#ifndef NO_WAKE_AFTER_DEATH
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
