/*
 * The model of shm/flags.c and its callers for spin: a worker with two slots, the notifier, notices that
 * come late, twice, or for a slot's former gen, and forged ones.  Worker and notifier may be killed at
 * any step; the master reaps the one and replaces both.  `make verify` searches all of it;
 * tests/verify/README.md says how to run one case.
 *
 *	P1  a worker that sleeps while a flag of its is armed whose notices
 *	    have all been counted is woken				(no invalid end state)
 *	P2  a notice is counted for its own gen and nonce alone		(assertion at the CAS)
 *	P3  a flag is READY after exactly the notices it waits for	(assertion in the worker)
 *	P4  the notifier writes ARMED slots alone, a FREE one is its
 *	    worker's							(assertions at the CAS, in arm and free)
 *
 * The sleep has no clock here: kv_ready's timeout is offered only where a notice was lost, namely in the
 * hands of a notifier that died before it counted it.  So a wake-up that gets lost in any other way
 * leaves a worker that can never go on, which spin reports as an invalid end state.  That the worker may
 * give a flag up at any time (client gone, other pair faster) is what brings former gens about.
 *
 * Memory is sequentially consistent here.  The word is changed by CAS and exchange, the bits by or and
 * exchange, all full barriers, and eventfds by system calls that take their lock.  Arming is the only
 * store: nonce, then a release store of the word, which flag_notify() loads with acquire before the
 * nonce; -DNONCE_AFTER_WORD is what happens otherwise.
 *
 * Broken variants, each of which must yield an error: -DBITS_BEFORE_EVENTFD (the worker exchanges the
 * bits, then reads its eventfd) -DEVENTFD_BEFORE_BIT -DBIT_BEFORE_READY (the notifier) -DNO_KICK
 * -DKICK_WITHOUT_BITS -DKICK_WITHOUT_EVENTFD (a new notifier) -DASK_BEFORE_ARM (all against P1)
 * -DNONCE_AFTER_WORD -DNO_NONCE -DREAP_TO_ZERO (the slots of a dead worker begin again at gen 0; all
 * against P2) -DPLAIN_COUNT (a store instead of the CAS: against P4).  Must be reached:
 * -DREACH_COLLECT -DREACH_KICKED (woken by the kick alone) -DREACH_STALE -DREACH_WRONG_NONCE
 * -DREACH_CAS_LOST -DREACH_TIMEOUT.
 */
#define NSLOTS 2
#ifndef GENS0 /* how often each slot is armed, at most; 0: not at all */
#define GENS0 2
#define GENS1 1
#endif
#define GENS(s) ((s) == 0 -> GENS0 : GENS1)
#define MAXGENS 3
#define NOTICES(s) (2 - (s)) /* slot 0 waits for two, slot 1 for one */
#define ALL_BITS 3

#define FREE 0
#define ARMED 1
#define READY 2

/* seg_flag() */
typedef flag {
	byte gen, left, state; /* word */
	byte nonce;
	/* ghosts */
	byte counted;
	bool lost; /* a notice of this gen went down with a notifier */
#ifdef REAP_TO_ZERO
	byte arms, gen_of[MAXGENS + 1]; /* of nonce */
#endif
};
flag flags[NSLOTS];
byte ready;   /* seg_ready(): one bit per slot */
bool eventfd; /* the worker's counter is not 0 */

/* Nonces differ for each time that a slot is armed.  Gens do too, so here a gen is its own nonce, but for
 * the variant in which gens come again. */
#ifdef REAP_TO_ZERO
#define NONCE(s) flags[s].arms
#define NEW_NONCE(s) (flags[s].arms + 1)
#define GEN_OF(s, n) flags[s].gen_of[n]
#else
#define NONCE(s) flags[s].gen
#define NEW_NONCE(s) (flags[s].gen + 1)
#define GEN_OF(s, n) n
#endif

/* Notices that are under way, by slot and nonce; they arrive in any order. */
byte mail[NSLOTS * (MAXGENS + 1)];
#define MAIL(s, n) mail[(s) * (MAXGENS + 1) + (n)]

bool worker_killed, worker_dead;
bool notifier_killed, notifier_dead;
#ifdef REACH_KICKED
bool died, kicked; /* a notifier has died; the last write to the eventfd was its successor's kick */
#endif

#define HAS(s) (flags[s].state != FREE) /* for the worker: only it frees */

/* flag_free() */
inline free_slot(s)
{
	d_step { /* shm_xchg(&...word, FREE) */
		assert(flags[s].state != FREE); /* P4 */
		flags[s].state = FREE;
		flags[s].left = 0;
		flags[s].counted = 0;
		flags[s].lost = false
	}
}

