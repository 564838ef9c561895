#!/usr/bin/env python3
"""What the release build promises of each program, read from the program itself: a flag that was lost is seen here.

binary.py [FOLDER]   build/release if none is named.  `make test` runs it after the build
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ("pdrouter", "pdctl", "pdfleet", "pdtop", "pdsim")
# machine: (tool and its arguments, what they print, what that is)
BRANCHES = {
    "Advanced Micro Devices X86-64": [
        (("readelf", "-nW"), r"x86 feature:.*\bSHSTK\b", "returns are not protected (SHSTK)"),
        (("objdump", "-d", "--no-show-raw-insn", "--disassemble=main"), r"\bendbr64\b", "jumps are not protected (-fcf-protection)")],
    "AArch64": [
        (("objdump", "-d", "--no-show-raw-insn", "--disassemble=main"), r"\b(paciasp|bti)\b", "branches are not protected (-mbranch-protection)")],
}
ALL = [
    (("readelf", "-hW"), r"Type:\s+DYN \(Position-Independent Executable", "not position-independent (-pie)"),
    (("readelf", "-dW"), r"FLAGS.*\bBIND_NOW\b", "not bound at the start (-z now)"),
    (("readelf", "-lW"), r"GNU_RELRO", "relocated data stays writable (-z relro)"),
    (("readelf", "-lW"), r"GNU_STACK(\s+0x[0-9a-f]+){5} RW ", "the stack can be executed (-z noexecstack)"),
    (("nm", "-D", "--undefined-only"), r"__stack_chk_fail", "no stack protector (-fstack-protector-strong)"),
    (("nm", "-D", "--undefined-only"), r"__(mem|str|sn?printf|vsn?printf|fprintf)\w*_chk", "no checked calls (-D_FORTIFY_SOURCE)"),
]
# of the compiler's command line, which -g leaves in each object; what no instruction of every program shows
FLAGS = ["-fstack-clash-protection", "-fstack-protector-strong", "-fPIE"]
faults = []


def said(tool, path):
    return subprocess.run([*tool, path], capture_output=True, text=True, check=True).stdout


def check(path):
    machine = re.search(r"Machine:\s+(.*)", said(("readelf", "-hW"), path))[1].strip()
    for tool, wanted, fault in ALL + BRANCHES.get(machine, []):
        if not re.search(wanted, said(tool, path)):
            faults.append(f"{path}: {fault}")
    producers = set(re.findall(r"DW_AT_producer\s*:.*?(GNU C\d.*)", said(("readelf", "--debug-dump=info", "--dwarf-depth=1"), path)))
    if not producers:
        faults.append(f"{path}: no DW_AT_producer: built without -g?")
    for flag in FLAGS:
        if any(flag not in one for one in producers):
            faults.append(f"{path}: an object was built without {flag}")


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(ROOT, "build/release")
    for name in PROGRAMS:
        check(os.path.join(folder, name))
    print("\n".join(faults))
    return 1 if faults else 0


sys.exit(main())
