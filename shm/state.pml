/*
 * The model of a state change for spin: the master gives an endpoint a new row and says UP (ep_state_set() in
 * load.c, rcu_publish() and rcu_passed() in core/rcu.c, queue_wake_after_change() in queue.c), while workers
 * read the table, try, and wait in a queue.  `make verify` searches all of it; tests/verify/README.md says how
 * to run one case.
 *
 * The endpoint is down at first.  NCHANGES times its row changes (another address, other models) and the
 * endpoint comes up; between two changes it is down.  Table v has row v, and the state word holds 0 (DOWN) or
 * the number of the row for which the master said UP: a number that the real word does not have.
 * Worker 0 serves NREQUESTS requests, worker 1 one.  Each worker waits in the queue of a pool of its own, whose marks and
 * slot are one word; several waiters of one queue are the subject of queue.pml, deaths those of rcu.pml and
 * queue.pml.
 *
 *	P1  who reads UP has no older row than the one UP was said for	(assertion in the worker)
 *	P2  no request waits for ever						(no invalid end state)
 *
 * There is no clock: the master's call of once a second, which covers a lost wake-up in the program, does not
 * exist here.
 *
 * Memory is that of rcu.pml: a store buffer of DEPTH stores for each process, drained at any time; a barrier,
 * an exchange and a CAS wait until the own buffer is empty; a plain store may overtake one to another word.
 *
 * Broken variants, each of which must yield an error: -DUP_BEFORE_TABLE -DUP_AT_ONCE (after the publication,
 * though a reader may hold the former table) -DCOOKIE_EARLY (gp before the publication; all against P1)
 * -DNO_BARRIER (in queue_wake_after_change()) -DWAKE_BEFORE_STATE -DNO_SECOND_TRY (after the waiter has enqueued;
 * all against P2).  A plain store in place of the waiter's exchange is no such variant: rcu_enter() of its try
 * is a full barrier too.  Must be reached: -DREACH_HELD (UP waits for a
 * reader) -DREACH_WOKEN (a waiter is woken) -DREACH_SECOND_TRY (the second try finds the endpoint up)
 * -DREACH_BOTH (a section reads DOWN, then UP).
 */
#define NWORKERS 2
#ifndef NCHANGES
#define NCHANGES 2
#endif
#ifndef NREQUESTS /* of worker 0; worker 1 has one */
#define NREQUESTS 2
#endif
#define DEPTH 2
#define MASTER NWORKERS

/* Words of shared memory. */
#define PTR 0 /* number of the current table */
#define GP 1
#define STATE 2 /* 0: DOWN, else UP, said for that row */
#define LINE(i) (3 + (i))
#define WAIT(i) (3 + NWORKERS + (i)) /* slot of the worker's request */
#define NWORDS (3 + 2 * NWORKERS)

#define ACTIVE 1
#define STEP 2

#define FREE 0
#define WAITING 1
#define WOKEN 2

byte mem[NWORDS];
chan buf[NWORKERS + 1] = [DEPTH] of { byte, byte }; /* word, value */
bool efd[NWORKERS];

/* Scratch inside of d_step, 0 between steps. */
byte w_, v_, k_;

/* The newest own store to the word, else memory. */
inline load(p, word, ret)
{
	d_step {
		ret = mem[word];
		k_ = len(buf[p]);
		do
		:: k_ > 0 ->
			buf[p]?w_, v_;
			buf[p]!w_, v_;
			if
			:: w_ == word -> ret = v_
			:: else
			fi;
			k_--
		:: else -> break
		od;
		w_ = 0; v_ = 0
	}
}

/* shm_store(): in order, or before the last one if that is to another word. */
inline store_plain(p, word, val)
{
	if
	:: buf[p]!word, val
	:: d_step {
		len(buf[p]) == 1 && !buf[p]??[eval(word), _] ->
		buf[p]?w_, v_;
		buf[p]!word, val;
		buf[p]!w_, v_;
		w_ = 0; v_ = 0
	   }
	fi
}

/* shm_store_release(), shm_assign(): behind all stores before it. */
#define store_release(p, word, val) buf[p]!word, val

/* shm_mb() */
#define barrier(p) empty(buf[p])

/* shm_xchg(): a full barrier and the store in one. */
#define xchg(p, word, val) d_step { empty(buf[p]) -> mem[word] = val }

