/*
 * The model of shm/load.c for spin: two workers reserve and give back at one endpoint, may be killed at
 * any step, and are reaped by the master; a new worker then begins in the slot, with the old one's seq.
 * `make verify` searches all of it; tests/verify/README.md says how to run one case.
 *
 * An endpoint has two words, requests and prompt tokens, under one journal.  A request's share of the
 * tokens is added after it has its place and taken off before the place is given back.  Amounts are 1.
 *
 *	P1  requests never exceed LIMIT						(assertion at the CAS)
 *	P2  a dead worker's rows, once repaired, are what it held: nothing
 *	    leaks, nothing is given back twice					(assertions in the reaper)
 *	P3  at rest each word is the sum of the rows				(auditor)
 *	P4  no requests, no tokens: a slot with count 0 may be given away	(assertion at the CAS)
 *
 * Ghosts (`own`) change in the same step as a word: what was really taken.  Seqs are few, and wrapping
 * around is not modelled: names_scrub() keeps names younger than half the range.
 *
 * Memory is sequentially consistent here.  Words and acked change by shm_cas() alone, a full barrier.
 * Seq, change, journal and row are written by their worker and read by the master after waitpid(), when
 * all stores of the dead process are out; no other process reads them.  What is left is their order with the
 * CAS between them, and they are not moved across it.  In op_happened() an acquire load keeps the word
 * before acked; -DACKED_READ_FIRST is what happens without.
 *
 * Broken variants, each of which must yield an error: -DCHECK_THEN_ADD (against P1) -DCOUNTER_BESIDE_ROW
 * (no journal) -DNO_ACKED -DACKED_AFTER_CAS -DACKED_LOWERED (a store, not upward only)
 * -DACKED_READ_FIRST -DJOURNAL_CLEARED_FIRST (before the row is stored) -DJOURNAL_AFTER_CAS
 * -DREAPER_UNRECORDED (load_reap() overwrites a name without recording it; all against P2)
 * -DREQUESTS_FIRST (load_reap() gives back requests before tokens: against P4).  Must be reached:
 * -DREACH_BY_WORD -DREACH_BY_ACKED -DREACH_NOT_HAPPENED -DREACH_REFUSED -DREACH_CAS_LOST -DREACH_REST.
 */
#define NWORKERS 2
#ifndef SEQS0 /* operations of each worker, over all its lives */
#define SEQS0 3
#define SEQS1 3
#endif
#define LIMIT 2 /* max_inflight: each has one and both ask for another, or one has both */
#define REQUESTS 0
#define TOKENS 1
#define NOBODY 0 /* no name; else worker + 1 */

/* seg->eps[ep].count and .tokens */
typedef word {
	byte count;
	byte who, seq; /* the name: who changed it last, by which operation */
};
word words[2];

/* seg->procs[worker] */
typedef slot {
	byte journal; /* 0, or which word + 1 */
	byte journal_seq;
	byte before, plus, minus; /* change */
	byte acked;
	byte seq;
	byte row[2]; /* seg_row(): held, tokens */
	byte own[2]; /* ghost */
	bool killed, dead, resting;
};
slot procs[NWORKERS];

#ifdef REACH_BY_WORD
#define REACHED_BY_WORD assert(false)
#else
#define REACHED_BY_WORD skip
#endif
#ifdef REACH_BY_ACKED
#define REACHED_BY_ACKED assert(false)
#else
#define REACHED_BY_ACKED skip
#endif
#ifdef REACH_NOT_HAPPENED
#define REACHED_NOT_HAPPENED assert(false)
#else
#define REACHED_NOT_HAPPENED skip
#endif
#ifdef REACH_REFUSED
#define REACHED_REFUSED assert(false)
#else
#define REACHED_REFUSED skip
#endif
#ifdef REACH_CAS_LOST
#define REACHED_CAS_LOST assert(false)
#else
#define REACHED_CAS_LOST skip
#endif

#define SAME_AS_SEEN(w) (w.count == seen.count && w.who == seen.who && w.seq == seen.seq)
#define SEE(w) seen.count = w.count; seen.who = w.who; seen.seq = w.seq
#define FORGET seen.count = 0; seen.who = NOBODY; seen.seq = 0

