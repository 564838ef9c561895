#!/usr/bin/env python3
"""Functions that know no size, in the product's C; `lint: reason` on the line or the one above excuses.

Functions of more than LONG lines are printed too, but fail nothing.
"""
import re
import sys

from csource import sources

INSTEAD = {
    "strcpy": "memcpy with a known length", "strcat": "memcpy with a known length", "strncpy": "memcpy with a known length",
    "stpcpy": "memcpy with a known length", "strncat": "memcpy with a known length",
    "sprintf": "snprintf", "vsprintf": "vsnprintf", "gets": "fgets", "scanf": "strtoul", "strtok": "strcspn",
    "atoi": "strtol, which tells an error", "atol": "strtol, which tells an error", "atoll": "strtoll, which tells an error",
    "atof": "strtod, which tells an error", "alloca": "an array of fixed size, or the heap", "tmpnam": "mkstemp", "mktemp": "mkstemp",
}
CALL = re.compile(r"\b(" + "|".join(INSTEAD) + r")\s*\(")
LONG = 80


def main():
    bad = 0
    for src in sources("master", "worker", "shm", "proto"):
        lines = src.text.split("\n")
        for m in CALL.finditer(src.code):
            n = src.line(m.start())
            if not any("lint: " in text for text in lines[max(0, n - 2):n]):
                print(f"{src.path}:{n}: {m.group(1)}: use {INSTEAD[m.group(1)]}, or say `lint: why not`")
                bad = 1
        for start, end, name in src.functions:
            size = src.text.count("\n", start, end) + 1
            if size > LONG:
                print(f"{src.path}:{src.line(start)}: warning: {name}() has {size} lines")
    return bad


sys.exit(main())
