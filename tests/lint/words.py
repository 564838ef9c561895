#!/usr/bin/env python3
"""Words that the project has retired, in code, comments and READMEs of the folders that are clean of them.

RETIRED names each word once: what is matched, what stands in its place, and, where the word has another
meaning that stays, a pattern of lines that are right or the folders in which the word is refused.  In names a `_` ends a word like a space.
A line that must carry such a word (the name that another program gives a thing) says `lint: word`.

words.py                 checks the folders of CLEAN, and fails if one of the words is there
words.py FOLDER...       checks these
words.py --count         the number of hits of each folder and word, in all folders
"""
import collections
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# grows until it is the whole project: a folder with all that is in it
CLEAN = [
    "Makefile", "README.md", "etc", "systemd", "tests/README.md", "tests/bench", "tests/chaos", "tests/data", "tests/e2e", "tests/engine", "tests/fuzz", "tests/lint", "tests/tools", "tests/unit/master", "tests/verify", "master",
    "shm", "proto", "tests/torture", "tests/unit/proto", "tests/unit/shm",
    "worker", "tests/unit/worker",
]
NOT_READ = ["tests/lint/words.py", "tests/data/", "tests/fuzz/corpus/", "etc/CHANGELOG.md"]
ENDINGS = (".c", ".h", ".py", ".sh", ".md", ".yaml", ".pml")
FOLDERS = ["master", "worker", "shm", "proto", "tests", "etc", "systemd", "README.md", "Makefile"]

WORKER = ("worker/", "tests/unit/worker/", "tests/e2e/", "README.md")
ROOMS = ("worker/request/", "worker/attempt/", "worker/handshake/", "worker/net/", "worker/base/", "worker/worker.c",
         "tests/unit/worker/request/", "tests/unit/worker/attempt/", "tests/unit/worker/handshake/", "tests/unit/worker/net/",
         "tests/unit/worker/base/")
PLAIN = ROOMS + ("master/", "shm/", "proto/", "etc/", "systemd/", "README.md") # a pronoun does not name the process, the field or the user
# (pattern of the word, what to write, pattern of lines that are right although they match, folders; None: all)
RETIRED = [
    (r"pairs?", "attempt; of several: branch", r"[Pp]airs? (with|of)|engine[ _]pairs?|key.value pair|socketpair", WORKER),
    (r"front_\w+|struct front", "client", r"in_front_of", None),
    (r"REQ_EXCHANGE|exchange_\w+|exchange\.[ch]", "leg; SERVE, attempt", r"compare_exchange_\w+", None),
    (r"questions?", "lookup", r"DNS|dns|name server", ("worker/", "master/", "shm/", "proto/", "tests/e2e/", "tests/unit/")),
    (r"in vain", "failed; spurious", None, None),
    (r"hand(s|ed|ing)?[-_ ]?overs?", "KV parameters, kv_params; KV handoff", None, None),
    (r"retells?|retold|used[-_ ]up", "resend, resent; spent", None, None),
    (r"early", "speculative (answer)", r"too early", WORKER),
    (r"lets?[-_ ]go|letting[-_ ]go", "release", None, None),
    (r"apart", "detached", r"(tell|told|tells)[^.]{0,40} apart|apart from|( ms| s|bytes|minutes) apart", WORKER),
    (r"errands?", "background request", None, None),
    (r"story|stories", "test, scenario", None, None),
    (r"\w+_places?|places?_\w+|free(d|s)? places?|places? (in|of) the queue", "slot", r"in_place|replace|place_of|every_place",
     ("worker/", "shm/", "tests/e2e/", "tests/unit/worker/", "tests/unit/shm/", "tests/torture/", "README.md")),
    (r"lanes?", "cursor partition", None, WORKER),
    (r"verdicts?", "outcome", None, None),
    (r"judge[sd]?", "record, check", None, None),
    (r"ill", "failing", r"SEGV", None),
    (r"spoke", "output started", None, None),
    (r"heard", "kv_params delivered; seen", None, None),
    (r"both[-_ ]silent", "ambiguous timeout", None, None),
    (r"borrow(s|ed|ing|er)?|lend(s|ing|er)?|lent", "move a reservation", r"connection|connpool", None),
    (r"promised", "declared", None, None),
    (r"kept_bytes|bytes_kept", "buffered", None, None),
    (r"wish(es|ed)?", "route override", None, None),
    (r"lulls?", "idle period", None, None),
    (r"beats?", "heartbeat", None, None),
    (r"last[-_ ]words", "crash note", None, None),
    (r"whoever|(any|some|every|no)body", "the process, request or user that is meant", r"NOBODY|::test_", PLAIN),
    (r"(go|goes|going|gone)[-_ ]on[-_ ]with", "continue", None, PLAIN),
    (r"of (ours|theirs)|looks? (it |them )?over|looked over", "of this router, of the workers; check", None, PLAIN),
    (r"(is|are|was|were) told|tells? of|told (of|in|as|by)", "gets; reports; stored", None,
     ROOMS + ("shm/", "proto/", "etc/", "systemd/", "README.md")),
    (r"TAKEN_\w+", "HANDOFF_{OK,NONE,RETRY,BAD}", None, None),
    (r"LEAVES_\w+", "CLEANUP_{NONE,KV,ABORT}", None, None),
]
# a word in capitals is meant so; another may stand in a constant's name too
WORDS = [(re.compile(rf"(?<![A-Za-z])(?:{word})(?![A-Za-z])", 0 if re.search("[A-Z]{4}", word) else re.I), new, ok and re.compile(ok), where)
         for word, new, ok, where in RETIRED]

def files(folders):
    for folder in folders:
        path = os.path.join(ROOT, folder)
        if os.path.isfile(path):
            yield folder
        for at, below, names in os.walk(path):
            below[:] = [d for d in below if d not in ("__pycache__", "build")]
            for name in names:
                path = os.path.relpath(os.path.join(at, name), ROOT)
                if path.endswith(ENDINGS) and not path.startswith(tuple(NOT_READ)):
                    yield path


def hits(path):
    """(line number, word, what to write)"""
    with open(os.path.join(ROOT, path), errors="replace") as f:
        for n, line in enumerate(f, 1):
            if "lint: word" in line:
                continue
            for pattern, new, right, where in WORDS:
                found = pattern.search(line) if where is None or path.startswith(where) else None
                if found and not (right and right.search(line)):
                    yield n, found[0], new


def count():
    table = collections.defaultdict(collections.Counter)
    for path in files(FOLDERS):
        for _, word, _ in hits(path):
            table["/".join(path.split("/")[:2]) if "/" in path else path][word.lower()] += 1
    for folder in sorted(table):
        print(f"{folder:22} {sum(table[folder].values()):5}  " + ", ".join(f"{w} {n}" for w, n in table[folder].most_common()))


def main():
    if sys.argv[1:] == ["--count"]:
        count()
        return 0
    bad = 0
    for path in files(sys.argv[1:] or CLEAN):
        for n, word, new in hits(path):
            print(f"{path}:{n}: \"{word}\" is retired, write: {new} (tests/lint/words.py)")
            bad = 1
    return bad


sys.exit(main())
