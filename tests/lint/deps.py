#!/usr/bin/env python3
"""Rooms: who may include whom, the one door of each third party, and no circle between files.

A room is a folder of the product.  ROOMS names the rooms that each room may include.  FILES excuses one
include of one file.  A circle is a set of files that include each other, directly or through others;
x.c and x.h count as one file.  CIRCLES excuses a circle, and says why.

deps.py           prints each broken rule, and fails if there is one
deps.py --report  prints the size of each room, the includes between rooms, and all circles
"""
import collections
import os
import re
import sys

from csource import sources

# room: the rooms it may include; every room may include itself
ROOMS = {
    "shm/base": "",
    "shm/core": "shm/base",
    "shm": "shm/core shm/base",
    "proto/http": "shm/base",
    "proto/json": "shm/base",
    "proto/answer": "proto/json shm/base",
    "proto/wire": "proto/json shm/base",
    "proto/tls": "shm/base",
    "master/config": "proto/http proto/json proto/tls shm/base",
    "master/probe": "proto/http proto/json proto/tls proto/wire shm shm/core shm/base",
    "master/fleet": "master/probe master/config proto/http proto/json proto/wire shm shm/core shm/base",
    "master/supervise": "master/fleet master/probe master/config shm shm/core shm/base",
    "master/notifier": "proto/tls proto/wire shm shm/core shm/base",
    "master/exporter": "proto/http proto/json shm shm/core shm/base",
    "master/topology": "master/config shm/base",
    "master/pdfleet": "master/topology master/config proto/http proto/json shm/base",
    "master/pdctl": "",
    "master/pdtop": "master/pdctl",
    # main.c wires the processes
    "master": "master/supervise master/fleet master/probe master/config master/topology master/notifier master/exporter worker proto/tls shm shm/core shm/base",
    "worker/base": "proto/http proto/json shm shm/core shm/base",
    "worker/net": "worker/base proto/tls proto/http proto/json shm shm/core shm/base",
    "worker/schedule": "worker/handshake worker/net worker/base proto/http proto/json shm shm/core shm/base",
    "worker/handshake": "worker/net worker/base proto/json proto/answer shm shm/core shm/base",
    "worker/attempt": "worker/handshake worker/schedule worker/net worker/base "
                      "proto/http proto/json proto/answer shm shm/core shm/base",
    "worker/request": "worker/attempt worker/handshake worker/schedule worker/net worker/base "
                      "proto/http proto/json proto/answer proto/wire shm shm/core shm/base",
    "worker": "worker/request worker/attempt worker/handshake worker/schedule worker/net worker/base proto/tls shm shm/core shm/base",
}
# (file, header): why this include against the direction is right
FILES = {
    ("shm/core/seg.c", "shm/table.h"): "seg.c lays the segment out, so it knows the size of each structure",
    ("shm/core/seg.c", "shm/metrics_layout.h"): "seg.c lays the segment out, so it knows the size of each structure",
    ("shm/core/rcu.c", "shm/table.h"): "the table is what a reader protects",
    ("shm/core/rcu.c", "shm/api_keys.h"): "the same of the keys of clients",
    ("master/fleet/explain.c", "worker/schedule/policy.h"): "the policy itself says what it compares: a second copy would lie one day",
    ("shm/core/seg.c", "shm/api_keys.h"): "seg.c lays the segment out, so it knows the size of each structure",
}
# the files of a circle (without .c and .h): why it is one
CIRCLES = {
}
# header (regex): the files (regex) that may include it; tests may use the libraries to compare with
DOORS = {
    r"zmq": r"master/notifier/.*",
    r"urcu": r"shm/core/atomic\.h",
    r"http_parser": r"proto/http/http\.c",
    r"json-c": r"proto/json/json_small\.c|master/fleet/(status_json|json_out|explain|requests)\.c|master/exporter/batch\.c|master/pdtop/sample\.c",
    r"event2/|event\.h|evutil": r"(master|worker)/.*",
    r"openssl/sha": r"master/pdctl/key\.c|worker/request/key_seen\.c",
    r"openssl/(?!sha)": r"proto/tls/.*|master/probe/wire\.c|worker/net/tls(_ticket)?\.c",
    r"ncurses": r"master/pdtop/screen\.c",
    r"yaml\.h": r"master/config/.*",
    r"ares": r"master/probe/resolve\.c",
    r"seccomp\.h": r"master/supervise/sandbox\.c",
    r"systemd/": r"master/.*",
    r"sys/socket|netinet/|netdb": r"(master|worker|shm)/.*",
    r"shm/core/atomic\.h": r"shm/.*",  # memory orders are spelled in shm/
    r"stdatomic\.h": r"shm/.*",
}
ATOMICS = re.compile(r"__atomic_|__sync_|uatomic_|\b(cmm|CMM)_|_Atomic\b|\brcu_dereference|\brcu_assign")
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*([<\"])([^>\"]+)[>\"]", re.M)
PRODUCT = ("master", "worker", "shm", "proto")
faults = []


def room_of(path):
    return path.rpartition("/")[0]


def node_of(path):
    return path.rpartition(".")[0]


def may_include(room, other):
    return other == room or other in ROOMS[room].split()


def includes(src):
    """(line, in quotes, header) of each include."""
    return [(src.line(m.start()), m[1] == '"', m[2]) for m in INCLUDE.finditer(src.text)]


def check_rooms(product, have):
    used = set()
    for src in product:
        room = room_of(src.path)
        if room not in ROOMS:
            faults.append(f"{src.path}: tests/lint/deps.py has no room {room}")
            continue
        for line, quoted, header in includes(src):
            at = f"{src.path}:{line}: {header}"
            if header in have and not may_include(room, room_of(header)):
                used.add((src.path, header))
                if (src.path, header) not in FILES:
                    faults.append(f"{at}: {room}/ may not include {room_of(header)}/ (ROOMS in tests/lint/deps.py)")
            if header.startswith("tests/"):
                faults.append(f"{at}: the product does not include its tests")
            for what, door in DOORS.items():
                if re.match(what, header) and not re.fullmatch(door, src.path):
                    faults.append(f"{at}: is included in {door} only (DOORS in tests/lint/deps.py)")
        atomic = None if src.path.startswith("shm/") else ATOMICS.search(src.code)
        if atomic:
            faults.append(f"{src.path}:{src.line(atomic.start())}: {atomic[0]}: atomics are in shm/ only")
    for one in sorted(set(FILES) - used):
        faults.append(f"tests/lint/deps.py: FILES: {one[0]} does not need {one[1]} any more: remove the row")
    for room in sorted(set(ROOMS) - {room_of(p) for p in have}):
        faults.append(f"tests/lint/deps.py: ROOMS: there is no room {room}")


def check_names(everything):
    for src in everything:
        for line, quoted, header in includes(src):
            if quoted and not os.path.isfile(header):
                faults.append(f"{src.path}:{line}: {header}: an include in quotes is written from the root")


def graph(product, have):
    edges = collections.defaultdict(set)
    for src in product:
        edges[node_of(src.path)] |= {node_of(h) for _, _, h in includes(src) if h in have} - {node_of(src.path)}
    return edges


def circles(edges):
    """The strongly connected components of more than one node (Tarjan), each sorted."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found


def check_circles(found):
    used = set()
    for circle in found:
        excuse = [row for row in CIRCLES if set(circle) <= set(row.split())]
        used.update(row for row in CIRCLES if len(set(circle) & set(row.split())) > 1)
        if not excuse:
            faults.append(f"circle of {len(circle)} files: {' '.join(circle)} (CIRCLES in tests/lint/deps.py)")
    for row in sorted(set(CIRCLES) - used):
        faults.append(f"tests/lint/deps.py: CIRCLES: there is no circle of {row}: remove the row")


def report(product, have, found):
    lines, uses = collections.Counter(), collections.defaultdict(collections.Counter)
    for src in product:
        lines[room_of(src.path)] += src.text.count("\n")
        for header in {h for _, _, h in includes(src) if h in have and room_of(h) != room_of(src.path)}:
            uses[room_of(src.path)][room_of(header)] += 1
    for room in ROOMS:
        files = sum(room_of(s.path) == room for s in product)
        print(f"{room:17} {files:3} files {lines[room]:6} lines  includes " + ", ".join(f"{r} {n}" for r, n in sorted(uses[room].items())))
    for circle in found:
        print(f"circle of {len(circle)}: {' '.join(circle)}")


def main():
    product = sources(*PRODUCT)
    have = {src.path for src in product}
    found = circles(graph(product, have))
    if sys.argv[1:] == ["--report"]:
        report(product, have, found)
        return 0
    check_rooms(product, have)
    check_names(product + sources("tests"))
    check_circles(found)
    print("\n".join(faults))
    return 1 if faults else 0


sys.exit(main())