/* The prefill engine is asked: each of its ranks will send a notice, and perhaps one of them two. */
inline ask(s, ahead)
{
	if
	:: MAIL(s, NONCE(s) + ahead) = NOTICES(s)
	:: MAIL(s, NONCE(s) + ahead) = NOTICES(s) + 1
	fi
}

/* flag_arm(), then the request to P. */
inline arm(s)
{
	assert(flags[s].state == FREE); /* P4 */
#ifdef ASK_BEFORE_ARM
	ask(s, 1);
#endif
#ifndef NONCE_AFTER_WORD
	flags[s].nonce = NEW_NONCE(s); /* shm_store(&f->nonce, ret->nonce) */
#endif
	d_step { /* shm_store_release(&f->word, (gen + 1, notices, ARMED)) */
		flags[s].gen++;
		flags[s].left = NOTICES(s);
		flags[s].state = ARMED;
#ifdef REAP_TO_ZERO
		flags[s].arms++;
		flags[s].gen_of[flags[s].arms] = flags[s].gen
#endif
	}
#ifdef NONCE_AFTER_WORD
	flags[s].nonce = NONCE(s);
#endif
#ifndef ASK_BEFORE_ARM
	ask(s, 0)
#endif
}

/* flag_collect()'s fn: the transfer goes on, and is done with its flag. */
inline look_at(s)
{
	if
	:: (bits & (1 << s)) && flags[s].state == READY -> /* slot_state() == FLAG_READY */
		assert(flags[s].counted == NOTICES(s)); /* P3 */
#ifdef REACH_COLLECT
		assert(false);
#endif
#ifdef REACH_KICKED
		assert(!kicked);
#endif
		free_slot(s)
	:: else
	fi
}

inline read_eventfd()
{
	eventfd = false
}

inline collect()
{
	if
	:: ready == 0 /* a glance: shm_load(&ready[i]) == 0 */
	:: else -> d_step { bits = ready; ready = 0 } /* shm_xchg(&ready[i], 0) */
	fi
}

proctype worker()
{
	byte bits;

life:	{
		do
		:: !HAS(0) && NONCE(0) < GENS0 -> arm(0)
		:: !HAS(1) && NONCE(1) < GENS1 -> arm(1)
		:: HAS(0) -> free_slot(0) /* given up */
		:: HAS(1) -> free_slot(1)
		:: HAS(0) || HAS(1) ->
			if /* epoll_wait() */
			:: eventfd ->
#ifdef BITS_BEFORE_EVENTFD
				collect();
				read_eventfd();
#else
				read_eventfd();
				collect();
#endif
				look_at(0);
				look_at(1);
				bits = 0
			:: HAS(0) && flags[0].lost -> /* kv_ready's timeout */
#ifdef REACH_TIMEOUT
				assert(false);
#endif
				free_slot(0)
			:: HAS(1) && flags[1].lost -> free_slot(1)
			fi
		:: !HAS(0) && !HAS(1) && (NONCE(0) == GENS0 || NONCE(1) == GENS1) -> break
		od;
end_life:	false
	} unless {
		d_step { worker_killed -> worker_killed = false; worker_dead = true; bits = 0 }
	}
end:	!worker_dead -> /* reaped: flag_set_new() of the next worker in this slot */
	assert(!HAS(0) && !HAS(1));
	goto life
}

/* Which notice is the next to arrive: one of the mail, or a forged one with a flag's gen and the nonce
 * of the gen before, which engines have seen. */
#define TAKE(s, n) MAIL(s, n) > 0 -> MAIL(s, n) = MAIL(s, n) - 1; slot = s; gen = GEN_OF(s, n); nonce = n
#define FORGED(s) HAS(s) -> slot = s; gen = flags[s].gen; nonce = NONCE(s) - 1

inline next_notice()
{
	atomic {
		if
		:: TAKE(0, 1)
#if GENS1 == 0
		:: FORGED(0) /* in the search with one slot alone, to keep the other small */
#endif
#if GENS0 > 1
		:: TAKE(0, 2)
#endif
#if GENS0 > 2
		:: TAKE(0, 3)
#endif
#if GENS1 > 0
		:: TAKE(1, 1)
#endif
#if GENS1 > 1
		:: TAKE(1, 2)
#endif
		fi
	}
}

inline see_word() /* shm_load_acquire(&f->word), or what a failed CAS returned */
{
	seen_gen = flags[slot].gen;
	seen_left = flags[slot].left;
	seen_state = flags[slot].state
}

inline set_bit()
{
	ready = ready | (1 << slot) /* shm_or(): atomic */
}

