"""A C file as the lints need it: comments, code without them, and where functions begin and end."""
import glob
import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOKEN = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
# the return type has its own line, so a definition starts in the first column
DEFINITION = re.compile(r"^([a-z_]\w*)\((?:[^;{}]*?)\)\n\{\n.*?^\}$", re.M | re.S)


def blank(m):
    """The same number of lines and columns, nothing in them; a string keeps its quotes."""
    text = m.group(0)
    if text[0] in "\"'":
        return text[0] + " " * (len(text) - 2) + text[0]
    return re.sub(r"[^\n]", " ", text)


class Source:
    def __init__(self, path):
        self.path = path
        with open(os.path.join(ROOT, path)) as f:
            self.text = f.read()
        self.code = TOKEN.sub(blank, self.text)
        self.comments = [(m.start(), self._words(m.group(0))) for m in TOKEN.finditer(self.text) if m.group(0)[0] == "/"]
        self.functions = [(m.start(), m.end(), m.group(1)) for m in DEFINITION.finditer(self.code)]

    @staticmethod
    def _words(comment):
        return " ".join(re.sub(r"^[ \t]*(/\*+|\*/|\*|//)|\*/$", " ", comment, flags=re.M).split())

    def line(self, offset):
        return self.text.count("\n", 0, offset) + 1

    def function_at(self, offset):
        """The function around an offset, or the one that follows when it is between two."""
        for _, end, name in self.functions:
            if offset < end:
                return name
        return None

    def comments_of(self, name):
        """Every comment in a function and above it."""
        return [text for offset, text in self.comments if self.function_at(offset) == name]


def sources(*folders):
    found = []
    for folder in folders:
        for path in glob.glob(os.path.join(ROOT, folder, "**", "*.[ch]"), recursive=True):
            found.append(Source(os.path.relpath(path, ROOT)))
    return sorted(found, key=lambda s: s.path)
