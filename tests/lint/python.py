#!/usr/bin/env python3
"""Every Python file compiles, and uses what it imports."""
import ast
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def unused(tree):
    imported = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                imported[(alias.asname or alias.name).split(".")[0]] = node.lineno
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    used |= {a.arg for n in ast.walk(tree) if isinstance(n, ast.arguments) for a in n.args}  # fixtures
    return [(line, name) for name, line in imported.items() if name not in used]


def main():
    bad = 0
    os.chdir(ROOT)
    for folder, names, files in os.walk("tests"):
        names[:] = [n for n in names if n != "__pycache__"]
        for path in (os.path.join(folder, f) for f in files if f.endswith(".py")):
            with open(path) as f:
                text = f.read()
            lines = text.split("\n")
            try:
                tree = ast.parse(text, path)
                compile(tree, path, "exec")
            except SyntaxError as e:
                print(f"{path}:{e.lineno}: {e.msg}")
                bad = 1
                continue
            for line, name in unused(tree):
                if "lint: " not in lines[line - 1]:
                    print(f"{path}:{line}: {name} is imported and not used")
                    bad = 1
    return bad


sys.exit(main())