inline forget()
{
	slot = 0; gen = 0; nonce = 0; seen_gen = 0; seen_left = 0; seen_state = 0; now_ready = false
}

/* flag_notify() of (slot, gen, nonce). */
inline notify()
{
	d_step { see_word() }
	do
	:: seen_gen != gen || seen_state != ARMED -> /* FLAG_STALE */
#ifdef REACH_STALE
		assert(false);
#endif
		break
	:: else ->
#ifndef NO_NONCE
		if
		:: flags[slot].nonce != nonce -> /* FLAG_WRONG_NONCE */
#ifdef REACH_WRONG_NONCE
			assert(false);
#endif
			break
		:: else
		fi;
#endif
#ifdef BIT_BEFORE_READY
		if
		:: seen_left == 1 -> set_bit()
		:: else
		fi;
#endif
		d_step { /* shm_cas(&f->word, old, (gen, left - 1, ARMED or READY)) */
			if
#ifdef PLAIN_COUNT
			:: true ->
#else
			:: flags[slot].gen == seen_gen && flags[slot].left == seen_left &&
			   flags[slot].state == seen_state ->
#endif
				assert(flags[slot].gen == gen && NONCE(slot) == nonce); /* P2 */
				assert(flags[slot].state == ARMED);			/* P4 */
				flags[slot].left = seen_left - 1;
				flags[slot].counted++;
				if
				:: seen_left == 1 -> flags[slot].state = READY; now_ready = true
				:: else
				fi;
				gen = 0 /* counted: a death cannot lose it any more */
			:: else ->
#ifdef REACH_CAS_LOST
				assert(false);
#endif
				see_word()
			fi
		}
		if
		:: gen == 0 -> break
		:: else
		fi
	od;
	if
	:: now_ready ->
#ifdef EVENTFD_BEFORE_BIT
		eventfd = true;
#endif
#ifndef BIT_BEFORE_READY
		set_bit();
#endif
		woken = true
	:: else
	fi;
	atomic { forget() }
}

inline wake()
{
#ifdef REACH_KICKED
	kicked = false;
#endif
#ifndef EVENTFD_BEFORE_BIT
	eventfd = true; /* wake_batch(): write(2) */
#endif
	woken = false
}

/* flag_kick_all(), then wake_all() */
inline kick()
{
#ifdef REACH_KICKED
	kicked = died;
#endif
#if !defined(NO_KICK) && !defined(KICK_WITHOUT_BITS)
	ready = ready | ALL_BITS;
#endif
#if !defined(NO_KICK) && !defined(KICK_WITHOUT_EVENTFD)
	eventfd = true
#else
	skip
#endif
}

proctype notifier()
{
	byte slot, gen, nonce;		       /* the notice in hand */
	byte seen_gen, seen_left, seen_state; /* word */
	bool now_ready, woken;

life:	{
		kick();
		do /* take_batch() */
		:: !woken ->
end_poll:		next_notice();
			notify()
		:: woken ->
			if
			:: next_notice() -> notify() /* more of this batch */
			:: wake() /* wake_batch() */
			fi
		od
	} unless {
		d_step {
			notifier_killed ->
			notifier_killed = false;
#ifdef REACH_KICKED
			died = true;
#endif
			if
			:: gen != 0 && gen == flags[slot].gen && nonce == NONCE(slot) -> flags[slot].lost = true
			:: else
			fi;
			forget();
			woken = false;
			notifier_dead = true
		}
	}
	notifier_dead = false; /* waitpid(), and the next one is forked */
	goto life
}

/* SIGKILL, any number of times and then never again: what needs one more death to go on is stuck. */
proctype killer()
{
	do
	:: d_step { !notifier_killed && !notifier_dead -> notifier_killed = true }
	:: d_step { !worker_killed && !worker_dead -> worker_killed = true }
	:: break
	od
}

/* flag_reap() of one slot: gen + 1, FREE. */
inline reap(s)
{
	gen = flags[s].gen; /* word_gen(shm_load(word)) */
	d_step { /* shm_xchg(word, ...) */
		assert(flags[s].gen == gen); /* the notifier never changes it */
#ifdef REAP_TO_ZERO
		flags[s].gen = 0;
#else
		flags[s].gen = gen + (gen < GENS(s) -> 1 : 0); /* the model's gens end */
#endif
		flags[s].left = 0;
		flags[s].state = FREE;
		flags[s].counted = 0;
		flags[s].lost = false
	}
}

proctype master()
{
	byte gen;

end:	do
	:: worker_dead ->
		reap(0);
		reap(1);
		gen = 0;
		worker_dead = false
	od
}

init {
	atomic {
		run worker();
		run notifier();
		run killer();
		run master()
	}
}
