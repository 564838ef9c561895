/*
 * The model of shm/core/rcu.c for spin: publish, read, retire, the death of a reader.  `make verify` searches
 * all of it; tests/verify/README.md says how to run one case and how to read a trail.
 *
 * NREADERS readers enter and leave sections for ever.  The master publishes NPUBS tables on top of a
 * first one, in ARENAS arenas, so with fewer arenas than tables it must wait until one is free.  A reader
 * may be killed at any step; the master reaps it and a new one begins in its slot.
 *
 *	P1  no table is read that was freed, or whose bytes are not there yet	(assertions in the reader)
 *	P2  every retired table is freed in the end, even if readers never rest	(ltl all_freed)
 *	P3  so a dead reader holds nothing back					(P2 with deaths; REACH_DEATH)
 *
 * Memory.  Promela is sequentially consistent, machines are not.  Here each process has a store buffer,
 * a channel of depth DEPTH, which a process of its own drains whenever it likes.  A process sees its own
 * buffered stores first.  shm_mb() and shm_xchg() wait until the own buffer is empty; a release store
 * goes behind all that is in it; a plain store may overtake one to another word.  That is SPARC's PSO,
 * weaker than x86.  Not modelled: loads that happen early (aarch64).  What keeps those in order are
 * shm_deref()'s dependency, rcu_leave()'s release with oldest_reader()'s acquire, and the barriers below;
 * the comments in rcu.c argue it.
 *
 * A killed process's buffer still drains; waitpid() returns only when it is empty, since the kernel has
 * switched away from the process by then.
 *
 * Broken variants, each of which must yield an error: -DNO_READER_BARRIER -DNO_PUBLISHER_BARRIER
 * -DGP_BEFORE_POINTER -DPLAIN_POINTER (shm_store() for shm_assign()) -DREAP_ALIVE (a line is cleared
 * before waitpid()) -DFORK_UNORDERED (rcu_reap()'s store reaches memory after the slot's next process has
 * begun) -DCOOKIE_EARLY (the cookie is gp before the publication; all against P1) -DNO_REAP (against P2).
 * Must be reached: -DREACH_FREE (a table is freed), -DREACH_HELD (one is not, for a reader), -DREACH_REUSE
 * (a publication takes an arena that was freed), -DREACH_DEATH (a table is freed that a dead reader had).
 * -DONE_MORTAL: reader 1 is never killed, which keeps the search for P2 short; `make verify WIDE=1` lets
 * both die there too.
 */
#define NREADERS 2
#define NPUBS 3
#ifndef ARENAS
#define ARENAS 2 /* SHM_ARENAS is 4: then the master never waits; both are searched */
#endif
#define DEPTH 2
#define MASTER NREADERS /* store buffers: the readers', then the master's */

/* Words of shared memory.  Tables are numbered as they are published: 0 .. NPUBS. */
#define PTR 0		       /* seg->rcu->table: number of a table */
#define GP 1		       /* seg->rcu->gp */
#define LINE(i) (2 + (i))      /* seg->readers[i].ctr */
#define BYTES(t) (2 + NREADERS + (t))     /* 1: the table's bytes are written */
#define NWORDS (3 + NREADERS + NPUBS)
#define NONE 255
#define ACTIVE 1	       /* RCU_ACTIVE */
#define STEP 2		       /* RCU_STEP */
#define GP_AFTER(t) (STEP * ((t) + 2)) /* gp after the publication that retires table t */
#ifdef COOKIE_EARLY
#define COOKIE(t) (GP_AFTER(t) - STEP)
#else
#define COOKIE(t) GP_AFTER(t)
#endif

byte mem[NWORDS];
chan buf[NREADERS + 1] = [DEPTH] of { byte, byte }; /* word, value */

/* The master's private memory. */
byte current; /* table; those below it are retired or freed */
byte nfreed;  /* freed tables; they go in order, since cookies rise: free_what_is_passed() checks it */
bool freed[NPUBS + 1];

bool killed[NREADERS]; /* SIGKILL is on its way: no further step */
bool dead[NREADERS];   /* waitpid would return it */
#ifdef REACH_DEATH
bool died_with[NPUBS + 1]; /* a reader died inside a section that had this table */
#endif

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

