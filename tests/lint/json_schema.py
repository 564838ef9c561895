"""What JSON Schema, as far as the schemas here use it, has against a value.  Nothing to install."""
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool, "null": type(None)}


def faults(x, schema, definitions, at=""):
    def against(v, s, where=at):
        return faults(v, s, definitions, where)

    if "$ref" in schema:
        yield from against(x, definitions[schema["$ref"].rpartition("/")[2]])
    if "oneOf" in schema and sum(not list(against(x, s)) for s in schema["oneOf"]) != 1:
        yield f"{at}: {x!r} is not one of {schema['oneOf']}"
    if "anyOf" in schema and not any(not list(against(x, s)) for s in schema["anyOf"]):
        yield f"{at}: {min((list(against(x, s)) for s in schema['anyOf']), key=len)}"
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(isinstance(x, TYPES[t]) and (t == "boolean" or not isinstance(x, bool)) for t in types):
        yield f"{at}: {x!r} is not {types}"
    if x not in schema.get("enum", [x]):
        yield f"{at}: {x!r} is not one of {schema['enum']}"
    if isinstance(x, list):
        for i, v in enumerate(x):
            yield from against(v, schema.get("items", {}), f"{at}[{i}]")
    if isinstance(x, dict):
        yield from (f"{at}.{k}: missing" for k in schema.get("required", []) if k not in x)
        for k, v in x.items():
            more = schema.get("properties", {}).get(k, schema.get("additionalProperties", {}))
            yield from [f"{at}.{k}: unknown"] if more is False else against(v, more, f"{at}.{k}")
