"""A JSON object's top-level members as the bytes they are: nothing is converted, so two bodies can be
compared beyond what a JSON library would still tell apart (1e400, big integers, doubled keys)."""
import json
import re

BLANK = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder(parse_int=str, parse_float=str, strict=True)


def members(raw):
    """[(key decoded, key raw, value raw)], in order, doubles included."""
    s = raw.decode("utf-8", "surrogateescape")

    def blank(i):
        return BLANK.match(s, i).end()

    i = blank(0)
    assert s[i] == "{", s[:40]
    i = blank(i + 1)
    out = []
    while s[i] != "}":
        key, j = DECODER.raw_decode(s, i)
        raw_key, i = s[i:j], blank(j)
        assert s[i] == ":"
        i = blank(i + 1)
        _, j = DECODER.raw_decode(s, i)
        out.append((key, raw_key, s[i:j]))
        i = blank(j)
        if s[i] == ",":
            i = blank(i + 1)
            assert s[i] == '"', "a comma before the end"
    assert blank(i + 1) == len(s), "something behind the object"
    return out


def kept(raw, without):
    """The members whose key is none of these, key and value as bytes."""
    return [(k, v) for key, k, v in members(raw) if key not in without]


def values(raw, key):
    """The raw values of one key."""
    return [v for k, _, v in members(raw) if k == key]