proctype reader(byte me)
{
	byte g; /* gp as loaded */
	byte t = NONE; /* table */

life:	{
		do
		:: load(me, GP, g); /* rcu_enter(): shm_load(&seg->rcu->gp) */
#ifdef NO_READER_BARRIER
		   store_plain(me, LINE(me), g | ACTIVE);
#else
		   xchg(me, LINE(me), g | ACTIVE); /* rcu_enter(): shm_xchg(ctr, gp | RCU_ACTIVE) */
#endif
		   load(me, PTR, t); /* rcu_enter(): shm_deref(seg->rcu->table) */
		   d_step {	     /* the caller reads the table, whenever it likes */
			assert(!freed[t]);
			assert(mem[BYTES(t)] == 1) /* the buffers of others are not ours to see */
		   }
		   d_step { store_release(me, LINE(me), 0); g = 0; t = NONE } /* rcu_leave(): shm_store_release(ctr, 0) */
		od
	} unless {
		d_step {
			killed[me] ->
			killed[me] = false;
#ifdef REACH_DEATH
			if
			:: t != NONE -> died_with[t] = true
			:: else
			fi;
#endif
			dead[me] = true;
			g = 0;
			t = NONE
		}
	}
end:	!dead[me] -> /* reaped: the master forks another one */
	goto life
}

proctype killer()
{
end:	do
	:: d_step { !killed[0] && !dead[0] -> killed[0] = true }
#ifndef ONE_MORTAL
	:: d_step { !killed[1] && !dead[1] -> killed[1] = true }
#endif
	:: break
	od
}

/* rcu_publish() of the table numbered current + 1, which rcu_arena_get() had an arena for. */
inline publish()
{
	store_plain(MASTER, BYTES(current + 1), 1); /* table_end() and all before it */
#ifdef GP_BEFORE_POINTER
	store_plain(MASTER, GP, GP_AFTER(current));
	barrier(MASTER);
	atomic { store_release(MASTER, PTR, current + 1); current++ }
#else
#ifdef PLAIN_POINTER
	store_plain(MASTER, PTR, current + 1);
#else
	store_release(MASTER, PTR, current + 1); /* shm_assign(d->table, t) */
#endif
#ifndef NO_PUBLISHER_BARRIER
	barrier(MASTER); /* shm_mb() */
#endif
	atomic { store_plain(MASTER, GP, GP_AFTER(current)); current++ } /* shm_store(&d->gp, gp); prev is RETIRED */
#endif
}

/* rcu_poll(): arena_reclaim() of each retired table that no line is older than. */
inline free_what_is_passed()
{
	d_step {
		k_ = 0;
		do
		:: k_ < current ->
			if
			:: !freed[k_] && oldest >= COOKIE(k_) ->
				assert(k_ == nfreed);
				freed[k_] = true;
				nfreed++;
#ifdef REACH_DEATH
				assert(!died_with[k_]);
#endif
#ifdef REACH_FREE
				assert(false);
#endif
			:: !freed[k_] && oldest < COOKIE(k_) ->
#ifdef REACH_HELD
				assert(false)
#else
				skip
#endif
			:: else
			fi;
			k_++
		:: else -> break
		od;
		k_ = 0; oldest = 0; seen = 0
	}
}

/* rcu_poll(): oldest_reader() looks at one line after the other, with the world moving in between. */
inline look_at(i)
{
	load(MASTER, LINE(i), seen);
	d_step {
		if
		:: (seen & ACTIVE) && seen - ACTIVE < oldest -> oldest = seen - ACTIVE
		:: else
		fi
	}
}

/* waitpid() returned the reader: rcu_reap(), then the next process for its slot. */
inline reap(i)
{
	if
#ifdef REAP_ALIVE
	:: !dead[i] -> store_plain(MASTER, LINE(i), 0)
#endif
	:: d_step { dead[i] && empty(buf[i]) -> skip };
#ifndef NO_REAP
	   store_plain(MASTER, LINE(i), 0); /* rcu_reap(): shm_store(&seg->readers[slot].ctr, 0) */
#endif
#ifndef FORK_UNORDERED
	   barrier(MASTER); /* fork(): the child sees what its parent stored before */
#endif
	   dead[i] = false
	:: else
	fi
}

/* One turn of the master's loop: children are reaped, then it publishes, or a timer polls. */
proctype master()
{
	byte oldest, seen;

	do
	:: reap(0);
	   reap(1);
	   if
	   :: current < NPUBS && current + 1 - nfreed < ARENAS ->
#ifdef REACH_REUSE
		assert(current + 1 < ARENAS);
#endif
		publish()
	   :: nfreed < current ->
		oldest = 255; /* UINT64_MAX */
		look_at(0);
		look_at(1);
		free_what_is_passed()
	   :: current == NPUBS && nfreed == NPUBS -> break
	   fi
	od
}

ltl all_freed { <> (current == NPUBS && nfreed == NPUBS) }

init {
	d_step {
		mem[PTR] = 0;
		mem[GP] = STEP; /* rcu_writer_new() */
		mem[BYTES(0)] = 1
	}
	atomic {
		run drain(0);
		run drain(1);
		run drain(MASTER);
		run reader(0);
		run reader(1);
		run killer();
		run master()
	}
}
