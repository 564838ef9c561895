#!/usr/bin/env python3
"""Counts what the end-to-end tests check, of the working tree or of a commit: count_tests.py [COMMIT].

Assertions are `assert` statements and `pytest.raises` in tests/e2e; helpers are counted once however often they are called.
Cases are what pytest collects, each case of a parametrized test.  A commit is collected in a copy; build/venv is used."""
import ast
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def assertions(folder):
    found = 0
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name)) as f:
                for node in ast.walk(ast.parse(f.read())):
                    raises = isinstance(node, ast.Attribute) and node.attr == "raises" and getattr(node.value, "id", "") == "pytest"
                    found += isinstance(node, ast.Assert) or raises
    return found


def cases(root):
    env = {**os.environ, "PDR_VARIANT": "release", "PYTHONDONTWRITEBYTECODE": "1"}
    out = subprocess.run([os.path.join(ROOT, "build/venv/bin/python"), "-m", "pytest", "-c", "tests/e2e/pytest.ini", "tests/e2e",
                          "--collect-only", "-q"], cwd=root, env=env, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stdout + out.stderr
    counts = [line.rsplit(": ", 1) for line in out.stdout.splitlines() if ".py: " in line]
    return len(counts), sum(int(n) for _, n in counts)


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = ROOT
        if len(sys.argv) > 1:
            root = folder
            tar = subprocess.run(["git", "archive", sys.argv[1], "tests"], cwd=ROOT, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", folder], input=tar, check=True)
        files, n = cases(root)
        print(f"{assertions(os.path.join(root, 'tests/e2e'))} assertions, {n} cases, {files} files")


if __name__ == "__main__":
    main()