proctype drain(byte p)
{
end:	do
	:: d_step { buf[p]?w_, v_ -> mem[w_] = v_; w_ = 0; v_ = 0 }
	od
}

/* One section: rcu_enter(), ep_view() of the policy, the second look of reserve() in select.c, rcu_leave(). */
inline try()
{
	load(me, GP, g);
	xchg(me, LINE(me), g | ACTIVE);
	load(me, PTR, t);
	load(me, STATE, s);
	assert(s <= t); /* P1 */
	if
	:: s == 0 ->
#ifdef REACH_BOTH
		load(me, STATE, s);
		assert(s == 0)
#else
		skip
#endif
	:: else
	fi;
	load(me, STATE, s);
	assert(s <= t); /* P1 */
	d_step { got = s != 0; s = 0; t = 0; g = 0 }
	store_release(me, LINE(me), 0)
}

/* queue_enqueue() and queue_rearm() */
inline enqueue()
{
	xchg(me, WAIT(me), WAITING)
}

proctype worker(byte me)
{
	byte g, t, s, n;
	bool got;

	do
	:: n < (me == 0 -> NREQUESTS : 1) ->
		n++;
		try();
		if
		:: got -> goto served
		:: else
		fi;
		enqueue();
#ifndef NO_SECOND_TRY
		try();
		if
		:: got ->
#ifdef REACH_SECOND_TRY
			assert(false);
#endif
			goto leave
		:: else
		fi;
#endif
		do
		:: efd[me] -> /* only who was woken stands again and tries */
			efd[me] = false;
			if
			:: mem[WAIT(me)] == WOKEN ->
#ifdef REACH_WOKEN
				assert(false);
#endif
				enqueue();
				try();
				if
				:: got -> break
				:: else
				fi
			:: else
			fi
		od;
leave:		skip;
		xchg(me, WAIT(me), FREE);
served:		got = false
	:: else -> break
	od
}

/* rcu_passed(): oldest_reader() looks at one line after the other */
inline look_at(i)
{
	load(MASTER, LINE(i), seen);
	if
	:: (seen & ACTIVE) && seen - ACTIVE < oldest -> oldest = seen - ACTIVE
	:: else
	fi;
	seen = 0
}

inline wait_until_passed(cookie)
{
	do
	:: true ->
		oldest = 255;
		look_at(0);
		look_at(1);
		if
		:: oldest >= cookie -> break
		:: else ->
#ifdef REACH_HELD
			assert(false)
#else
			skip
#endif
		fi
	od;
	oldest = 0
}

/* queue_wake() for one pool, and the write to the eventfd */
inline wake(i)
{
	load(MASTER, WAIT(i), seen);
	if
	:: seen == WAITING ->
		d_step {
			empty(buf[MASTER]) -> /* shm_cas() */
			if
			:: mem[WAIT(i)] == WAITING -> mem[WAIT(i)] = WOKEN; efd[i] = true
			:: else
			fi
		}
	:: else
	fi;
	seen = 0
}

inline wake_after_change()
{
#ifndef NO_BARRIER
	barrier(MASTER);
#endif
	wake(0);
	wake(1)
}

inline say_up()
{
#ifdef WAKE_BEFORE_STATE
	wake_after_change();
	store_plain(MASTER, STATE, v)
#else
	store_plain(MASTER, STATE, v);
	wake_after_change()
#endif
}

proctype master()
{
	byte oldest, seen, v, gp = STEP;

	do
	:: v < NCHANGES ->
		v++;
		store_plain(MASTER, STATE, 0); /* down, and known to be */
#ifdef UP_BEFORE_TABLE
		say_up();
#endif
		store_release(MASTER, PTR, v); /* rcu_publish() */
		barrier(MASTER);
		gp = gp + STEP;
		store_plain(MASTER, GP, gp);
#ifdef COOKIE_EARLY
		wait_until_passed(gp - STEP);
#else
#ifndef UP_AT_ONCE
		wait_until_passed(gp);
#endif
#endif
#ifndef UP_BEFORE_TABLE
		say_up()
#endif
	:: v == NCHANGES -> break
	od
}

init {
	d_step { mem[GP] = STEP }
	atomic {
		run drain(0);
		run drain(1);
		run drain(MASTER);
		run worker(0);
		run worker(1);
		run master()
	}
}
