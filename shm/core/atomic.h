/*
 * The one door to liburcu's primitives.  In a TSan build the same names stand for C11 atomics, since
 * TSan takes the volatile accesses and inline assembly of liburcu 0.13 for races.
 *
 * Only shm/ includes this; memory orders are spelled nowhere else.
 */
#pragma once
#include <stdint.h>

#ifdef PDROUTER_TSAN
#define shm_load(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define shm_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define shm_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define shm_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define shm_xchg(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST) /* lint: word */
#define shm_or(p, v) ((void)__atomic_fetch_or((p), (v), __ATOMIC_SEQ_CST))
#define shm_add(p, v) ((void)__atomic_fetch_add((p), (v), __ATOMIC_RELAXED))
#define shm_mb() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#define shm_deref(p) __atomic_load_n(&(p), __ATOMIC_ACQUIRE)
#define shm_assign(p, v) __atomic_store_n(&(p), (v), __ATOMIC_RELEASE)
static inline uint64_t
shm_cas(uint64_t *p, uint64_t old, uint64_t new)
{
	(void)__atomic_compare_exchange_n(p, &old, new, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return old;
}
#else
/* Without this liburcu's pointer macros are calls into a library that we do not link. */
#define URCU_INLINE_SMALL_FUNCTIONS
#include <urcu/arch.h>
#include <urcu/pointer.h>
#include <urcu/uatomic.h>
#define shm_load(p) CMM_LOAD_SHARED(*(p))
#define shm_store(p, v) CMM_STORE_SHARED(*(p), (v))
#define shm_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define shm_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define shm_xchg(p, v) uatomic_xchg((p), (v))
#define shm_add(p, v) uatomic_add((p), (v)) /* a counter: orders nothing */
#define shm_mb() cmm_smp_mb()
#define shm_deref(p) rcu_dereference(p)
#define shm_assign(p, v) rcu_assign_pointer((p), (v))
static inline uint64_t
shm_cas(uint64_t *p, uint64_t old, uint64_t new)
{
	return uatomic_cmpxchg(p, old, new); /* a full barrier; returns what stood there */
}
static inline void
shm_or(uint64_t *p, uint64_t bits)
{
	cmm_smp_mb__before_uatomic_or(); /* some machines' uatomic_or orders nothing by itself */
	uatomic_or(p, bits);
	cmm_smp_mb__after_uatomic_or();
}
#endif
/* Raises *p to at least `least`.  Others may raise it at the same time. */
static inline void
shm_raise(uint64_t *p, uint64_t least)
{
	uint64_t seen = shm_load(p), old;

	while (seen < least) {
		old = seen;
		seen = shm_cas(p, old, least);
		if (seen == old)
			return;
	}
}