/* name_record(): raises acked of the name just seen. */
inline name_record()
{
	if
	:: seen.who != NOBODY ->
#ifdef ACKED_LOWERED
		procs[seen.who - 1].acked = seen.seq;
#else
		acked = procs[seen.who - 1].acked; /* shm_load(acked) */
		do
		:: acked >= seen.seq -> break
		:: else -> /* shm_cas(acked, old, name) */
			d_step {
				if
				:: procs[seen.who - 1].acked == acked ->
					procs[seen.who - 1].acked = seen.seq;
					acked = seen.seq
				:: else -> acked = procs[seen.who - 1].acked
				fi
			}
		od;
		acked = 0
#endif
	:: else
	fi
}

/* The word as it is after the CAS, and what must be true of both then. */
inline changed(me, which, up, down, name, name_seq)
{
	words[which].count = words[which].count + up - down;
	words[which].who = name;
	words[which].seq = name_seq;
	procs[me].own[which] = procs[me].own[which] + up - down;
	assert(words[REQUESTS].count <= LIMIT);				/* P1 */
	assert(words[REQUESTS].count > 0 || words[TOKENS].count == 0)	/* P4 */
}

/* word_add(); `done` is what it returns.  `me` is whose share changes: for ghosts alone. */
inline word_add(me, which, up, down, name, name_seq, record)
{
	d_step { SEE(words[which]) } /* shm_load(word) */
	do
	:: up > 0 && which == REQUESTS && seen.count >= LIMIT -> /* return false */
		REACHED_REFUSED;
		break
	:: else ->
#ifdef CHECK_THEN_ADD
		d_step { /* an atomic add, which records what it overwrites: the limit alone is lost */
			if
			:: words[which].who != NOBODY && procs[words[which].who - 1].acked < words[which].seq ->
				procs[words[which].who - 1].acked = words[which].seq
			:: else
			fi;
			changed(me, which, up, down, name, name_seq);
			done = true
		}
		break
#else
#if !defined(NO_ACKED) && !defined(ACKED_AFTER_CAS)
		if
		:: record -> name_record()
		:: else
		fi;
#endif
		d_step { /* shm_cas(word, old, new) */
			if
			:: SAME_AS_SEEN(words[which]) ->
				changed(me, which, up, down, name, name_seq);
				done = true
			:: else ->
				REACHED_CAS_LOST;
				SEE(words[which])
			fi
		}
		if
		:: done ->
#ifdef ACKED_AFTER_CAS
			name_record();
#endif
			break
		:: else
		fi
#endif
	od;
	atomic { FORGET } /* not a d_step, which no break may jump to */
}

#define self procs[me]

proctype worker(byte me)
{
	word seen;
	byte acked, which, up, before;
	bool done;

life:	{
		do
		:: atomic { self.seq < (me == 0 -> SEQS0 : SEQS1) ->
			if
			:: true -> which = REQUESTS; up = 1 /* load_reserve() */
			:: self.row[REQUESTS] > self.row[TOKENS] -> which = REQUESTS; up = 0 /* load_release() */
			:: self.row[REQUESTS] > self.row[TOKENS] -> which = TOKENS; up = 1 /* load_tokens_add() */
			:: self.row[TOKENS] > 0 -> which = TOKENS; up = 0 /* load_tokens_sub() */
			fi
		   }
		   /* operate() */
		   d_step { before = self.row[which]; self.seq++ } /* shm_store(&self->seq, seq) */
#ifndef COUNTER_BESIDE_ROW
#ifndef JOURNAL_AFTER_CAS
		   d_step { self.before = before; self.plus = up; self.minus = 1 - up }	  /* &self->change */
		   d_step { self.journal_seq = self.seq; self.journal = which + 1 }	  /* &self->journal */
#endif
#endif
		   word_add(me, which, up, (1 - up), me + 1, self.seq, true);
#ifdef JOURNAL_AFTER_CAS
		   d_step { self.before = before; self.plus = up; self.minus = 1 - up }
		   d_step { self.journal_seq = self.seq; self.journal = which + 1 }
#endif
#ifdef JOURNAL_CLEARED_FIRST
		   self.journal = 0;
#endif
		   if
		   :: done -> self.row[which] = before + up - (1 - up) /* shm_store(share, before + delta) */
		   :: else
		   fi;
		   d_step { /* shm_store_release(&self->journal, 0) */
			self.journal = 0;
			assert(self.row[which] == self.own[which]);
			which = 0; up = 0; before = 0; done = false
		   }
		:: break /* its requests are on their way */
		od;
		self.resting = true;
		false /* until it is killed */
	} unless {
		d_step {
			self.killed ->
			self.killed = false;
			self.dead = true;
			self.resting = false;
			FORGET;
			acked = 0; which = 0; up = 0; before = 0; done = false
		}
	}
end:	!self.dead -> /* reaped: a new one in the same slot */
	goto life
}

