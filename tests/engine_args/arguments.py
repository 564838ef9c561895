"""The parser of an engine's command line, built from the source of the engine's own.  The statements that fill the parser
(add_argument, the keyword arguments made of a dataclass' fields) are followed in the syntax tree; what is not understood
of an argument (a default, a help text, a computed list of choices) is left out, so the parser may allow more, never less."""
import argparse
import ast
import json

from source import Source, last

PARSER, UNKNOWN = object(), object()
GROUPS = ("add_parser", "add_argument_group", "add_mutually_exclusive_group")
START = {"vllm": ("vllm.entrypoints.cli.serve", "ServeSubcommand", "subparser_init"),
         "sglang": ("sglang.srt.server_args", "ServerArgs", "add_cli_args")}


class Refused(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Refused(message)


class Arguments:
    """parser: parse_args() of it raises Refused."""

    def __init__(self, wheel):
        self.source, self.kind, self.unclear = Source(wheel), wheel.package, []
        self.parser = Parser(prog=wheel.package, allow_abbrev=False, conflict_handler="resolve", add_help=False)
        dotted, cls, function = START[wheel.package]
        owner = self.source.find(self.source.module(dotted), cls)
        self.call(self.source.method(owner, function), {"subparsers": PARSER, "parser": PARSER, "cls": owner})

    # --- statements
    def call(self, function, env):
        module, node = function
        result = [UNKNOWN]
        self.run(module, node.body, env, result)
        return result[-1]

    def run(self, module, body, env, result):
        for s in body:
            if isinstance(s, (ast.If, ast.With)):
                self.run(module, s.body, env, result)
                self.run(module, getattr(s, "orelse", []), env, result)
            elif isinstance(s, ast.For):
                items = self.value(module, s.iter, env)
                for item in [] if items is UNKNOWN else items:
                    env.update(zip((last(t) for t in s.target.elts), item))
                    self.run(module, s.body, env, result)
            elif isinstance(s, ast.Assign):
                self.assign(s.targets[0], self.value(module, s.value, env), module, env)
            elif isinstance(s, ast.Delete):
                self.value(module, s.targets[0].value, env).pop(s.targets[0].slice.value, None)
            elif isinstance(s, (ast.Expr, ast.Return)) and s.value is not None:
                value = self.value(module, s.value, env)
                if isinstance(s, ast.Return):
                    result.append(value)

    def assign(self, target, value, module, env):
        if isinstance(target, ast.Name):
            env[target.id] = value
        elif isinstance(target, ast.Subscript):
            owner = self.value(module, target.value, env)
            if owner is not UNKNOWN:
                owner[target.slice.value] = value

    # --- expressions
    def value(self, module, node, env):
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            found = None if node.id in env else self.source.find(module, node.id)
            if found is not None and not isinstance(found[1], (ast.ClassDef, ast.FunctionDef)):
                return self.value(*found, {})
            return env.get(node.id, UNKNOWN) if found is None else found
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            values = [self.value(module, e, env) for e in node.elts]
            return UNKNOWN if UNKNOWN in values else values
        if isinstance(node, ast.Dict):
            return self.merged(module, node, env)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = (self.value(module, n, env) for n in (node.left, node.right))
            return left + right if isinstance(left, list) and isinstance(right, list) else UNKNOWN
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self.value(module, node.value, env)
            return owner.get(node.slice.value, UNKNOWN) if isinstance(owner, dict) else UNKNOWN
        if isinstance(node, ast.JoinedStr):
            parts = [self.value(module, getattr(p, "value", p) if isinstance(p, ast.FormattedValue) else p, env) for p in node.values]
            return "".join(parts) if all(isinstance(p, str) for p in parts) else UNKNOWN
        return self.called(module, node, env) if isinstance(node, ast.Call) else UNKNOWN

    def merged(self, module, node, env):
        """{**a, "key": value}"""
        result = {}
        for key, value in zip(node.keys, node.values):
            value = self.value(module, value, env)
            if key is None and not isinstance(value, dict) or key is not None and not isinstance(key, ast.Constant):
                return UNKNOWN
            result.update(value if key is None else {key.value: value})
        return result

    def called(self, module, node, env):
        name, args = last(node.func), [self.value(module, a, env) for a in node.args]
        if name == "add_argument":
            return self.add(module, node, env)
        if name in GROUPS:
            return PARSER
        if name == "get_kwargs":
            return {n: self.of_vllm(*field) for n, field in self.source.fields(args[0]).items()}
        if name == "add_cli_args_from_dataclass":
            return self.of_sglang(args[1])
        if name == "get_args":
            found = self.source.find(module, last(node.args[0]))
            return self.source.literals(*found) if found is not None else UNKNOWN
        if isinstance(node.func, ast.Attribute):
            if node.func.attr in ("items", "replace", "pop"):
                owner = self.value(module, node.func.value, env)
                return getattr(owner, node.func.attr)(*args) if isinstance(owner, (dict, str)) else UNKNOWN
            return self.method(module, node.func, args, env)
        function = self.source.find(module, name) if PARSER in args else None
        return self.call(function, {"parser": PARSER}) if function is not None else UNKNOWN

    def method(self, module, func, args, env):
        """A method that gets the parser, or keyword arguments to change."""
        if not any(a is PARSER or isinstance(a, dict) for a in args):
            return UNKNOWN
        is_super = isinstance(func.value, ast.Call) and last(func.value.func) == "super"
        owner = env.get("cls") if is_super else self.value(module, func.value, env)
        if not isinstance(owner, tuple):
            return UNKNOWN
        classes = self.source.bases(owner) if is_super else [owner]
        found = next(filter(None, (self.source.method(c, func.attr) for c in classes)), None)
        if found is None:
            return UNKNOWN
        names = [a.arg for a in found[1].args.args if a.arg not in ("cls", "self")]
        return self.call(found, {**dict(zip(names, args)), "cls": owner})

    # --- arguments
    def add(self, module, node, env):
        names = []
        for a in node.args:
            value = self.value(module, a.value if isinstance(a, ast.Starred) else a, env)
            names += value if isinstance(value, list) else [value]
        if not all(isinstance(n, str) for n in names):
            return UNKNOWN
        kwargs = {}
        for k in node.keywords:
            if k.arg is None:
                more = self.value(module, k.value, env)
                if not isinstance(more, dict):
                    self.unclear.append(f"{names[0]}: {ast.unparse(k.value)}")
                    more = {}
                kwargs.update(more)
            elif k.arg == "type":
                kwargs["type"] = {"int": int, "float": float, "json.loads": json.loads}.get(ast.unparse(k.value), UNKNOWN)
            elif k.arg == "action" and not isinstance(k.value, ast.Constant):
                kwargs["action"], kwargs["nargs"] = self.action(module, k.value)
            elif k.arg in ("action", "nargs", "choices", "const", "required"):
                kwargs[k.arg] = self.value(module, k.value, env)
        return self.register(names, kwargs)

    def action(self, module, node):
        """(action, nargs) that behave as a class of actions does."""
        if last(node) == "BooleanOptionalAction":
            return argparse.BooleanOptionalAction, UNKNOWN
        found = self.source.find(module, last(node))
        init = found and self.source.method(found, "__init__")
        defaults = dict(zip([a.arg for a in init[1].args.args][::-1], init[1].args.defaults[::-1])) if init else {}
        if isinstance(defaults.get("nargs"), ast.Constant) and defaults["nargs"].value == 0:
            return "store_true", UNKNOWN
        return "store", UNKNOWN

    def register(self, names, kwargs):
        known = {k: v for k, v in kwargs.items() if k in ("action", "nargs", "choices", "const", "required", "type")
                 and v is not UNKNOWN and v is not None and not isinstance(v, tuple)}  # a tuple: a class or function of the wheel
        if known.get("action") in ("store_true", "store_false", "store_const", argparse.BooleanOptionalAction):
            known = {"action": known["action"]} | ({"const": None} if known["action"] == "store_const" else {})
        self.parser.add_argument(*names, **known)
        return UNKNOWN

    def typed(self, kinds):
        """choices and type that a field's annotation gives its argument."""
        if "literal" in kinds and "str" not in kinds:
            return {"type": type(kinds["literal"][0]), "choices": kinds["literal"] + (["None"] if "none" in kinds else [])}
        return {"type": int if "int" in kinds else float if "float" in kinds else None}

    def of_vllm(self, module, note):
        """What get_kwargs() of vllm/engine/arg_utils.py makes of a field."""
        kinds = self.source.kinds(module, note)
        if "record" in kinds:
            return {"type": self.json_of(kinds["record"])}
        if set(kinds) == {"bool", "str", "none"}:
            return {"nargs": "?"}
        if "bool" in kinds:
            return {"action": argparse.BooleanOptionalAction}
        if "list" in kinds:
            return {"nargs": "+", **self.typed(self.source.kinds(*kinds["list"]))}
        return self.typed(kinds)

    def json_of(self, record):
        fields = {n: self.source.kinds(*f) for n, f in self.source.fields(record).items()}

        def parse(text):
            value = json.loads(text)
            for key, given in value.items():
                if key not in fields:
                    raise argparse.ArgumentTypeError(f"{record[1].name} has no field {key}")
                if not any(fits(given, kind, detail) for kind, detail in fields[key].items()):
                    raise argparse.ArgumentTypeError(f"{record[1].name}.{key} cannot be {given!r}")
            return value
        return parse

    def of_sglang(self, record):
        """What add_cli_args_from_dataclass() of sglang/srt/arg_groups/arg_utils.py makes of the fields.  From 0.5.20 on they
        are those of several classes."""
        spread = [n for n in sorted(self.source.wheel.names) if n.startswith("sglang/srt/arg_groups/fields/") and n.endswith(".py")]
        modules = [self.source.module(n[:-3].removesuffix("/__init__").replace("/", ".")) for n in spread]
        for found in [record] + [(m, n) for m in modules for n in m.names.values() if isinstance(n, ast.ClassDef)]:
            for name, (module, note) in self.source.fields(found).items():
                if isinstance(note, ast.Subscript) and isinstance(note.slice, ast.Tuple):
                    self.add_sglang(module, name, *note.slice.elts[:2])

    def add_sglang(self, module, name, note, meta):
        given = {k.arg: k.value for k in meta.keywords} if isinstance(meta, ast.Call) else {}
        if last(getattr(meta, "func", None)) == "Derived" or "no_cli" in given:
            return
        said = {k: self.value(module, v, {}) for k, v in given.items()}
        names = [said.get("cli_name", "--" + name.replace("_", "-"))] + (said.get("aliases") or [])
        kinds = self.source.kinds(module, note)
        if "action" in given:
            kwargs = dict(zip(("action", "nargs"), self.action(module, given["action"])))
        elif "list" in kinds and "type_parser" not in given:
            kwargs = {"nargs": "+", **self.typed(self.source.kinds(*kinds["list"]))}
        elif set(kinds) - {"none"} == {"bool"}:
            kwargs = {"action": "store_true"}
        else:
            kwargs = self.typed(kinds) if "type_parser" not in given else {}
        self.register(names, kwargs | {k: v for k, v in said.items() if k in ("choices", "nargs", "const", "required")})


def fits(given, kind, detail):
    """Whether pydantic takes a value of JSON for such a field: numbers may be written as text."""
    if kind in ("int", "float"):
        try:
            return not isinstance(given, bool) and {"int": int, "float": float}[kind](given) is not None
        except (TypeError, ValueError):
            return False
    types = {"none": type(None), "str": str, "bool": bool, "list": list, "dict": dict}
    return given in detail if kind == "literal" else isinstance(given, types.get(kind, object))
