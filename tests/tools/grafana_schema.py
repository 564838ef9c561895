#!/usr/bin/env python3
"""grafana_schema.py FOLDER > tests/lint/grafana_schema.json

Makes a JSON schema of a dashboard from grafana_foundation_sdk (Apache-2.0), which Grafana Labs generate from the schemas of
Grafana itself.  FOLDER has that package, as pip download and unzip leave it.  Panels are those of the dashboard here: time series of
Prometheus, in rows.  No member is required, because Grafana has a default for each."""
import enum
import importlib
import inspect
import json
import re
import sys
import types
import typing

VERSION = "11.6.0"
PLAIN = {int: "integer", str: "string", float: "number", bool: "boolean", type(None): "null"}
PACKAGE = "grafana_foundation_sdk"


def main():
    sys.path.insert(0, sys.argv[1])
    dashboard, timeseries, prometheus, variants = (
        importlib.import_module(f"{PACKAGE}.{name}") for name in ("models.dashboard", "models.timeseries", "models.prometheus", "cog.variants"))
    # what the package leaves open, because it depends on the plug-in
    closed = {("Panel", "options"): timeseries.Options, ("FieldConfig", "custom"): timeseries.FieldConfig}
    names, found = {}, {}

    def ref(c):
        c = prometheus.Dataquery if c is variants.Dataquery else c
        name = c.__name__ if c.__module__ == dashboard.__name__ else f"{c.__module__.rpartition('.')[2]}.{c.__name__}"
        if name not in names:
            names[name] = c
            found[name] = {"type": "object", "additionalProperties": False, "properties": members(c, name)}
        return {"$ref": f"#/definitions/{name}"}

    def of(hint):
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if hint in PLAIN:
            return {"type": PLAIN[hint]}
        if origin is typing.Literal:
            return {"enum": list(args)}
        if origin in (typing.Union, types.UnionType):
            given = [of(a) for a in args if a is not type(None)]
            return given[0] if len(given) == 1 else {"anyOf": given}
        if origin is list:
            return {"type": "array", "items": of(args[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": of(args[1])}
        if inspect.isclass(hint) and issubclass(hint, enum.Enum):
            return {"enum": [e.value for e in hint]}
        if inspect.isclass(hint) and hint is not object:
            return ref(hint)
        return {}

    def members(c, name):
        hints = typing.get_type_hints(c)
        pairs = re.findall(r'(?:payload\["(\w+)"\] =|"(\w+)":) self\.(\w+)', inspect.getsource(c.to_json))
        return {a or b: ref(closed[name, a or b]) if (name, a or b) in closed else of(hints[attribute]) for a, b, attribute in pairs}

    ref(dashboard.Dashboard)
    print('{"source": "%s %s; made by tests/tools/grafana_schema.py",\n"definitions": {' % (PACKAGE, VERSION))
    print(",\n".join(f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(found.items())) + "}}")


main()
