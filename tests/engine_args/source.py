"""Python modules of a wheel as syntax trees: where a name is defined, what an annotation allows.  Nothing is imported."""
import ast
import functools


def last(node):
    """The last part of a dotted name, or None."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


class Module:
    """names: what the module defines at its top; imports: name -> (module, name there)."""

    def __init__(self, dotted, path, text):
        self.dotted, self.path, self.tree = dotted, path, ast.parse(text)
        self.names, self.imports = {}, {}
        self.define(self.tree.body)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                above = dotted.split(".")[:None if path.endswith("__init__.py") else -1]
                above = above[:len(above) + 1 - node.level] if node.level else []
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = (".".join(above + [node.module or ""]).strip("."), alias.name)

    def define(self, body):
        for node in body:
            if isinstance(node, (ast.If, ast.Try)):
                self.define(node.body)
                self.define(node.orelse)
            elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                self.names[node.name] = node
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                for target in getattr(node, "targets", None) or [node.target]:
                    self.names.setdefault(last(target), node.value)

    @functools.cached_property
    def strings(self):
        return {n.value for n in ast.walk(self.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}

    @functools.cached_property
    def ids(self):
        return {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)}


class Source:
    def __init__(self, wheel):
        self.wheel = wheel

    @functools.cache
    def module(self, dotted):
        base = dotted.replace(".", "/")
        for path in (base + ".py", base + "/__init__.py"):
            if path in self.wheel.names:
                return Module(dotted, path, self.wheel.read(path))
        return None

    def strings(self, *folders):
        """All string constants of the modules whose paths begin with one of `folders`."""
        paths = sorted(n for n in self.wheel.names if n.startswith(folders) and n.endswith(".py"))
        return set().union(*(self.module(n[:-3].removesuffix("/__init__").replace("/", ".")).strings for n in paths))

    def find(self, module, name):
        """(module, node) that defines the name, or None: it is not of this wheel."""
        while module is not None:
            if name in module.names:
                return module, module.names[name]
            dotted, name = module.imports.get(name, ("", name))
            module = self.module(dotted)
        return None

    def bases(self, found):
        return [b for b in (self.find(found[0], last(base)) for base in found[1].bases) if b is not None]

    def method(self, found, name):
        for node in found[1].body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return found[0], node
        return next(filter(None, (self.method(base, name) for base in self.bases(found))), None)

    def fields(self, found):
        """name -> (module, annotation) of a class and of those that it is made from."""
        fields = {}
        for base in self.bases(found):
            fields.update(self.fields(base))
        for node in found[1].body:
            if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                fields[node.target.id] = (found[0], node.annotation)
        return fields

    def is_record(self, found):
        marks = " ".join(ast.unparse(d) for d in found[1].decorator_list)
        return "dataclass" in marks or "config" in marks or any(self.is_record(b) for b in self.bases(found))

    def kinds(self, module, note):
        """What an annotation allows: {"int": None, "none": None, "literal": choices, "list": (module, element), "record": class}."""
        if isinstance(note, ast.Constant):
            return {"none": None} if note.value is None else self.kinds(module, ast.parse(note.value, mode="eval").body)
        if isinstance(note, ast.BinOp):
            return {**self.kinds(module, note.left), **self.kinds(module, note.right)}
        if isinstance(note, ast.Subscript):
            inner = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
            alias = self.find(module, last(note.value))
            outer = (last(alias[1]) if alias else last(note.value)).lower()
            if outer in ("optional", "union"):
                return {k: v for i in inner for k, v in self.kinds(module, i).items()} | ({"none": None} if outer == "optional" else {})
            if outer in ("annotated", "skipvalidation", "initvar"):
                return self.kinds(module, inner[0])
            if outer == "literal":
                return {"literal": [v for i in inner for v in self.literals(module, i)]}
            return {"list": (module, inner[0])} if outer in ("list", "tuple", "set") else {"dict" if outer == "dict" else "other": None}
        if last(note) in ("bool", "int", "float", "str", "dict"):
            return {last(note): None}
        found = self.find(module, last(note)) if last(note) else None
        if found is not None and isinstance(found[1], ast.ClassDef):
            return {"record": found} if self.is_record(found) else {"other": None}
        return self.kinds(*found) if found is not None else {"other": None}

    def literals(self, module, node):
        return [node.value] if isinstance(node, ast.Constant) else self.kinds(module, node)["literal"]