proctype killer()
{
end:	do
	:: d_step { !procs[0].killed && !procs[0].dead -> procs[0].killed = true }
	:: d_step { !procs[1].killed && !procs[1].dead -> procs[1].killed = true }
	od
}

/* op_happened() */
inline op_happened(d)
{
#ifdef ACKED_READ_FIRST
	acked = procs[d].acked;
#endif
	d_step { SEE(words[procs[d].journal - 1]) } /* shm_load_acquire(at) */
	if
	:: seen.who == d + 1 && seen.seq == procs[d].journal_seq ->
		REACHED_BY_WORD;
		happened = true
	:: else ->
#ifndef ACKED_READ_FIRST
		acked = procs[d].acked; /* shm_load(&...acked) */
#endif
		if
		:: acked == procs[d].journal_seq ->
			REACHED_BY_ACKED;
			happened = true
		:: else -> REACHED_NOT_HAPPENED
		fi
	fi;
	d_step { FORGET; acked = 0 }
}

/* load_reap(): the row's worth is taken off one word. */
inline give_back(d, which)
{
	if
	:: procs[d].row[which] > 0 ->
#ifdef REAPER_UNRECORDED
		word_add(d, which, 0, procs[d].row[which], NOBODY, 0, false);
#else
		word_add(d, which, 0, procs[d].row[which], NOBODY, 0, true);
#endif
		done = false
	:: else
	fi
}

/* The master, after waitpid() returned the worker: load_reap(). */
proctype reaper()
{
	word seen;
	byte acked, d;
	bool done, happened;

end:	do
	:: atomic {
		if
		:: procs[0].dead -> d = 0
		:: procs[1].dead -> d = 1
		fi
	   }
	   if /* journal_repair() */
	   :: procs[d].journal != 0 ->
		op_happened(d);
		d_step {
			procs[d].row[procs[d].journal - 1] = procs[d].before;
			if
			:: happened ->
				procs[d].row[procs[d].journal - 1] =
					procs[d].before + procs[d].plus - procs[d].minus
			:: else
			fi;
			procs[d].journal = 0;
			happened = false
		}
	   :: else
	   fi;
	   d_step {
		assert(procs[d].row[REQUESTS] >= procs[d].own[REQUESTS]); /* P2: nothing leaks */
		assert(procs[d].row[TOKENS] >= procs[d].own[TOKENS]);
		assert(procs[d].row[REQUESTS] <= procs[d].own[REQUESTS]); /* P2: nothing twice */
		assert(procs[d].row[TOKENS] <= procs[d].own[TOKENS])
	   }
#ifdef REQUESTS_FIRST
	   give_back(d, REQUESTS);
	   give_back(d, TOKENS);
#else
	   give_back(d, TOKENS);
	   give_back(d, REQUESTS);
#endif
	   d_step {
		procs[d].row[REQUESTS] = 0;
		procs[d].row[TOKENS] = 0;
		assert(procs[d].own[REQUESTS] == 0 && procs[d].own[TOKENS] == 0);
		/* variables that are not read any more */
		procs[d].journal_seq = 0; procs[d].before = 0; procs[d].plus = 0; procs[d].minus = 0;
		procs[d].dead = false;
		d = 0
	   }
	od
}

/* P3, when no operation is open and no dead worker waits to be reaped. */
proctype auditor()
{
end:	do
	:: d_step {
		procs[0].resting && procs[1].resting ->
#ifdef REACH_REST
		assert(words[REQUESTS].count == 0);
#endif
		assert(words[REQUESTS].count == procs[0].row[REQUESTS] + procs[1].row[REQUESTS]);
		assert(words[TOKENS].count == procs[0].row[TOKENS] + procs[1].row[TOKENS])
	   }
	od
}

init {
	atomic {
		run worker(0);
		run worker(1);
		run killer();
		run reaper();
		run auditor()
	}
}
