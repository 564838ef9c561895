#!/usr/bin/env python3
"""Memory orders of shm/: who keeps an order says with which function it pairs, and that one says it back.

- `Pairs with f()` names a function of shm/, worker/ or master/;
- a comment in f(), or above it, names the first function too;
- a function that uses an ordered primitive has such a comment.  Not shm_cas(), shm_xchg() and shm_or():
  they are used where a word has several writers, whether or not an order matters too.
"""
import re
import sys

from csource import sources

SAYS = re.compile(r"\bPairs with\b(.{0,80})")
NAME = re.compile(r"\b([a-z_]\w*)\(\)")
ORDERED = re.compile(r"\b(shm_load_acquire|shm_store_release|shm_mb|shm_deref|shm_assign|__atomic_\w+|cmm_smp_\w+)\b")
DOOR = "shm/core/atomic.h"


def main():
    faults = []
    shm = sources("shm")
    where = {}
    for src in shm + sources("worker", "master"):
        for _, _, name in src.functions:
            where.setdefault(name, src)
    for src in shm:
        if src.path == DOOR:
            continue
        speaks = set()
        for offset, text in src.comments:
            me = src.function_at(offset)
            for said in SAYS.finditer(text):
                at = f"{src.path}:{src.line(offset)}"
                named = NAME.search(said.group(1))
                if not named:
                    faults.append(f"{at}: pairs with what?  Name the function: `f()`")
                    continue
                speaks.add(me)
                other = named.group(1)
                if other not in where:
                    faults.append(f"{at}: {me}() pairs with {other}(), which does not exist")
                elif not any(f"{me}()" in c for c in where[other].comments_of(other)):
                    faults.append(f"{at}: {me}() pairs with {other}(), whose comments do not name {me}()")
        for start, end, name in src.functions:
            used = ORDERED.search(src.code, start, end)
            if used and name not in speaks:
                faults.append(f"{src.path}:{src.line(used.start())}: {name}() uses {used.group(1)} and no comment says what it pairs with")
    print("\n".join(faults))
    return 1 if faults else 0


sys.exit(main())
