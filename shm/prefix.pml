/*
 * The model of the prefix index for spin: one bucket of two words (prefix.c), which workers and the notifier store into
 * while the master begins other lives of the engines (prefix_void()).  `make verify` searches all of it;
 * tests/verify/README.md says how to run one case.
 *
 * All words have one tag.  Worker 0 stores for endpoint 0, worker 1 for endpoint 1, the notifier stores for endpoint 0 and
 * removes again.  A lookup reads words and the engine's count.  Each access is a step of its own, and a store that is late
 * is a process that is slow: no process depends on the order of two stores.  A process that is killed makes no further step,
 * which is among the interleavings.
 *
 *	P1  a word that counts was stored for that endpoint, in the life that the lookup has seen of it	(assertion in look())
 *	P2  after prefix_removed() no word of the endpoint counts, if no worker stored meanwhile		(assertion in notifier)
 *
 * The two are searched apart: P1 without the notifier, whose stores are a worker's, and P2 (-DREMOVE) without a lookup.
 *
 * Lost stores are no error: REACH_LOST shows that there are some, and P1 holds all the same.
 *
 * Counts are small, as are CAPACITY, JUMP and REMOVED, and they do not come round: in the program an old word could look
 * fresh after 4,096 lives (shm/README.md).
 *
 * Broken variants, each of which must yield an error: -DTWO_STORES (a word is stored in two halves) -DSMALL_JUMP (a new
 * life is no further than the capacity; both against P1) -DREMOVE_FIRST (only the first word of the endpoint is removed:
 * two that store at the same time leave two, against P2).  Must be reached: -DREACH_LOST (a store takes the place of another
 * endpoint's fresh word) -DREACH_TWO (an endpoint has two words) -DREACH_STALE (a word of a former life is read)
 * -DREACH_FOUND (a word counts after a new life) -DREACH_CAS_LOST (a word changes while it is removed).
 */
#define NENDPOINTS 2
#define NWAYS 2
#ifndef NSTORES /* of worker 0; worker 1 has one */
#define NSTORES 1
#endif
#ifndef NLIVES /* more of an engine, of both together */
#define NLIVES 2
#endif
#define ROUND 64 /* counts come round */
#define CAPACITY 1
#ifdef SMALL_JUMP
#define JUMP 1
#else
#define JUMP 4
#endif
#define REMOVED 16
#define NONE NENDPOINTS

/* A word: endpoint and stamp; and, for the assertions, for whom it was stored in which life. */
typedef word {
	byte ep, stamp;
	byte owner, life
}

word ways[NWAYS];
byte computed[NENDPOINTS], life[NENDPOINTS];
byte storing; /* workers that are about to store for endpoint 0 */
bool stored;  /* one began since the removal did */

#define AGE(now, then) ((now + ROUND - then) % ROUND)

/* own_way(), then ways_of() for an empty one, then the stalest: any one may be that. */
inline choose(e, way)
{
	d_step {
		way = (ways[0].ep == e -> 0 : (ways[1].ep == e -> 1 : NWAYS))
	}
	if
	:: way == NWAYS ->
		d_step {
			way = (ways[0].ep == NONE -> 0 : (ways[1].ep == NONE -> 1 : NWAYS))
		}
	:: else
	fi;
	if
	:: way == NWAYS -> way = 0
	:: way == NWAYS -> way = 1
	:: else
	fi
}

/* prefix_insert(), prefix_stored(): the stamp is read before a way is chosen. */
inline insert(e)
{
	d_step {
		stamp = computed[e];
		in_life = life[e]
	}
	choose(e, w);
#ifdef REACH_LOST
	assert(ways[w].ep == e || ways[w].ep == NONE || AGE(computed[1 - e], ways[w].stamp) > CAPACITY);
#endif
#ifdef TWO_STORES
	ways[w].ep = e;
	d_step {
		ways[w].stamp = stamp;
		ways[w].owner = e;
		ways[w].life = in_life
	}
#else
	d_step {
		ways[w].ep = e;
		ways[w].stamp = stamp;
		ways[w].owner = e;
		ways[w].life = in_life
	}
#endif
#ifdef REACH_TWO
	assert(ways[0].ep != ways[1].ep)
#endif
}

proctype worker(byte e)
{
	byte n, w, stamp, in_life;

	do
	:: n < (e == 0 -> NSTORES : 1) ->
		d_step {
			n++;
			computed[e]++; /* what the request makes it compute */
			if
			:: e == 0 -> storing++; stored = true
			:: else
			fi
		}
		insert(e);
		d_step {
			w = 0;
			stamp = 0;
			in_life = 0;
			if
			:: e == 0 -> storing--
			:: else
			fi
		}
	:: else -> break
	od
}

/* Words are read one after the other; an engine's count when its first word is met (meet()). */
proctype look()
{
	byte k, ep, stamp, owner, in_life, now[NENDPOINTS], seen[NENDPOINTS];
	bool met[NENDPOINTS];

	do
	:: k < NWAYS ->
		d_step {
			ep = ways[k].ep;
			stamp = ways[k].stamp;
			owner = ways[k].owner;
			in_life = ways[k].life;
			k++
		}
		if
		:: ep != NONE ->
			if
			:: !met[ep] ->
				d_step {
					now[ep] = computed[ep];
					seen[ep] = life[ep];
					met[ep] = true
				}
			:: else
			fi;
#ifdef REACH_STALE
			assert(in_life == seen[ep]);
#endif
			if
			:: AGE(now[ep], stamp) <= CAPACITY ->
				assert(owner == ep && in_life == seen[ep]);
#ifdef REACH_FOUND
				assert(seen[ep] == 0)
#endif
			:: else
			fi
		:: else
		fi;
		d_step {
			ep = 0;
			stamp = 0;
			owner = 0;
			in_life = 0
		}
	:: else -> break
	od
}

proctype master()
{
	byte n, e;

	do
	:: n < NLIVES ->
		n++;
		if
		:: e = 0
		:: e = 1
		fi;
		d_step {
			computed[e] = computed[e] + JUMP;
			life[e]++;
			e = 0
		}
	:: else -> break
	od
}

/* The engine of endpoint 0 stores the block before the cut, and removes it. */
proctype notifier()
{
	byte k, w, stamp, in_life, seen;
	bool alone;

	insert(0);
	d_step {
		alone = storing == 0;
		stored = false;
		k = 0;
		w = 0;
		stamp = 0;
		in_life = 0
	}
	do
	:: k < NWAYS ->
		if
		:: ways[k].ep == 0 ->
			seen = ways[k].stamp;
			d_step { /* the compare-and-swap */
				if
				:: ways[k].ep == 0 && ways[k].stamp == seen ->
					ways[k].stamp = (computed[0] + ROUND - REMOVED) % ROUND
				:: else
#ifdef REACH_CAS_LOST
					-> assert(false)
#endif
				fi
			}
#ifdef REMOVE_FIRST
			break
#endif
		:: else
		fi;
		k++
	:: else -> break
	od;
	skip; /* no jump into a d_step */
	d_step {
		k = 0;
		do
		:: k < NWAYS ->
			assert(!alone || stored || ways[k].ep != 0 ||
				AGE(computed[0], ways[k].stamp) > CAPACITY);
			k++
		:: else -> break
		od
	}
}

init {
	byte k;

	d_step {
		do
		:: k < NWAYS ->
			ways[k].ep = NONE;
			k++
		:: else -> break
		od
	}
	atomic {
		run worker(0);
		run worker(1);
		run master();
#ifdef REMOVE
		run notifier()
#else
		run look()
#endif
	}
}
