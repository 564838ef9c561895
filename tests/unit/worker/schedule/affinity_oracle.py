#!/usr/bin/env python3
"""Bodies of every kind and what production-stack's estimate makes of them, for worker_affinity.c.

Python's own json and len() do the counting.  Each line: route, estimate, the body in hexadecimal.  usage: SEED COUNT
"""
import json
import random
import sys

PIECES = ["a", "Zz", " ", "/", "\\/", "\\n", "\\\"", "\\\\", "\\b\\f\\r\\t", "\\u0041", "\\u00e9", "\\u20AC", "\\u0000", "\\uffff",
          "\\ud83d\\ude00", "\\uD83D\\uDE00", "\\ud83d", "\\ude00", "\\ude00\\ud83d", "\\ud83d\\u0041", "\\ud83d\\ud83d\\ude00",
          "\\ud83dx\\ude00", "\\\\ud83d", "é", "€", "中文", "😀", "👩‍👩‍👧", "e\u0301", "\u2028", "\x7f", "\ufeff", "\U0010ffff", "x" * 33]


def pick(dice, *choices):
    return dice.choice(choices)


def blank(dice):
    return pick(dice, "", "", "", " ", "\n", "\t \r\n")


def string(dice, most=12):
    return '"' + "".join(dice.choice(PIECES) for _ in range(dice.randint(0, most))) + '"'


def name(dice, text):
    """A member's name, sometimes with escapes."""
    if dice.random() < 0.9:
        return f'"{text}"'
    return '"' + "".join(pick(dice, c, f"\\u{ord(c):04x}", f"\\u{ord(c):04X}") for c in text) + '"'


def array(dice, items):
    return "[" + ",".join(blank(dice) + i + blank(dice) for i in items) + "]"


def members(dice, fields, shuffle=True):
    """An object: in any order, now and then with a double."""
    if shuffle:
        dice.shuffle(fields)
    if fields and dice.random() < 0.1:
        fields.append(dice.choice(fields))
    return "{" + ",".join(f"{blank(dice)}{name(dice, k)}{blank(dice)}:{blank(dice)}{v}{blank(dice)}" for k, v in fields) + "}"


def number(dice):
    return pick(dice, "0", "-1", "7", "128000", "2.5", "1e3", "12345678901234567890123")


def odd(dice):
    """What stands where it should not."""
    return pick(dice, "null", "true", number(dice), "{}", '{"text":"abc","type":"text","content":"abc"}')


def numbers(dice, most=20):
    return array(dice, [number(dice) for _ in range(dice.randint(0, most))])


def part(dice):
    kind = pick(dice, '"text"', '"text"', '"text"', '"te\\u0078t"', '"image_url"', '"input_text"', '"texts"', '""', "null", '["text"]')
    fields = [("type", kind), ("text", string(dice) if dice.random() < 0.9 else pick(dice, "null", "1", '["abc"]', '{"text":"abc"}'))]
    if dice.random() < 0.3:
        fields.append(("image_url", '{"url":"data:x","type":"text","text":"abc"}'))
    if dice.random() < 0.1:
        fields.append(("type", pick(dice, '"text"', '"image_url"')))
    if dice.random() < 0.1:
        fields.append(("text", string(dice)))
    return members(dice, dice.sample(fields, dice.randint(1, len(fields))) if dice.random() < 0.2 else fields)


def content(dice):
    kind = dice.random()
    if kind < 0.5:
        return string(dice)
    if kind < 0.9:
        return array(dice, [part(dice) if dice.random() < 0.9 else pick(dice, string(dice), odd(dice), "[]", '["abc"]')
                            for _ in range(dice.randint(0, 5))])
    return odd(dice)


def message(dice):
    fields = [("role", '"user"'), ("content", content(dice))]
    if dice.random() < 0.2:
        fields.append(("tool_calls", '[{"content":"abc","text":"abc","type":"text"}]'))
    if dice.random() < 0.1:
        fields.append(("content", content(dice)))
    return members(dice, fields[dice.random() < 0.1:])


def messages(dice):
    if dice.random() < 0.05:
        return odd(dice)
    return array(dice, [message(dice) if dice.random() < 0.95 else pick(dice, "null", "1", '"abc"', '[{"content":"abc"}]')
                        for _ in range(dice.randint(0, 6))])


def prompt(dice):
    kind = dice.random()
    if kind < 0.4:
        return string(dice, 40)
    if kind < 0.9:
        item = pick(dice, number, string, numbers, lambda d: pick(d, number, string, numbers, odd)(d))
        return array(dice, [item(dice) for _ in range(dice.randint(0, 30))])
    return odd(dice)


def body(dice):
    fields = [("model", '"m"'), ("stream", "true")]
    for key, make, share in (("prompt", prompt, 0.6), ("messages", messages, 0.6), ("content", string, 0.1), ("text", string, 0.1)):
        fields += [(key, make(dice))] * (dice.random() < share)
        fields += [(key, make(dice))] * (dice.random() < 0.05)
    return blank(dice) + members(dice, fields) + blank(dice)


def said(message_or_part, key):
    value = message_or_part.get(key) if isinstance(message_or_part, dict) else None
    return value if isinstance(value, (str, list)) else ""


def estimate(route, doc):
    if route == "completions":
        value = said(doc, "prompt")
        return len(value) if isinstance(value, list) else len(value) // 4
    total = 0
    all_messages = said(doc, "messages")
    for one in all_messages if isinstance(all_messages, list) else []:
        value = said(one, "content")
        for piece in value if isinstance(value, list) else [value]:
            if isinstance(piece, dict):
                piece = said(piece, "text") if piece.get("type") == "text" else ""
            total += len(piece) if isinstance(piece, str) else 0
    return total // 4


def main():
    dice = random.Random(int(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        text = body(dice)
        route = pick(dice, "completions", "chat")
        print(route, estimate(route, json.loads(text)), text.encode().hex())


main()
